"""One table against Kafka: what became of every offset that the tally accounts for. Pure, and in bulk with Arrow.

``made`` is what the table's function makes of the records now, ``there`` what the table holds. Where rows have a key,
a record whose row is absent may be superseded by another of its key; that is settled at the end, when all keys are
known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallymark.audit.accounts import clipped, merged, uncovered
from tallymark.audit.scope import Difference, Origins, Scope
from tallymark.shape import TableSpec, _last_of_each
from tallymark.spans import Partition, Span

GOOD = (
    *("applied", "filtered", "superseded", "dead", "skipped", "lost", "compacted", "marker", "expired", "repeated"),
    "earlier",
)
BAD = ("missing", "duplicated", "foreign")
MOST_BAD = 1_000
"""Of each table, how many bad offsets are kept; all are counted."""
KEYS = pa.schema(
    [
        ("key", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("stands", pa.bool_()),
    ]
)
"""``stands``: its row is there, or it has deleted the row of its key."""


@dataclass
class Compared:
    """One table, as far as it was compared."""

    spec: TableSpec
    origins: Origins
    scopes: Mapping[Partition, Scope]
    counts: dict[Partition, Counter[str]] = field(default_factory=dict)
    bad: list[Difference] = field(default_factory=list)
    _keys: pa.Table = field(default_factory=KEYS.empty_table)

    def __post_init__(self) -> None:
        for partition, scope in self.scopes.items():
            self.counts[partition] = Counter()
            self._outside(scope)

    @property
    def wrong(self) -> int:
        return sum(count[kind] for count in self.counts.values() for kind in BAD)

    def compare(self, span: Span, records: pa.Table, made: pa.Table) -> None:
        """A piece: its records (offset, undecoded), and the rows made of them (offset, key, deleted, rows)."""
        scope, there = self.scopes[span.partition], _counted(self.origins.within(span))
        facts = _facts(records, made, there, _between(scope.account.letters, span))
        kinds = _kinds(facts, scope, keyed=bool(self.spec.key))
        facts = facts.append_column("kind", kinds)
        self._count(span.partition, facts)
        self.counts[span.partition][scope.empty] += len(span) - facts.num_rows
        if self.spec.key:
            self._keep_keys(scope, made, there)

    def settle(self) -> None:
        """Keys are all known: a record is missing where neither it nor one that supersedes it stands."""
        last = _last_of_each(self._keys.sort_by([("key", "ascending"), ("stands", "ascending")]), ["key"])
        lost = last.filter(pc.invert(last["stands"]))
        if not lost.num_rows or self._unsure():
            return
        for row in lost.group_by(["topic", "partition"]).aggregate([("offset", "distinct")]).to_pylist():
            partition, offsets = Partition(row["topic"], row["partition"]), sorted(row["offset_distinct"])
            self.counts[partition].update(superseded=-len(offsets), missing=len(offsets))
            self._show(Difference(partition, offset, "missing", 0, None) for offset in offsets)

    def _unsure(self) -> bool:
        """Whether a row of the same key may be there whose record is not known."""
        unknown = self.origins.unknown + self.origins.others
        if self.spec.write == "upsert" and self.spec.version is None:
            return unknown > 0
        return unknown > 0 or any(count["expired"] + count["earlier"] for count in self.counts.values())

    def _outside(self, scope: Scope) -> None:
        """What Kafka can't tell about: skips, losses, what expired; and rows that should not be there."""
        account, partition, count = scope.account, scope.partition, self.counts[scope.partition]
        whole = account.span
        losses = merged(clipped(loss, whole) for loss in account.losses)
        gone = clipped(Span(partition, 0, scope.log.start), whole)
        count.update(skipped=sum(map(len, account.skips)), lost=sum(map(len, losses)))
        count["expired"] = uncovered(gone, merged([*account.skips, *losses]))
        before = self.origins.within(Span(partition, 0, whole.start))
        if account.resets:
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
        found = facts.group_by("kind").aggregate([("kind", "count")])
        for kind, count in zip(found["kind"].to_pylist(), found["kind_count"].to_pylist(), strict=True):
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

    def _keep_keys(self, scope: Scope, made: pa.Table, there: pa.Table) -> None:
        """Of each key and partition the last record, which is the one that must stand; more where order is no rule."""
        rows = made.join(there, "offset", join_type="left outer")
        present = pc.is_valid(rows["there"])
        stands = pc.or_(present, pc.fill_null(rows["deleted"], False))
        new = pa.table(
            [
                rows["key"],
                pa.repeat(scope.partition.topic, rows.num_rows),
                pa.repeat(pa.scalar(scope.partition.number, pa.int32()), rows.num_rows),
                rows["offset"],
                stands,
            ],
            schema=KEYS,
        )
        late = _in_spans(rows["offset"], [*scope.account.fills, *scope.account.replays])
        kept, new = self._keys, pa.concat_tables([self._keys, new])
        if self.spec.write == "ignore" or self.spec.version is not None:
            self._keys = _last_of_each(new.sort_by([("key", "ascending"), ("stands", "ascending")]), ["key"])
            return
        # What was filled in or replayed came after its successors, and may have overwritten them.
        overwriting = new.slice(kept.num_rows).filter(pc.and_(late, present))
        places = ["key", "topic", "partition"]
        ordered = new.sort_by([(name, "ascending") for name in [*places, "offset", "stands"]])
        self._keys = pa.concat_tables(
            [_last_of_each(ordered, places), overwriting.set_column(3, "offset", _for_ever(overwriting))]
        )


