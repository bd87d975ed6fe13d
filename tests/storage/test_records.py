from dataclasses import asdict, replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import records
from storage.records import Close
from storage.states import CallOutcome, ClosedBy
from storage.text import counted, dumps
from storage.types import CallEnd, TaggedBy, VersionNumber, is_policy_name, new_id, parse_version, version_name
from tests.storage.recorded import a_reward, call_start, identity

_text = st.text(max_size=20)


@given(session=_text, scenario=st.none() | _text, request=st.binary(max_size=50), version=st.integers(0, 10**8))
def test_a_start_is_read_as_it_was_written(session: str, scenario: str | None, request: bytes, version: int) -> None:
    start = call_start(session, scenario=scenario, version=VersionNumber(version), agent="a", streamed=True)
    assert records.unpack_start(records.pack_start(start) + request) == (start, request)


def test_where_the_tags_came_from_is_read_as_it_was_written() -> None:
    start = call_start("s", session_by=TaggedBy.INFERRED, scenario_by=TaggedBy.URL, ambiguous=("a", "b"))
    assert records.unpack_start(records.pack_start(start)) == (start, b"")


@pytest.mark.parametrize(("tagged", "by"), [(True, TaggedBy.HEADER), (False, TaggedBy.NONE)])
def test_a_start_of_an_older_journal_is_read(tagged: bool, by: TaggedBy) -> None:
    start = call_start("s")
    head = asdict(start) | {"tagged": tagged}
    for newer in ("session_by", "scenario_by", "ambiguous"):
        del head[newer]
    written = dumps(head)
    older = len(written).to_bytes(4, "little") + written
    assert records.unpack_start(older + b"{}") == (replace(start, session_by=by), b"{}")


@pytest.mark.parametrize("outcome", CallOutcome)
def test_an_end_is_read_as_it_was_written(outcome: CallOutcome) -> None:
    end = CallEnd(outcome, None, "a reason", None, 3.5)
    assert records.unpack_end(records.pack_end(end)) == end


@pytest.mark.parametrize("by", ClosedBy)
def test_a_close_is_read_as_it_was_written(by: ClosedBy) -> None:
    close = Close(identity("s", "owner"), by, 2.5)
    assert records.unpack_close(records.pack_close(close)) == close


def test_a_reward_is_read_as_it_was_written() -> None:
    reward = a_reward("s", -1.5, episode=3, reason="because")
    assert records.unpack_reward(records.pack_reward(reward)) == reward


def test_what_is_no_utf8_never_stops_a_record() -> None:
    """A model's name, a reason, an error text with half a surrogate pair: shown as a question mark."""
    start, _ = records.unpack_start(records.pack_start(call_start("s", model="m\ud800", path="/v1/\udcff")))
    assert (start.model, start.path) == ("m?", "/v1/?")
    assert records.unpack_reward(records.pack_reward(a_reward("s", 1.0, reason="\ud800"))).reason == "?"
    end = CallEnd(CallOutcome.UPSTREAM_ERROR, 500, "\udfff", None, 1.0)
    assert records.unpack_end(records.pack_end(end)) == replace(end, error="?")


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(_json)
def test_whatever_json_holds_becomes_text_that_reads_back_to_itself(value: object) -> None:
    text = dumps(value, sort_keys=True)
    assert dumps(orjson.loads(text), sort_keys=True) == text


def test_ids_sort_by_time_and_differ() -> None:
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in ids)
    assert ids[0][:12] <= ids[-1][:12]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("policy@0", 0),
        ("policy@12", 12),
        ("policy@01", None),
        ("policy@-1", None),
        ("policy@1x", None),
        ("policy@", None),
        ("policy", None),
        ("other@1", None),
        ("policy@1\n", None),
        ("policy@٣", None),
        ("policy@9999999999", None),
    ],
)
def test_version_names(name: str, number: int | None) -> None:
    assert parse_version("policy", name) == number
    if number is not None:
        assert version_name("policy", VersionNumber(number)) == name


@pytest.mark.parametrize(("name", "good"), [("a.b-c_D1", True), ("a" * 64, True), ("a" * 65, False), (".a", False)])
def test_policy_names(name: str, good: bool) -> None:
    assert is_policy_name(name) is good
    assert not is_policy_name(name + "/")


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 closed sessions"), (1, "1 closed session"), (2, "2 closed sessions")]
)
def test_what_is_counted_is_said_as_english_has_it(number: int, said: str) -> None:
    assert counted(number, "closed session") == said
