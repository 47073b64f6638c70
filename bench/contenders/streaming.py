"""What PySpark users write today: a streaming query whose foreachBatch writes by Spark's own JDBC. At least once."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.contenders.limits import kafka_options, parsed, running
from bench.contenders.workloads import PICKED, Workload
from bench.harness import jdbc
from bench.harness.race import Course, Idle, Lap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter


@dataclass
class ForeachBatch(Idle):
    """``tuned`` has our options for Kafka, rewritten inserts of 10,000 rows, and a time that is cast from text.

    Otherwise everything is as in Spark's guide. ``avro`` is the schema of values that are Avro, behind a registry's id.
    """

    name: str
    tuned: bool
    records: int = 250_000
    workload: Workload = PICKED
    avro: str | None = None

    def lap(self, course: Course) -> Lap:
        self.workload.prepare(course)
        with writer(
            course, self.workload, self.avro, tuned=self.tuned, maxOffsetsPerTrigger=str(self.records)
        ) as ready:
            seconds = timed(ready)
        return self.workload.lap(course, self.name, seconds)


def timed(ready: DataStreamWriter) -> float:
    """The seconds of a query from its start until it has read all that there is."""
    began = time.perf_counter()
    query = ready.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
        return time.perf_counter() - began
    finally:
        query.stop()


def decoded(course: Course, ddl: str, avro: str | None = None, *, tuned: bool, **options: str) -> DataFrame:
    """The stream of decoded values."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.avro.functions import from_avro

    spark = running()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    source = spark.readStream.format("kafka").options(**kafka_options(course, tuned=tuned))
    records = source.options(subscribe=course.topic, startingOffsets="earliest", **options).load()
    if avro is not None:
        # Spark's function knows no registry: users take the magic byte and the id off, and give it the schema.
        return records.select(from_avro(F.expr("substring(value, 6)"), avro).alias("value"))
    return parsed(records, ddl, tuned=tuned)


@contextmanager
def writer(
    course: Course, workload: Workload = PICKED, avro: str | None = None, *, tuned: bool, **options: str
) -> Iterator[DataStreamWriter]:
    """A query from the topic to the tables that is not started yet, with a checkpoint in a local directory.

    With several tables, each batch is persisted, so that it is decoded once.
    """
    values = decoded(course, workload.ddl, avro, tuned=tuned, **options)
    target = jdbc.spark_options(course, tuned=tuned)

    def write(rows: DataFrame, _: int) -> None:
        several = len(workload.outputs) > 1
        if several:
            rows.persist()
        for table, output in workload.tables(course).items():
            ready = rows if workload.in_query else output.function(rows)
            ready.write.format("jdbc").options(**{**target, "dbtable": table}).mode("append").save()
        if several:
            rows.unpersist()

    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as checkpoint:
        rows = workload.outputs[0].function(values) if workload.in_query else values
        yield rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
