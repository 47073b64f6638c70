"""Compares a table with Kafka: classifies every offset that the tally accounts for. Pure, in bulk with Arrow.

``made`` are the rows that the table's function makes of the records now, ``there`` the rows that the table holds. With
a key, a record without a row may be superseded by another record of its key; this is decided at the end, when all keys
are known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallymark.core.spans import Partition, Span
from tallymark.core.tables import TableSpec
from tallymark.operate.audit.accounts import clipped, merged, uncovered
from tallymark.operate.audit.keys import KeyedRows
from tallymark.operate.audit.scope import Difference, Origins, Scope, in_spans

GOOD = (
    *("applied", "filtered", "superseded", "dead", "skipped", "lost", "compacted", "marker", "expired", "repeated"),
    "earlier",
)
BAD = ("missing", "duplicated", "foreign")
MOST_BAD = 1_000
"""Maximum number of bad offsets that are kept for each table; all are counted."""


@dataclass
class Compared:
    """The comparison of one table."""

    spec: TableSpec
    origins: Origins
    scopes: Mapping[Partition, Scope]
    counts: dict[Partition, Counter[str]] = field(default_factory=dict)
    bad: list[Difference] = field(default_factory=list)
    keys: KeyedRows = field(init=False)

    def __post_init__(self) -> None:
        self.keys = KeyedRows(self.spec)
        for partition, scope in self.scopes.items():
            self.counts[partition] = Counter()
            self._outside(scope)

    @property
    def wrong(self) -> int:
        return sum(count[kind] for count in self.counts.values() for kind in BAD)

    def compare(self, span: Span, records: pa.Table, made: pa.Table) -> None:
        """Compare a span: its records (offset, undecoded), and the rows made of them (offset, key, deleted, ...)."""
        scope, there = self.scopes[span.partition], _counted(self.origins.within(span))
        keyed = bool(self.spec.key)
        facts = _facts(records, made, there, _between(scope.account.letters, span), keyed=keyed)
        kinds = _kinds(facts, scope, keyed=keyed)
        facts = facts.append_column("kind", kinds)
        self._count(span.partition, facts)
        self.counts[span.partition][scope.empty] += len(span) - facts.num_rows
        if keyed:
            self.keys.keep(scope, made, there)

    def conclude(self) -> None:
        """Reclassify records whose keys turn out to be wrong. Call this when all keys are known."""
        for difference in self.keys.foreign():
            self._find(difference, "applied")
        if self.unsure is None:
            for difference in self.keys.missing():
                self._find(difference, "applied" if difference.rows else "superseded")

    @property
    def unsure(self) -> str | None:
        """Why rows of keys are not reported missing: the row of a key may come from an unknown record."""
        gone = 0 if self.keys.ordered else sum(counts["expired"] + counts["earlier"] for counts in self.counts.values())
        reasons = {
            f"{self.origins.unknown} rows have no provenance": self.origins.unknown,
            f"{self.origins.others} rows come from other partitions": self.origins.others,
            f"{gone} records have expired or are from before a reset": gone,
        }
        return " and ".join(why for why, count in reasons.items() if count and self.spec.key) or None

    def _find(self, difference: Difference, instead_of: str) -> None:
        self.counts[difference.partition].update({instead_of: -1, difference.kind: 1})
        self._show([difference])

    def _outside(self, scope: Scope) -> None:
        """Count offsets that can't be read from Kafka (skips, losses, expired), and rows that should not exist."""
        account, partition, count = scope.account, scope.partition, self.counts[scope.partition]
        whole = account.span
        losses = merged(clipped(loss, whole) for loss in account.losses)
        gone = clipped(Span(partition, 0, scope.log.start), whole)
        count.update(skipped=sum(map(len, account.skips)), lost=sum(map(len, losses)))
        count["expired"] = uncovered(gone, merged([*account.skips, *losses]))
        before = self.origins.within(Span(partition, 0, whole.start))
        if account.began_anew:
            count["earlier"] = len(before)
        else:
            self._foreign(partition, before)
        for skip in account.skips:
            self._foreign(partition, self.origins.within(skip))
        offsets = self.origins.offsets[partition]
        self._foreign(partition, offsets.filter(pc.greater_equal(offsets, whole.stop)))

    def _foreign(self, partition: Partition, offsets: pa.Array) -> None:
        self.counts[partition]["foreign"] += len(offsets)
        self._show(
            Difference(partition, offset, "foreign", rows, 0)
            for offset, rows in zip(*(column.to_pylist() for column in _counted(offsets).columns), strict=True)
        )

    def _count(self, partition: Partition, facts: pa.Table) -> None:
        kinds = facts.group_by("kind").aggregate([("kind", "count")])
        for kind, count in zip(kinds["kind"].to_pylist(), kinds["kind_count"].to_pylist(), strict=True):
            self.counts[partition][kind] += count
        wrong = facts.filter(pc.is_in(facts["kind"], value_set=pa.array(BAD)))
        self._show(
            Difference(partition, row["offset"], row["kind"], row["there"], row["wanted"])
            for row in wrong.sort_by("offset").slice(0, MOST_BAD).to_pylist()
        )

    def _show(self, differences: Iterable[Difference]) -> None:
        for difference in differences:
            if len(self.bad) >= MOST_BAD:
                return
            self.bad.append(difference)


