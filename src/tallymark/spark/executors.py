"""A large batch in one pass: the tasks that read Kafka decode, pick columns and stage them, and report what they saw.

That goes where all tables append, and all that their functions do is to pick columns. What can't be decoded comes to
the driver as it is, for its dead letters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from tallymark import raw
from tallymark.arrived import Arrived
from tallymark.errors import DataRefused
from tallymark.formats import Decoder
from tallymark.read import Seen
from tallymark.shape import Staged, TableSpec, finish, table_schema, visible
from tallymark.source import Bytes, Json
from tallymark.spans import Partition
from tallymark.spark.plain import Pick, pick
from tallymark.spark.scan import complete
from tallymark.stores.staging import Loader, Stages, new_attempt, pieces

MOST_DOUBTFUL = 1000
"""Undecodable records of a task that the driver takes: if there are more, Spark does better with the whole batch."""
DDL = (
    "attempt BIGINT, rows BIGINT, refused STRING, size BIGINT, slow BIGINT, given_up BOOLEAN, doubtful BINARY, "
    "seen ARRAY<STRUCT<topic: STRING, partition: INT, records: BIGINT, last: TIMESTAMP>>"
)
SEEN = pa.list_(
    pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("records", pa.int64()), ("last", raw.TIMESTAMP)])
)
REPORT = pa.schema(
    [
        ("attempt", pa.int64()),
        ("rows", pa.int64()),
        ("refused", pa.string()),
        ("size", pa.int64()),
        ("slow", pa.int64()),
        ("given_up", pa.bool_()),
        ("doubtful", pa.binary()),
        ("seen", SEEN),
    ]
)


class _GivenUp(Exception):
    """Too much here is nothing for Arrow."""


@dataclass(frozen=True)
class Target:
    """A table that only picks columns, and where its rows are staged."""

    spec: TableSpec
    picks: Mapping[str, Pick]
    loader: Loader


@dataclass(frozen=True)
class Outcome:
    """What all tasks together have seen and staged; ``doubtful`` are records that are in no table yet."""

    seen: Mapping[Partition, Seen]
    staged: Mapping[str, Staged]
    doubtful: pa.Table
    size: int
    slow: int


@dataclass
class _Report:
    """What one task has to tell."""

    attempt: int = field(default_factory=new_attempt)
    rows: int = 0
    refused: str | None = None
    size: int = 0
    slow: int = 0
    given_up: bool = False
    doubtful: list[pa.Table] = field(default_factory=list)
    seen: dict[Partition, Seen] = field(default_factory=dict)

    def add(self, arrived: Arrived) -> None:
        self.size += arrived.size
        self.slow += arrived.slow
        self.rows += arrived.found.num_rows - len(arrived.errors)
        self.seen = merged(self.seen, raw.seen(arrived.found, ()))
        if arrived.errors:
            self.doubtful.append(raw.only(arrived.found, arrived.errors.keys()))
        if sum(table.num_rows for table in self.doubtful) > MOST_DOUBTFUL:
            raise _GivenUp

    def to_arrow(self) -> pa.RecordBatch:
        seen = [
            {"topic": one.topic, "partition": one.number, "records": found.records, "last": found.last_timestamp}
            for one, found in self.seen.items()
        ]
        doubtful = b"" if self.given_up else _packed(pa.concat_tables([raw.SCHEMA.empty_table(), *self.doubtful]))
        return pa.RecordBatch.from_pylist([vars(self) | {"seen": seen, "doubtful": doubtful}], REPORT)


@dataclass(frozen=True)
class OnePass:
    """Goes to the executors, and does it all there."""

    source: Json | Bytes
    topic: str | None
    batch: str
    without: Collection[tuple[Partition, int]]
    targets: Sequence[Target]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = _Report()
        try:
            self._stage(batches, report)
        except DataRefused as error:
            report.refused = str(error)
        except _GivenUp:
            report.given_up = True
        yield report.to_arrow()

    def _stage(self, batches: Iterable[pa.RecordBatch], report: _Report) -> None:
        from tallymark.stores.opening import open_sql

        decode = Decoder(self.source)
        with closing(open_sql(self.targets[0].loader.url)) as store, store.transaction() as connection:
            for piece in pieces(batches):
                arrived = Arrived.of(raw.without(complete(piece, self.topic), self.without), decode)
                report.add(arrived)
                good = raw.leave_out(arrived.records, arrived.errors.keys())
                for target in self.targets if good.num_rows else ():
                    rows = visible(finish(target.spec, pick(good, target.picks), self.batch).puts)
                    target.loader.put(store.dialect, connection, rows, report.attempt)

    def run(self, records: DataFrame) -> Outcome | None:
        """Have it done; None if a task has given up."""
        reports = records.mapInArrow(self, DDL).toArrow().to_pylist()
        if any(report["given_up"] for report in reports):
            return None
        staged = {target.spec.name: target.loader.staged(reports) for target in self.targets}
        seen: Mapping[Partition, Seen] = {}
        for report in reports:
            seen = merged(seen, {_partition(one): Seen(one["records"], 0, one["last"]) for one in report["seen"]})
        doubtful = pa.concat_tables(_unpacked(report["doubtful"]) for report in reports)
        size, slow = (sum(report[name] for report in reports) for name in ("size", "slow"))
        return Outcome(seen, staged, doubtful, size, slow)


def targets(
    stages: Stages, tables: Iterable[tuple[TableSpec, Mapping[str, Pick]]], schemas: Mapping[str, pa.Schema]
) -> list[Target]:
    """A staging table for each of the tables."""
    made: list[Target] = []
    with stages.kept(target.loader.name for target in made):
        for spec, picks in tables:
            made.append(Target(spec, picks, stages.open(table_schema(spec, schemas[spec.name]))))
    return made


def merged(seen: Mapping[Partition, Seen], later: Mapping[Partition, Seen]) -> dict[Partition, Seen]:
    """Counts of both, and the time of the last record of those that came later."""
    found = dict(seen)
    for partition, one in later.items():
        before = found.get(partition, Seen())
        found[partition] = Seen(before.records + one.records, before.dead + one.dead, one.last_timestamp)
    return found


def _partition(report: Mapping[str, Any]) -> Partition:
    return Partition(report["topic"], report["partition"])


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _unpacked(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()