def _for_ever(rows: pa.Table) -> pa.Array:
    """An offset behind all others, so that the row is never passed over for a later one."""
    return pa.repeat(pa.scalar(2**63 - 1, pa.int64()), rows.num_rows)


def _facts(records: pa.Table, made: pa.Table, there: pa.Table, letters: Sequence[int]) -> pa.Table:
    """A row for every offset of which anything is known."""
    puts = made.filter(pc.invert(pc.fill_null(made["deleted"], False))).group_by("offset").aggregate([("rows", "sum")])
    deletes = made.filter(pc.fill_null(made["deleted"], False)).group_by("offset").aggregate([])
    facts = records.append_column("record", pa.repeat(True, records.num_rows))
    facts = facts.join(puts.rename_columns({"rows_sum": "wanted"}), "offset", join_type="full outer")
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
    """The first of these that is true of an offset says what became of it."""
    there, wanted = facts["there"], facts["wanted"]
    none, some, fewer, same = pc.equal(there, 0), pc.greater(there, 0), pc.less(there, wanted), pc.equal(there, wanted)
    rules: list[tuple[Any, str]] = [
        (pc.and_(facts["letter"], none), "dead"),
        (facts["letter"], "foreign"),
        (pc.invert(facts["record"]), "compacted" if scope.compacts else "foreign"),
        (pc.and_(facts["undecoded"], none), "missing"),
        (pc.and_(pc.and_(same, none), pc.invert(facts["deletes"])), "filtered"),
        (same, "applied"),
        (pc.and_(fewer, none), "superseded" if keyed else "missing"),
        (fewer, "applied" if keyed else "missing"),
        (pc.and_(some, _in_spans(facts["offset"], scope.account.resets)), "repeated"),
    ]
    conditions = pc.make_struct(*(condition for condition, _ in rules))
    return pc.case_when(conditions, *(kind for _, kind in rules), "duplicated")


def _in_spans(offsets: Any, spans: Iterable[Span]) -> Any:
    found = pa.repeat(False, len(offsets))
    for span in spans:
        found = pc.or_(found, pc.and_(pc.greater_equal(offsets, span.start), pc.less(offsets, span.stop)))
    return found


def _counted(offsets: pa.Array) -> pa.Table:
    """Each offset once, and how many rows it has."""
    found = offsets.value_counts()
    return pa.table({"offset": found.field("values"), "there": found.field("counts")})


def _between(offsets: Sequence[int], span: Span) -> Sequence[int]:
    return offsets[bisect_left(offsets, span.start) : bisect_left(offsets, span.stop)]