def _facts(records: pa.Table, made: pa.Table, there: pa.Table, letters: Sequence[int], *, keyed: bool) -> pa.Table:
    """Return a row for every known offset. With a key, rows of a record with the same key count once."""
    deleted = pc.fill_null(made["deleted"], False)
    how = ("key", "count") if keyed else ("rows", "sum")
    puts = made.filter(pc.invert(deleted)).group_by("offset").aggregate([how])
    deletes = made.filter(deleted).group_by("offset").aggregate([])
    facts = records.append_column("record", pa.repeat(True, records.num_rows))
    facts = facts.join(puts.rename_columns({"_".join(how): "wanted"}), "offset", join_type="full outer")
    facts = facts.join(
        deletes.append_column("deletes", pa.repeat(True, deletes.num_rows)), "offset", join_type="full outer"
    )
    facts = facts.join(there, "offset", join_type="full outer")
    marked = pa.table({"offset": pa.array(letters, pa.int64()), "letter": pa.repeat(True, len(letters))})
    facts = facts.join(marked, "offset", join_type="full outer")
    defaults = {"undecoded": False, "record": False, "deletes": False, "letter": False, "wanted": 0, "there": 0}
    return pa.table(
        {"offset": facts["offset"]} | {name: pc.fill_null(facts[name], none) for name, none in defaults.items()}
    )


def _kinds(facts: pa.Table, scope: Scope, *, keyed: bool) -> pa.Array:
    """Classify offsets by the first rule that holds."""
    there, wanted = facts["there"], facts["wanted"]
    none, fewer, same = pc.equal(there, 0), pc.less(there, wanted), pc.equal(there, wanted)
    written = pc.add(in_spans(facts["offset"], scope.account.resets), 1)
    rules: list[tuple[Any, str]] = [
        (pc.and_(facts["letter"], none), "dead"),
        (facts["letter"], "foreign"),
        (pc.invert(facts["record"]), "compacted" if scope.compacts else "foreign"),
        (pc.and_(facts["undecoded"], none), "missing"),
        (pc.and_(pc.and_(same, none), pc.invert(facts["deletes"])), "filtered"),
        (same, "applied"),
        (pc.and_(fewer, none), "superseded" if keyed else "missing"),
        (fewer, "applied" if keyed else "missing"),
        (pc.less_equal(there, pc.multiply(wanted, written)), "repeated"),
    ]
    conditions = pc.make_struct(*(condition for condition, _ in rules))
    return pc.case_when(conditions, *(kind for _, kind in rules), "duplicated")


def _counted(offsets: pa.Array) -> pa.Table:
    """Return the distinct offsets, with the number of rows of each."""
    counts = offsets.value_counts()
    return pa.table({"offset": counts.field("values"), "there": counts.field("counts")})


def _between(offsets: Sequence[int], span: Span) -> Sequence[int]:
    return offsets[bisect_left(offsets, span.start) : bisect_left(offsets, span.stop)]
