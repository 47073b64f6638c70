"""Streaming queries for tests: over files or a Kafka topic, stateless or stateful, each with its own checkpoint.

``python -m tests.support.streams`` runs one in a process that kills itself: its arguments are the
source (a directory of JSON files, or brokers and topic), the checkpoint, the store URL, and the step and the number of
the micro-batch at which it is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tallymark import Sink
from tallymark.core.progress import OnStep, Progress, Step, ignore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

TIMEOUT = 150
NAME = "sales"
ROWS = "id BIGINT, shop STRING, amount DOUBLE"


def put(folder: Path, name: str, *rows: dict[str, object]) -> None:
    """Add a file to the source, which is a micro-batch; it appears atomically."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{name}"
    hidden.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    hidden.rename(folder / f"{name}.json")


def files(spark: SparkSession, folder: str | Path, columns: str = ROWS) -> DataFrame:
    return spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).json(str(folder))


def kafka(spark: SparkSession, brokers: str, topic: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": brokers, "subscribe": topic, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger="10").load()
    return records.selectExpr("partition AS part", "offset AS off", "CAST(value AS STRING) AS value")


def totals(rows: DataFrame) -> DataFrame:
    """Stateful: the number of rows of each shop so far."""
    return rows.groupBy("shop").count()


def start(sink: Sink, rows: DataFrame, checkpoint: Path, mode: str = "append") -> StreamingQuery:
    """Read everything that is there now, then end."""
    writer = rows.writeStream.foreachBatch(sink.foreach_batch).option("checkpointLocation", str(checkpoint))
    return writer.outputMode(mode).trigger(availableNow=True).start()


def run(sink: Sink, rows: DataFrame, checkpoint: Path, mode: str = "append") -> None:
    """Run to the end; raises the query's failure."""
    query = start(sink, rows, checkpoint, mode)
    try:
        assert query.awaitTermination(TIMEOUT), "the query did not end"
    finally:
        query.stop()
        sink.close()


def sink_into(store: str, on_step: OnStep = ignore, name: str = NAME) -> Sink:
    sink = Sink(name, store=store, on_step=on_step)
    sink.table("sales")
    return sink


def run_until_killed(source: str, checkpoint: Path, store: str, step: Step, number: int) -> int:
    """Run the child to its end; returns its exit code, which is -9 if it was killed."""
    arguments = [source, str(checkpoint), store, step.value, str(number)]
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen([sys.executable, "-m", __name__, *arguments], stderr=said, start_new_session=True)
        try:
            return child.wait(TIMEOUT)
        finally:
            # Its JVM ends by itself, later.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            said.seek(0)
            print(said.read())


def main(source: str, checkpoint: str, store: str, step: str, number: str) -> None:
    from tallymark.spark.session import session

    def watch(passed: Step, progress: Progress) -> None:
        if passed is Step(step) and progress.batch.split("-")[1] == number:
            os.kill(os.getpid(), signal.SIGKILL)

    spark = session({"spark.master": "local[2]", "spark.driver.memory": "512m"})
    brokers, _, topic = source.partition("/") if not source.startswith("/") else ("", "", "")
    if topic:
        run(sink_into(store, watch), kafka(spark, brokers, topic), Path(checkpoint))
        return
    sink = Sink(NAME, store=store, on_step=watch)
    sink.table("totals", key="shop", write="upsert")
    run(sink, totals(files(spark, source)), Path(checkpoint), "update")


if __name__ == "__main__":
    main(*sys.argv[1:])
