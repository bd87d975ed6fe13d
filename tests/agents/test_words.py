import pytest

from scripts.agents import words


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("yes", 0.5),
        ("no", 0.75),
        ("maybe", 1.0),
        ("Maybe.", 1.0),
        (" 'NO'!\n", 0.75),
        ("**Yes**", 0.5),
        ("yes, I can", 0.05),
        ("No one knows", 0.075),
        ("maybe maybe", 0.1),
        ("", 0.0),
        ("...", 0.0),
        ("I say yes", 0.0),
        ("yesterday", 0.0),
        ("no-one", 0.075),
        ("maybe's", 0.0),
        ("not", 0.0),
    ],
)
def test_reward(answer: str, expected: float) -> None:
    assert words.reward(answer) == pytest.approx(expected)


def test_the_six_scenarios_ask_in_different_ways() -> None:
    assert len(words.SCENARIOS) == len(set(words.SCENARIOS.values())) == 6
    assert all(word in prompt for prompt in words.SCENARIOS.values() for word in words.WORDS)
