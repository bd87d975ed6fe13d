import pytest

from scripts.agents import corridor


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("up", 1.0),
        ("Up.", 1.0),
        ("Up we go", 0.5),
        ("down", 0.1),
        ("left or up", 0.1),
        ("", 0.0),
        ("The way is up", 0.0),
        ("upwards", 0.0),
    ],
)
def test_a_step_where_up_is_right(answer: str, expected: float) -> None:
    assert corridor.step(answer, "up") == expected


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        # corridor-1 goes up, left, down.
        (["up", "left", "down"], 1.0),
        (["up", "left", "I do"], 2 / 3),
        (["down", "left", "down it"], 1.6 / 3),
        (["left", "down", "up"], 0.1),
        (["up"], 1 / 3),
        (["what", "", "no"], 0.0),
        ([], 0.0),
        (["up", "left", "down", "up"], 1.0),
    ],
)
def test_reward_is_the_mean_over_the_bends(answers: list[str], expected: float) -> None:
    assert corridor.reward(answers, "corridor-1") == pytest.approx(expected)


def test_what_the_agent_says_depends_on_the_answer_before() -> None:
    walk = corridor.SCENARIOS["corridor-1"]
    call = "Left! Answer with one word: left or right?"
    assert corridor.question(walk, 0, None) == "Up! Answer with one word: up or down?"
    assert corridor.question(walk, 1, "up") == f"Good. {call}"
    assert corridor.question(walk, 1, "Up it is") == f"Good. {call}"
    assert corridor.question(walk, 1, "down") == f"A wall. {call}"
    assert corridor.question(walk, 1, "Hello") == call


def test_no_two_scenarios_are_alike() -> None:
    walks = corridor.SCENARIOS.values()
    assert len({corridor.rules(walk) for walk in walks}) == len({walk.ways for walk in walks}) == len(walks) == 6
