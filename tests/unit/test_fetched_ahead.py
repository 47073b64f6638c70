"""Records that were fetched are delivered, also if a registry did not answer when they were decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tallymark import Bytes
from tallymark.core.records import DeadLetter
from tallymark.core.spans import Partition
from tallymark.errors import Unreachable
from tallymark.formats.decoders import Decoders
from tallymark.kafka.fetch import Fetched
from tallymark.service.ahead import Ahead
from tallymark.service.records import Message

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)


class Moving:
    """Delivers a record of each partition at a time, and never the same one twice."""

    def __init__(self) -> None:
        self.next = {ZERO: 0, ONE: 0}

    def fetch(self, most: int, wait: float) -> dict[Partition, Fetched]:
        found = {}
        for partition, offset in self.next.items():
            message = Message(DeadLetter(partition, offset, None, None, b"x", (), None, ""))
            found[partition] = Fetched(offset + 1, [message])
            self.next[partition] = offset + 1
        return found

    def add(self, offsets: Any, epochs: Any) -> None:
        self.next |= offsets

    def remove(self, partitions: Any) -> None:
        for partition in partitions:
            self.next.pop(partition, None)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Ahead:
    """Its first decoding fails."""
    decoders = Decoders.of(Bytes())
    failures = [Unreachable("the registry does not answer")]
    decode = decoders.messages

    def messages(given: Any) -> Any:
        if failures:
            raise failures.pop()
        return decode(given)

    monkeypatch.setattr(decoders, "messages", messages)
    fetcher: Any = Moving()
    same: Callable[[], None] = lambda: None  # noqa: E731
    return Ahead(fetcher, decoders, lambda: same)


def taken(ahead: Ahead) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in ahead.take(10, 0.0).records]


@pytest.mark.parametrize("in_thread", [True, False])
def test_what_could_not_be_decoded_is_delivered_later(ahead: Ahead, in_thread: bool) -> None:
    if in_thread:
        ahead.start(10, 0.0)
    with pytest.raises(Unreachable):
        ahead.take(10, 0.0)
    assert [taken(ahead), taken(ahead)] == [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]


@pytest.mark.parametrize("in_thread", [True, False])
def test_of_partitions_that_are_gone_nothing_is_delivered_later(ahead: Ahead, in_thread: bool) -> None:
    if in_thread:
        ahead.start(10, 0.0)
    else:
        with pytest.raises(Unreachable):
            ahead.take(10, 0.0)
    ahead.remove([ZERO])
    assert [taken(ahead), taken(ahead)] == [[(1, 0)], [(1, 1)]]


def test_what_was_fetched_ahead_is_dropped_with_its_partition(ahead: Ahead) -> None:
    with pytest.raises(Unreachable):
        ahead.take(10, 0.0)
    ahead.start(10, 0.0)
    ahead.remove([ONE])
    assert [taken(ahead), taken(ahead)] == [[(0, 0)], [(0, 1)]]
