"""Stages the rows of large batches from the executors, so that they never pass through the driver.

If all tables append and their functions only pick columns, tasks read, decode and stage in one pass. Records that they
can't decode are sent to the driver undecoded, for their dead letters.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from tallymark.core import raw
from tallymark.core.records import PartitionCounts, merged
from tallymark.core.spans import Partition
from tallymark.core.tables import (
    HIDDEN,
    OFFSET,
    PARTITION,
    PROVENANCE,
    TIMESTAMP,
    TOPIC,
    Staged,
    TableSpec,
    finish,
    table_schema,
    visible,
)
from tallymark.errors import BatchTooLarge, DataRefused, Unreachable
from tallymark.formats.decoded import DecodedRecords
from tallymark.formats.json import JsonDecoder
from tallymark.formats.value import Bytes, Json
from tallymark.spark.decode import column
from tallymark.spark.plans import Pick, pick
from tallymark.spark.scan import complete
from tallymark.stores.sql.staging import Loader, Stages, new_attempt, pieces

AGE, RANK = "_tallymark_age", "_tallymark_rank"
STAGED = "attempt BIGINT, rows BIGINT, refused STRING"


def can_stage() -> bool:
    """Whether pandas is installed, which Spark requires for mapInArrow although it does not use it."""
    return importlib.util.find_spec("pandas") is not None


def stage(stages: Stages, spec: TableSpec, rows: DataFrame, schema: pa.Schema, batch: str) -> tuple[Staged, DataFrame]:
    """Write rows, given with their hidden columns, to a staging table. Also returns the tasks' reports.

    Only the reports travel to the driver.
    """
    if spec.deletes is not None:
        raise BatchTooLarge(f"table {spec.name} deletes rows, which only the driver can do")
    if spec.write != "append":
        rows = one_per_key(spec, rows)
    if spec.provenance:
        origin = [F.col(TOPIC), F.col(PARTITION), F.col(OFFSET), F.lit(batch)]
        rows = rows.withColumns(dict(zip(PROVENANCE, origin, strict=True)))
    columns = table_schema(spec, schema)
    loader = replace(stages.open(columns), key=spec.key)
    # PySpark's mapInArrow does not accept names with dots; the loader knows the names.
    numbered = [column(name).alias(f"_{at}") for at, name in enumerate(columns.names)]
    reports = rows.select(*numbered).mapInArrow(loader, STAGED)
    with stages.kept([loader.name]):
        return loader.staged(reports.toArrow().to_pylist()), reports


def check_reached(error: Exception) -> None:
    """Raise ``Unreachable`` if a task could not reach the store, which Spark reports like a failed function."""
    _, unreachable, words = str(error).partition(f"{Unreachable.__module__}.{Unreachable.__name__}: ")
    if unreachable:
        raise Unreachable(f"an executor could not stage rows: {words}") from error


def one_per_key(spec: TableSpec, rows: DataFrame) -> DataFrame:
    """The newest row of each key, or the oldest for ``write="ignore"``: ``finish``, distributed over the executors."""
    if OFFSET not in rows.columns:
        raise BatchTooLarge(f"table {spec.name} merges records, and only the driver can check the keys of merged rows")
    key = [column(name) for name in spec.key]
    in_partition = Window.partitionBy(*key, TOPIC, PARTITION)
    # A timestamp lower than that of an earlier offset counts as the highest before it.
    rows = rows.withColumn(AGE, F.max(TIMESTAMP).over(in_partition.orderBy(OFFSET)))
    others = [name for name in rows.columns if name not in (*HIDDEN, AGE, *spec.key)]
    version = [column(spec.version).desc_nulls_last()] if spec.version else []
    ages = [_order(spec, name, null_is_oldest=True) for name in (AGE, TOPIC, PARTITION, OFFSET)]
    columns = [_order(spec, name, null_is_oldest=False) for name in others]
    for window in (in_partition, Window.partitionBy(*key)):
        newest = window.orderBy(*version, *ages, *columns)
        rows = rows.withColumn(RANK, F.row_number().over(newest)).where(F.col(RANK) == 1)
    return rows


def _order(spec: TableSpec, name: str, *, null_is_oldest: bool) -> Column:
    """Sort order with the row to keep first: the newest, or the oldest for ``write="ignore"``."""
    if spec.write == "ignore":
        return column(name).asc_nulls_first() if null_is_oldest else column(name).asc_nulls_last()
    return column(name).desc_nulls_last() if null_is_oldest else column(name).desc_nulls_first()


MOST_DOUBTFUL = 1000
"""Maximum number of undecodable records from a task to the driver; with more, Spark decodes the batch faster."""
DDL = (
    "attempt BIGINT, rows BIGINT, refused STRING, size BIGINT, slow BIGINT, too_doubtful BOOLEAN, doubtful BINARY, "
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
        ("too_doubtful", pa.bool_()),
        ("doubtful", pa.binary()),
        ("seen", SEEN),
    ]
)


class _TooManyDoubtful(Exception):
    """Too many records of this task can't be decoded by Arrow."""


