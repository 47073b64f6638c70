"""A program that runs a pipeline on separate executors and loses one in the middle of a batch.

Speculation is on, so that tasks also run twice. Settings come as JSON on the command line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tallymark import Json, Kafka, Limits, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPARK = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.speculation": "true",
    "spark.speculation.interval": "10ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "1ms",
}
KILLED_AT_CALL = 4
"""The first two calls analyse the function; the fourth is in the second batch, after the executors have read it."""


def executors() -> list[int]:
    """The executors among the descendants of this process."""
    listing = subprocess.run(["ps", "-wweo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    processes = [line.split(maxsplit=2) for line in listing.splitlines()[1:]]
    family = {str(os.getpid())}
    while more := {pid for pid, parent, *_ in processes if parent in family} - family:
        family |= more
    return [int(pid) for pid, _, *command in processes if pid in family and "ExecutorBackend" in " ".join(command)]


def main() -> None:
    settings = json.loads(sys.argv[1])
    pipeline = Pipeline(
        group=settings["group"],
        source=Kafka(settings["brokers"], settings["topic"], value=Json("id BIGINT")),
        store=settings["store"],
        limits=Limits(records=settings["batch"]),
        spark=SPARK,
    )
    calls = 0

    @pipeline.table("orders")
    def orders(records: DataFrame) -> DataFrame:
        nonlocal calls
        calls += 1
        if calls == KILLED_AT_CALL:
            victim, *_others = executors()
            os.kill(victim, signal.SIGKILL)
            print(f"killed {victim}", flush=True)
        return records.selectExpr("partition AS partition_id", "offset AS record_offset", "value.id + 0 AS id")

    pipeline.run("caught-up")
    print("caught up", flush=True)
    # The executors are being restarted; there is nothing to wait for.
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
