"""A document that does not fit into the judge's context is cut in the middle of its longest parts, and says so.

First the texts: as many tokens as may stand are the same for all, so that only the longest lose any. Where that is not
enough, messages in the middle of the longest lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from storage.text import counted, dumps
from trainer import tokens

_LEAST_TEXT = 48
"""Tokens that every text keeps."""
_MARK_TOKENS = 20
"""What the note costs that stands in place of what is cut."""
_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Cut:
    """What is not shown."""

    tokens: int
    texts: int
    """From how many texts."""
    messages: int
    """How many whole ones."""


def fit(lists: Sequence[list[Any]], limit: int, mark: str) -> tuple[list[list[Any]], Cut] | None:
    """The lists (of messages, or tools) with at most ``limit`` tokens as JSON; None where they cannot be cut so far.

    ``mark`` stands where something was cut. How a text is escaped counts, too.
    """
    whole = sum(_size(one) for one in lists)
    shown = [list(one) for one in lists]
    texts = 0
    lengths = [_size(text) for one in lists for text in _texts(one)]
    budget = limit - (whole - sum(lengths))
    for _ in range(_ROUNDS):
        longest = max(level(lengths, budget), _LEAST_TEXT)
        counter = _Shortener(longest, mark)
        shown = [_walk(one, counter) for one in lists]
        texts = counter.cut
        over = sum(_size(one) for one in shown) - limit
        if over <= 0:
            return shown, Cut(whole - limit - over, texts, 0)
        if longest == _LEAST_TEXT:
            break
        budget -= over + 1
    thinned = _thinned(shown, limit, mark)
    if thinned is None:
        return None
    shown, messages = thinned
    left = sum(_size(one) for one in shown)
    return (shown, Cut(whole - left, texts, messages)) if left <= limit else None


def level(lengths: Sequence[int], total: int) -> int:
    """The greatest length to which all longer ones can be cut so that they add up to at most ``total``; at least 0."""
    left = max(total, 0)
    ascending = sorted(lengths)
    for place, length in enumerate(ascending):
        share = left // (len(ascending) - place)
        if length > share:
            return share
        left -= length
    return ascending[-1] if ascending else 0


@dataclass(slots=True)
class _Shortener:
    longest: int
    mark: str
    cut: int = 0

    def __call__(self, text: str) -> str:
        escaped = _size(text)
        if escaped <= self.longest:
            return text
        plain = tokens.count(text)
        keep = max(self.longest - _MARK_TOKENS, 0) * plain // escaped
        ends = tokens.head(text, keep - keep // 2), tokens.tail(text, keep // 2)
        self.cut += 1
        return f"{ends[0]} [{self.mark}: {counted(plain - keep, 'token')} cut here] {ends[1]}"


def _thinned(lists: Sequence[list[Any]], limit: int, mark: str) -> tuple[list[list[Any]], int] | None:
    """The lists without messages from the middle of the longest, and how many are gone.

    None where not even the last message of a list can stay.
    """
    sizes = [[_size(one) + 1 for one in each] for each in lists]
    most = level([sum(each) for each in sizes], limit - _MARK_TOKENS * len(lists))
    thinned, gone = [], 0
    for each, costs in zip(lists, sizes, strict=True):
        if sum(costs) > most:
            first, last = _ends(costs, most)
            if last == len(each):
                return None
            note = {"role": "cut", "content": f"[{mark}: {counted(last - first, 'message')} cut here]"}
            gone += last - first
            thinned.append([*each[:first], note, *each[last:]])
        else:
            thinned.append(each)
    return thinned, gone


def _ends(costs: Sequence[int], most: int) -> tuple[int, int]:
    """How many from the front, and from where on to the end, can stay; the last one before the first."""
    first, last = 0, len(costs)
    while first < last:
        from_end = len(costs) - last <= first
        cost = costs[last - 1] if from_end else costs[first]
        if cost > most:
            break
        most -= cost
        first, last = (first, last - 1) if from_end else (first + 1, last)
    return first, last


def _size(value: Any) -> int:
    return tokens.count(dumps(value).decode())


_NAMES = ("role", "type", "id")
"""Of what a message has, what is not its text."""


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for key, one in value.items() if key not in _NAMES for text in _texts(one))
    elif isinstance(value, list | tuple):
        yield from (text for one in value for text in _texts(one))


def _walk(value: Any, change: Callable[[str], str]) -> Any:
    """``value`` with all its texts changed; names and roles stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: one if key in _NAMES else _walk(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(one, change) for one in value]
    return value
