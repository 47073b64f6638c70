"""Bisection finds exactly the records on which a function fails, and ends if there are too many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.spans import Partition, Span
from tallymark.spark.rows import bisect

NEVER = 1_000
spans = st.dictionaries(
    st.builds(Partition, st.just("orders"), st.integers(0, 4)), st.tuples(st.integers(0, 50), st.integers(0, 40))
).map(lambda found: [Span(partition, start, start + length) for partition, (start, length) in found.items()])
bad = st.sets(st.tuples(st.builds(Partition, st.just("orders"), st.integers(0, 4)), st.integers(0, 90)), max_size=12)


class Function:
    """Fails on every span with a bad record in it, and counts the calls."""

    def __init__(self, bad: set[tuple[Partition, int]]) -> None:
        self._bad = bad
        self.asked: list[Span] = []

    def __call__(self, span: Span) -> str | None:
        self.asked.append(span)
        worst = [at for partition, at in self._bad if partition == span.partition and span.start <= at < span.stop]
        return f"fails on {min(worst)}" if worst else None


@given(spans, bad)
def test_exactly_the_records_that_fail_by_themselves_are_found(
    spans: list[Span], bad: set[tuple[Partition, int]]
) -> None:
    function = Function(bad)
    found = bisect(spans, function, NEVER)
    assert found == {
        (span.partition, at): f"fails on {at}"
        for span in spans
        for at in range(span.start, span.stop)
        if (span.partition, at) in bad
    }
    assert all(len(span) for span in function.asked), "an empty span is no question"
    assert len(function.asked) <= len(spans) + len(found) * 2 * 6, "halving, not one by one"


@given(spans, bad, st.integers(0, 5))
def test_the_search_ends_with_the_first_one_too_many(
    spans: list[Span], bad: set[tuple[Partition, int]], at_most: int
) -> None:
    everything = bisect(spans, Function(bad), NEVER)
    function = Function(bad)
    found = bisect(spans, function, at_most)
    assert found == dict(list(everything.items())[: at_most + 1])
    if len(found) > at_most:
        last = list(found)[-1]
        asked = function.asked[-1]
        assert (asked.partition, asked.start, len(asked)) == (*last, 1), "nothing is tried after that"


def test_a_failure_that_needs_several_records_blames_none() -> None:
    assert bisect([Span(Partition("orders", 0), 0, 8)], lambda span: "too many" if len(span) > 2 else None, 9) == {}
