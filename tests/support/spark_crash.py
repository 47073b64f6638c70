"""A pipeline on Spark in a child process that kills itself: ``python -m tests.support.spark_crash``.

Arguments: brokers, topic, group, store URL, the step and the number of the batch at which it is killed, and ``road=``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

from tallymark import Limits
from tallymark.core.progress import Progress, Step
from tallymark.spark.pipeline import Road
from tests.support.pipelines import one_to_one

TIMEOUT = 120.0
BATCH = 20
"""Offsets of a batch, so that there are several."""


def run_until_killed(brokers: str, topic: str, group: str, store: str, step: Step, batch: int, road: Road) -> int:
    """Run the child to its end; returns its exit code, which is -9 if it was killed."""
    arguments = [brokers, topic, group, store, step.value, str(batch), road]
    child = subprocess.Popen(
        [sys.executable, "-m", __name__, *arguments], stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return child.wait(TIMEOUT)
    finally:
        # Its JVM ends by itself, later.
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def main(brokers: str, topic: str, group: str, store: str, step: str, batch: str, road: Road) -> None:
    def watch(passed: Step, progress: Progress) -> None:
        if passed is Step(step) and progress.batch.endswith(f"-{batch}"):
            os.kill(os.getpid(), signal.SIGKILL)

    settings = {"spark.master": "local[2]", "spark.driver.memory": "512m"}
    pipeline = one_to_one(brokers, topic, group, store, limits=Limits(records=BATCH), spark=settings, road=road)
    pipeline.run("caught-up", on_step=watch)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
