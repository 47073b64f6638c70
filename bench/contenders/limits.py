"""The limits of every contender: Spark's scan of the topic, the scan with decoding, and the database's bulk load."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.json as pa_json

from bench.harness import tables
from bench.harness.race import Course, Idle, Lap
from bench.harness.records import DDL, SCHEMA, Shape, pieces, rows
from bench.harness.tables import Mode
from tallymark.errors import TallymarkError
from tallymark.kafka.cluster import Cluster
from tallymark.stores.opening import open_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Decode = Callable[[DataFrame], DataFrame]

OURS_ALONE = "includeHeaders"
"""The option of the pipeline that makes a scan slower; the races without headers leave it out."""


@dataclass
class Scan(Idle):
    """Spark reads the topic and discards it, decoded or not."""

    name: str
    decode: Decode | None = None
    tuned: bool = True

    def lap(self, course: Course) -> Lap:
        records = scan(running(), course, tuned=self.tuned)
        began = time.perf_counter()
        (self.decode(records) if self.decode else records).write.format("noop").mode("overwrite").save()
        return Lap(course.records, time.perf_counter() - began)


@dataclass
class BulkLoad(Idle):
    """Rows that are in memory already go to the database, in transactions of so many rows; no Kafka, no Spark."""

    name: str
    mode: Mode = "append"
    shape: Shape = "small"
    most: int = 250_000

    def lap(self, course: Course) -> Lap:
        tables.prepare(course, self.mode)
        seconds = 0.0
        with closing(open_sql(course.url)) as store:
            store.create_tables([tables.spec(course, self.mode)], {course.table: SCHEMA})
            for start, stop in pieces(course.records, self.most):
                found = rows(start, stop, course.records, self.shape)
                ready = found.sort_by("id") if self.mode == "upsert" else found
                began = time.perf_counter()
                tables.put(store, course, self.mode, ready)
                seconds += time.perf_counter() - began
        return tables.lap(course, self.name, course.records, seconds)


def running() -> SparkSession:
    """The session that the race has started."""
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession()
    if found is None:
        raise TallymarkError("a race with Spark needs a session before it starts")
    return found


def scan(spark: SparkSession, course: Course, *, tuned: bool) -> DataFrame:
    """The whole topic as a batch, with our options or with Spark's own."""
    ends = {"startingOffsets": "earliest", "endingOffsets": "latest"}
    reader = spark.read.format("kafka").options(**kafka_options(course, tuned=tuned))
    return reader.options(subscribe=course.topic, **ends).load()


def kafka_options(course: Course, *, tuned: bool) -> dict[str, str]:
    from tallymark.spark import access
    from tallymark.spark.scan import KAFKA_OPTIONS

    ours = {name: value for name, value in KAFKA_OPTIONS.items() if name != OURS_ALONE}
    fixed = {"kafka.group.id": f"{course.topic}-spark"}
    return {**access.options(Cluster(course.brokers)), **({**ours, **fixed} if tuned else {})}


def from_json(records: DataFrame) -> DataFrame:
    return parsed(records, DDL, tuned=True).select("value.*")


def parsed(records: DataFrame, ddl: str, *, tuned: bool) -> DataFrame:
    """The values as a struct. ``tuned`` parses the time as text and casts it, which is much faster."""
    from pyspark.sql import functions as F  # noqa: N812

    parsed_as = ddl.replace("TIMESTAMP", "STRING") if tuned else ddl
    value = F.from_json(F.col("value").cast("string"), parsed_as)
    found = records.select(value.alias("value"))
    if not tuned:
        return found
    return found.withColumn("value", F.col("value").withField("at", F.col("value.at").cast("timestamp")))


def arrow_json(records: DataFrame) -> DataFrame:
    """By Arrow's parser, in Python workers."""
    return records.select("value").mapInArrow(_with_arrow, DDL)


def _with_arrow(batches: Iterable[Any]) -> Iterable[Any]:
    plain = pa.schema([one if one.name != "at" else pa.field("at", pa.timestamp("us")) for one in SCHEMA])
    options = pa_json.ParseOptions(explicit_schema=plain, unexpected_field_behavior="ignore")
    for batch in batches:
        lines = pa.BufferReader(b"\n".join(batch.column(0).to_pylist()))
        found = pa_json.read_json(lines, parse_options=options)
        yield from found.cast(SCHEMA).to_batches()
