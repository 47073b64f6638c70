"""What PySpark users write today: a streaming query whose foreachBatch writes by Spark's own JDBC. At least once."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.contenders.limits import from_json, from_json_plain, kafka_options, running
from bench.harness import jdbc, tables
from bench.harness.race import Course, Idle, Lap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter


@dataclass
class ForeachBatch(Idle):
    """``tuned`` has our options for Kafka, rewritten inserts of 10,000 rows, and a time that is cast from text.

    Otherwise everything is as in Spark's guide.
    """

    name: str
    tuned: bool
    records: int = 250_000

    def lap(self, course: Course) -> Lap:
        tables.prepare(course)
        with writer(course, tuned=self.tuned, maxOffsetsPerTrigger=str(self.records)) as ready:
            began = time.perf_counter()
            query = ready.trigger(availableNow=True).start()
            try:
                query.awaitTermination()
                seconds = time.perf_counter() - began
            finally:
                query.stop()
        return tables.lap(course, self.name, course.records, seconds)


@contextmanager
def writer(course: Course, *, tuned: bool, **options: str) -> Iterator[DataStreamWriter]:
    """A query from the topic to the table that is not started yet, with a checkpoint in a local directory."""
    spark = running()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    source = spark.readStream.format("kafka").options(**kafka_options(course, tuned=tuned))
    records = source.options(subscribe=course.topic, startingOffsets="earliest", **options).load()
    target = jdbc.spark_options(course, tuned=tuned)

    def write(rows: DataFrame, _: int) -> None:
        rows.write.format("jdbc").options(**target).mode("append").save()

    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as checkpoint:
        rows = (from_json if tuned else from_json_plain)(records)
        yield rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
