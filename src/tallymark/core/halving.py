"""Finds the refused items of a batch by bisection: tries smaller and smaller parts. Pure: the caller applies them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar


class Part(Protocol):
    """A sequence of items."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: slice, /) -> Any: ...


P = TypeVar("P", bound=Part)
E = TypeVar("E")
T = TypeVar("T")
Refused = tuple[P, E]
"""A single item, and the error that refuses it."""


class Undoing(Exception):
    """A part was refused, and the database rolled back the whole transaction."""

    def __init__(self, part: Any, error: Any) -> None:
        super().__init__(str(error))
        self.part, self.error = part, error


def in_order(parts: Iterable[P], attempt: Callable[[P], E | None]) -> Iterator[Refused[P, E]]:
    """Try all items in order, and yield those that are refused.

    ``attempt`` applies a part and returns None, or returns the error.
    """
    for part in parts:
        error = attempt(part) if len(part) else None
        if error is not None and len(part) == 1:
            yield part, error
        elif error is not None:
            yield from in_order(_halves(part), attempt)


def in_any_order(
    parts: Iterable[P], attempt: Callable[[P], E | None], enough: Callable[[list[P]], bool] = lambda _: False
) -> list[Refused[P, E]]:
    """Try all items, where an item may depend on items that come after it, and return those that are refused.

    A refused part is tried again after another part succeeded, and is halved when no part succeeds any more. The result
    is single items, or larger parts if ``enough`` ends the search early.
    """
    waiting = [part for part in parts if len(part)]
    while True:
        tried = [(part, attempt(part)) for part in waiting]
        refused = [(part, error) for part, error in tried if error is not None]
        waiting = [part for part, _ in refused]
        if len(refused) < len(tried):
            # Alternate the direction: a chain of dependent items succeeds in one of two rounds.
            waiting.reverse()
        elif all(len(part) == 1 for part in waiting) or enough(waiting):
            return refused
        else:
            waiting = [half for part in waiting for half in _halves(part) if len(half)]


def in_new_transactions(work: Callable[[Sequence[Refused[Any, Any]], bool], T]) -> T:
    """Repeat the work in a new transaction each time a part rolls it back, without the items that cause the rollback.

    ``work`` receives these items, and whether to try all items individually to find the next.
    """
    found: list[Refused[Any, Any]] = []
    singly = False
    while True:
        try:
            return work(found, singly)
        except Undoing as undoing:
            singly = True
            if len(undoing.part) == 1:
                found.append((undoing.part, undoing.error))


def one_by_one(part: P) -> list[P]:
    return [part[at : at + 1] for at in range(len(part))]


def _halves(part: P) -> tuple[P, P]:
    middle = len(part) // 2
    return part[:middle], part[middle:]
