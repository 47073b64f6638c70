"""Finding the few records on which a function fails, by halving spans. Pure: whoever asks knows how to try."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tallymark.spans import Partition, Span

Try = Callable[[Span], str | None]
"""Does the work on a span alone; says what went wrong, or None."""


def poisonous(spans: Iterable[Span], attempt: Try, at_most: int) -> dict[tuple[Partition, int], str]:
    """The single records that fail by themselves, and why; the search ends when there are more than ``at_most``."""
    found: dict[tuple[Partition, int], str] = {}

    def halve(span: Span, *, fails: bool = False) -> bool:
        """Whether anything in the span fails. A single record is always tried: nothing is blamed on a guess."""
        if not len(span) or len(found) > at_most:
            return False
        if len(span) == 1 or not fails:
            error = attempt(span)
            if error is None:
                return False
            if len(span) == 1:
                found[span.partition, span.start] = error
                return True
        middle = (span.start + span.stop) // 2
        first = halve(Span(span.partition, span.start, middle))
        # When the first half is fine, it must be the second.
        return halve(Span(span.partition, middle, span.stop), fails=not first) or first

    for span in spans:
        halve(span)
    return found
