"""What a reset that goes back does to the tables of a group: which rows are there twice, or added again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tallymark.core.journal import BatchLine
from tallymark.core.spans import Partition, Span
from tallymark.core.tables import Write, WrittenTable
from tallymark.errors import BadInput
from tallymark.operate.reset import Planned

MEANINGS: Mapping[Write, str] = {
    "append": "will be there twice",
    "merge": "will be added again",
    "upsert": "no row twice; without a newer version, rows have older values until the group has caught up",
    "ignore": "no row twice: existing rows stay",
}
ADDING = ("append", "merge")
"""How tables are written in which a repeated record counts again."""
UNKNOWN_TABLES = (
    "the ledger knows no table of this group: what a handler writes by SQL of its own, or what was written before the "
    "ledger had version 5, is not recorded; appended rows will be there twice, and totals will be added again"
)


@dataclass(frozen=True)
class Repeated:
    """What repeated offsets do to a table. ``rows`` is about how many rows they made.

    ``unknown`` is the number of repeated offsets that are in no commit of the history.
    """

    table: WrittenTable
    rows: int
    unknown: int

    @property
    def words(self) -> str:
        meaning = MEANINGS[self.table.write]
        if self.table.write not in ADDING:
            return meaning
        known = f"about {self.rows:,} rows"
        if not self.unknown:
            return f"{known} {meaning}"
        rest = f"those of {self.unknown:,} offsets that the history no longer has"
        return f"{known} and {rest} {meaning}" if self.rows else f"the rows {rest.removeprefix('those ')} {meaning}"


def repeated(
    plan: Sequence[Planned], tables: Sequence[WrittenTable], history: Iterable[BatchLine], skips: Iterable[Span]
) -> list[Repeated]:
    """Estimate the rows that the plan repeats in each of these tables. The history is newest first.

    A commit that is repeated in part counts in proportion. Of commits of the same offsets the last one counts.
    """
    left = repeated_spans(plan)
    for skip in skips:
        # The records of an open skip have made no row.
        _take(left, skip)
    rows: dict[str, float] = {}
    for line in history:
        if not any(left.values()):
            break
        whole, taken = sum(map(len, line.spans)), sum(_take(left, span) for span in line.spans)
        for table, count in line.rows.items() if taken else ():
            rows[table] = rows.get(table, 0.0) + count * taken / whole
    unknown = sum(len(span) for spans in left.values() for span in spans)
    return [Repeated(table, round(rows.get(table.name, 0.0)), unknown) for table in tables]


def repeated_spans(plan: Sequence[Planned]) -> dict[Partition, list[Span]]:
    return {span.partition: [span] for planned in plan if (span := planned.read_again)}


def _take(left: dict[Partition, list[Span]], span: Span) -> int:
    """Remove the offsets of a span from those that are left. Returns how many of them were left."""
    rest, taken = list[Span](), 0
    for other in left.get(span.partition, ()):
        start, stop = max(span.start, other.start), min(span.stop, other.stop)
        if start >= stop:
            rest.append(other)
            continue
        taken += stop - start
        parts = Span(other.partition, other.start, start), Span(other.partition, stop, other.stop)
        rest += [part for part in parts if len(part)]
    if taken:
        left[span.partition] = rest
    return taken


def check_repeats(plan: Sequence[Planned], tables: Collection[WrittenTable]) -> None:
    """Refuse a plan that goes back over records that tables would count again."""
    offsets = sum(len(span) for spans in repeated_spans(plan).values() for span in spans)
    effects = {"append": "be there twice in {}", "merge": "be added again in {}"}
    names = {write: sorted(table.name for table in tables if table.write == write) for write in effects}
    said = " and ".join(effects[write].format(tables_named(found)) for write, found in names.items() if found)
    if offsets and said:
        raise BadInput(
            f"the reset repeats {offsets:,} offsets, whose rows would {said}; add --repeat if that is meant, or "
            "--truncate to empty the tables and start over"
        )


def tables_named(names: Sequence[str]) -> str:
    return f"table{'s' if len(names) > 1 else ''} {', '.join(names)}"
