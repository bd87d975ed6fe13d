from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from trainer.batches import Batch, Sequence
from trainer.errors import BatchInvalid


def sequence(**changed: Any) -> Sequence:
    fields: dict[str, Any] = {
        "ids": [5, 6, 7],
        "trained": [False, False, True],
        "logprobs": [0.0, 0.0, -1.5],
        "temperature": [1.0, 1.0, 0.7],
        "top_p": [1.0, 1.0, 0.9],
        "top_k": [0, 0, 20],
        "version": [0, 0, 3],
    }
    return Sequence(**(fields | changed))


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    length = draw(st.integers(1, 12))

    def many(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=length, max_size=length))

    trained = np.array([False, *many(st.booleans())[1:]])
    return Sequence(
        ids=many(st.integers(0, 2**31 - 1)),  # type: ignore[arg-type]  # lists are taken, too
        trained=trained,
        logprobs=np.array(many(st.floats(-30, 0, width=32)), dtype=np.float32),
        temperature=np.array(many(st.floats(0.125, 2, width=32)), dtype=np.float32),
        top_p=np.array(many(st.floats(0.125, 1, width=32)), dtype=np.float32),
        top_k=np.array(many(st.integers(0, 100)), dtype=np.int32),
        version=np.array(many(st.integers(0, 9)), dtype=np.int32),
        recomputed=trained & np.array(many(st.booleans())),
        source=draw(st.none() | st.tuples(st.text(), st.integers(0, 9))),
    )


@given(st.lists(sequences(), min_size=1, max_size=5).filter(lambda found: any(s.trained_tokens for s in found)))
def test_a_batch_comes_back_as_it_was_saved(tmp_path_factory: pytest.TempPathFactory, found: list[Sequence]) -> None:
    path = tmp_path_factory.mktemp("batch") / "batch.safetensors"
    count = len(found)
    batch = Batch(tuple(found), np.linspace(-1, 1, count, dtype=np.float32))
    batch.save(path)
    again = Batch.load(path)
    assert again.trained_tokens == batch.trained_tokens
    assert again.advantages.tolist() == batch.advantages.tolist()
    for a, b in zip(again.sequences, batch.sequences, strict=True):
        for name in ("ids", "trained", "logprobs", "temperature", "top_p", "top_k", "version", "recomputed"):
            assert getattr(a, name).tolist() == getattr(b, name).tolist()
            assert getattr(a, name).dtype == getattr(b, name).dtype


def test_what_is_trained_again_is_known_in_the_file_and_in_one_of_an_earlier_format_nothing_is(tmp_path: Path) -> None:
    path = tmp_path / "b"
    batch = Batch((sequence(), sequence()), np.array([1, -1], dtype=np.float32), np.array([True, False]))
    assert (batch.trained_tokens, batch.replayed_tokens) == (2 * sequence().trained_tokens, sequence().trained_tokens)
    batch.save(path)
    assert Batch.load(path).replayed.tolist() == [True, False]
    tensors = load_file(path)
    del tensors["replayed"]
    save_file(tensors, path)
    assert Batch.load(path).replayed.tolist() == [False, False]


def test_the_file_has_the_agreed_tensors(tmp_path: Path) -> None:
    Batch((sequence(), sequence(ids=[1, 2, 3])), np.array([1, -1], dtype=np.float32)).save(tmp_path / "b")
    tensors = load_file(tmp_path / "b")
    assert {name: (tensor.dtype.name, tensor.shape) for name, tensor in tensors.items()} == {
        "ids": ("int32", (6,)),
        "starts": ("int64", (3,)),
        "trained": ("bool", (6,)),
        "logprobs": ("float32", (6,)),
        "temperature": ("float32", (6,)),
        "top_p": ("float32", (6,)),
        "top_k": ("int32", (6,)),
        "version": ("int32", (6,)),
        "recomputed": ("bool", (6,)),
        "advantages": ("float32", (2,)),
        "replayed": ("bool", (2,)),
    }


def test_the_trained_tokens_of_all_sequences_count() -> None:
    batch = Batch((sequence(), sequence(trained=[False, True, True])), np.array([1, -1], dtype=np.float32))
    assert batch.trained_tokens == 1 + 2


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"ids": []}, "no tokens"),
        ({"ids": [-1, 6, 7]}, "ids must not be negative; wrong at position 0"),
        ({"ids": [1, 2]}, "trained has 3 entries for 2 ids"),
        ({"ids": ["a", "b", "c"]}, "ids cannot be read as int32"),
        ({"ids": [[1, 2, 3]]}, "one dimension"),
        ({"trained": [True, False, True]}, "position 0 is marked as trained"),
        ({"logprobs": [0.0, 0.0, float("nan")]}, "finite number of at most 0; wrong at position 2"),
        ({"logprobs": [0.0, 0.0, float("-inf")]}, "finite number of at most 0; wrong at position 2"),
        ({"logprobs": [0.0, 0.0, 0.5]}, "finite number of at most 0; wrong at position 2"),
        ({"temperature": [1, 1, 0]}, "temperature of a trained token must be above 0"),
        ({"top_p": [1, 1, 0]}, "top_p of a trained token"),
        ({"top_p": [1, 1, 1.5]}, "top_p of a trained token"),
        ({"top_k": [0, 0, -1]}, "top_k of a trained token"),
    ],
)
def test_a_bad_sequence_is_refused_with_the_reason(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(BatchInvalid, match=text):
        sequence(**changed)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (((sequence(),), [1.0, 2.0]), "advantages has 2 entries for 1 sequences"),
        (((sequence(),), [1.0], [True, False]), "replayed has 2 entries for 1 sequences"),
        (((sequence(),), [float("nan")]), "advantages must be finite"),
        (((sequence(trained=[False] * 3),), [1.0]), "no trained token"),
        (((), []), "no trained token"),
    ],
)
def test_a_bad_batch_is_refused_with_the_reason(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(BatchInvalid, match=text):
        Batch(*arguments)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"starts": np.array([0, 2], dtype=np.int64)}, "starts must rise from 0 to 3"),
        ({"starts": np.array([0, 0, 3], dtype=np.int64)}, "starts must rise from 0 to 3"),
        ({"top_k": np.zeros(2, dtype=np.int32)}, "top_k has 2 entries for 3 ids"),
        ({"logprobs": np.full(3, np.nan, dtype=np.float32)}, "sequence 0: the logprob"),
    ],
)
def test_a_bad_file_is_refused_with_the_reason(tmp_path: Path, changed: dict[str, Any], text: str) -> None:
    path = tmp_path / "batch.safetensors"
    Batch((sequence(),), np.array([1], dtype=np.float32)).save(path)
    save_file(load_file(path) | changed, path)
    with pytest.raises(BatchInvalid, match=text):
        Batch.load(path)


@pytest.mark.parametrize("name", ["ids", "starts", "trained", "advantages"])
def test_a_file_that_lacks_a_tensor_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "batch.safetensors"
    Batch((sequence(),), np.array([1], dtype=np.float32)).save(path)
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors, path)
    with pytest.raises(BatchInvalid, match=f"lacks the tensors \\['{name}'\\]"):
        Batch.load(path)


def test_what_is_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"no tensors")
    with pytest.raises(BatchInvalid, match="cannot be read"):
        Batch.load(tmp_path / "b")
    with pytest.raises(BatchInvalid, match="cannot be read"):
        Batch.load(tmp_path / "absent")
