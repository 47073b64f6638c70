"""The arithmetic of spans, tallies and positions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.spans import OUTCOMES, Owner, Partition, Span, Tally, split
from tests.unit import strategies as draw

PARTITION = Partition("orders", 3)
counts = st.integers(0, 10**12)
tallies = st.builds(Tally, counts, counts, counts, counts, counts)


@given(st.integers(-5, 50), st.integers(-5, 50))
def test_a_span_is_a_half_open_range_or_nothing(start: int, stop: int) -> None:
    if 0 <= start <= stop:
        assert len(Span(PARTITION, start, stop)) == len(range(start, stop))
    else:
        with pytest.raises(ValueError, match="not a span"):
            Span(PARTITION, start, stop)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=4), st.integers(1, 12))
def test_parts_of_spans_are_all_of_them_in_order(given: list[tuple[int, int]], parts: int) -> None:
    spans = [Span(Partition("orders", at), start, start + length) for at, (start, length) in enumerate(given)]
    found = split(spans, parts)
    assert len(found) <= parts
    assert all(found)
    for span in spans:
        shares = [share for part in found for share in part if share.partition == span.partition]
        offsets = [offset for share in shares for offset in range(share.start, share.stop)]
        assert offsets == list(range(span.start, span.stop))
        assert max(map(len, shares)) <= -(-len(span) // parts)


@given(tallies, tallies, tallies)
def test_tallies_add_up_in_any_order(a: Tally, b: Tally, c: Tally) -> None:
    assert (a + b) + c == a + (b + c) == Tally.sum([c, a, b])
    assert a + Tally() == a
    assert (a + b).total == a.total + b.total


@given(tallies)
def test_a_total_counts_each_of_the_five_outcomes_once(tally: Tally) -> None:
    assert OUTCOMES == ("applied", "dead", "skipped", "lost", "absent")
    assert tally.total == tally.applied + tally.dead + tally.skipped + tally.lost + tally.absent


def test_a_position_is_balanced_when_its_tally_covers_every_offset() -> None:
    position = replace(draw.position(PARTITION, next_offset=12), first_offset=5, tally=Tally(applied=4, absent=3))
    assert position.balanced
    assert not replace(position, next_offset=13).balanced
    assert not replace(position, tally=Tally(applied=4, absent=4)).balanced


def test_things_are_named_the_way_operators_read_them() -> None:
    assert str(Span(PARTITION, 2, 9)) == "orders[3] 2..9"
    assert str(Owner("77-abc", "shop-1", draw.NOON)) == "run 77-abc on shop-1 since 2026-01-31 12:00:00 UTC"