@dataclass(frozen=True)
class StagingTarget:
    """A table whose function only picks columns, and the loader of its staging table."""

    spec: TableSpec
    picks: Mapping[str, Pick]
    loader: Loader


@dataclass(frozen=True)
class StagingOutcome:
    """The combined reports of all tasks; ``doubtful`` records could not be decoded and are in no table yet."""

    seen: Mapping[Partition, PartitionCounts]
    staged: Mapping[str, Staged]
    doubtful: pa.Table
    size: int
    slow: int


@dataclass
class _Report:
    """The report of one task."""

    attempt: int = field(default_factory=new_attempt)
    rows: int = 0
    refused: str | None = None
    size: int = 0
    slow: int = 0
    too_doubtful: bool = False
    doubtful: list[pa.Table] = field(default_factory=list)
    seen: dict[Partition, PartitionCounts] = field(default_factory=dict)

    def add(self, arrived: DecodedRecords) -> None:
        self.size += arrived.size
        self.slow += arrived.slow
        self.rows += arrived.found.num_rows - len(arrived.errors)
        self.seen = merged(self.seen, raw.seen(arrived.found, ()))
        if arrived.errors:
            self.doubtful.append(raw.only(arrived.found, arrived.errors.keys()))
        if sum(table.num_rows for table in self.doubtful) > MOST_DOUBTFUL:
            raise _TooManyDoubtful

    def to_arrow(self) -> pa.RecordBatch:
        seen = [
            {
                "topic": partition.topic,
                "partition": partition.number,
                "records": counts.records,
                "last": counts.last_timestamp,
            }
            for partition, counts in self.seen.items()
        ]
        doubtful = b"" if self.too_doubtful else _packed(pa.concat_tables([raw.SCHEMA.empty_table(), *self.doubtful]))
        return pa.RecordBatch.from_pylist([vars(self) | {"seen": seen, "doubtful": doubtful}], REPORT)


@dataclass(frozen=True)
class OnePass:
    """The function that executors run: it decodes records and stages rows for all tables."""

    source: Json | Bytes
    topic: str | None
    batch: str
    without: Collection[tuple[Partition, int]]
    targets: Sequence[StagingTarget]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = _Report()
        try:
            self._stage(batches, report)
        except DataRefused as error:
            report.refused = str(error)
        except _TooManyDoubtful:
            report.too_doubtful = True
        yield report.to_arrow()

    def _stage(self, batches: Iterable[pa.RecordBatch], report: _Report) -> None:
        from tallymark.stores.opening import open_sql

        decode = JsonDecoder(self.source)
        with closing(open_sql(self.targets[0].loader.url)) as store, store.transaction() as connection:
            for piece in pieces(batches):
                arrived = DecodedRecords.of(raw.without(complete(piece, self.topic), self.without), decode)
                report.add(arrived)
                good = raw.leave_out(arrived.records, arrived.errors.keys())
                for target in self.targets if good.num_rows else ():
                    rows = visible(finish(target.spec, pick(good, target.picks), self.batch).puts)
                    target.loader.put(store.dialect, connection, rows, report.attempt)

    def run(self, records: DataFrame) -> StagingOutcome | None:
        """Run on the executors; None if a task has given up."""
        reports = records.mapInArrow(self, DDL).toArrow().to_pylist()
        if any(report["too_doubtful"] for report in reports):
            return None
        staged = {target.spec.name: target.loader.staged(reports) for target in self.targets}
        seen: Mapping[Partition, PartitionCounts] = {}
        for report in reports:
            seen = merged(
                seen,
                {
                    _partition(counts): PartitionCounts(counts["records"], 0, counts["last"])
                    for counts in report["seen"]
                },
            )
        doubtful = pa.concat_tables(_unpacked(report["doubtful"]) for report in reports)
        size, slow = (sum(report[name] for report in reports) for name in ("size", "slow"))
        return StagingOutcome(seen, staged, doubtful, size, slow)


def targets(
    stages: Stages, tables: Iterable[tuple[TableSpec, Mapping[str, Pick]]], schemas: Mapping[str, pa.Schema]
) -> list[StagingTarget]:
    """Create a staging table for each table."""
    opened: list[StagingTarget] = []
    with stages.kept(target.loader.name for target in opened):
        for spec, picks in tables:
            opened.append(StagingTarget(spec, picks, stages.open(table_schema(spec, schemas[spec.name]))))
    return opened


def _partition(report: Mapping[str, Any]) -> Partition:
    return Partition(report["topic"], report["partition"])


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _unpacked(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()
