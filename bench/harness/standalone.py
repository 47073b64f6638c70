"""A real Spark standalone cluster on loopback, from pyspark's own classes, and drivers that run pipelines on it.

A driver is this file as a program, in a process of its own: sessions on different clusters don't mix.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyspark

import tallymark as tm
from bench.contenders.ours import ALONE, JSON
from bench.contenders.workloads import picked
from tallymark.core.progress import Progress, Step
from tallymark.errors import TallymarkError
from tallymark.local.java import java_home_for_spark
from tallymark.local.sandbox.server import HOST, Server
from tallymark.spark.pipeline import Road

if TYPE_CHECKING:
    from typing import Self

ROOT = Path(__file__).parents[2]


class Daemon(Server):
    """A master or a worker. Executors are in its process group and end with it."""

    main_class: ClassVar[str]

    def prepare(self) -> None:
        self._home = Path(pyspark.__file__).parent

    def command(self) -> list[str | Path]:
        options = ["--host", HOST, "--port", str(self.port), "--webui-port", "0"]
        java: list[str | Path] = [java_home_for_spark() / "bin" / "java", "-Xmx256m", "-XX:+UseSerialGC"]
        return [*java, "-cp", f"{self._home}/jars/*", self.main_class, *options, *self.arguments()]

    def arguments(self) -> list[str]:
        return []

    def environment(self) -> dict[str, str]:
        return {
            "JAVA_HOME": str(java_home_for_spark()),
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_DIRS": str(self.directory / "blocks"),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_SCALA_VERSION": self._scala_version(),
        }

    def _scala_version(self) -> str:
        """Without it the launcher of executors looks for a build of Spark, which an installed one does not have."""
        (jar,) = (self._home / "jars").glob("spark-core_*.jar")
        return jar.name.removeprefix("spark-core_").partition("-")[0]

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self.port}"


class Master(Daemon):
    name = "spark-master"
    ready_line = "I have been elected leader"
    main_class = "org.apache.spark.deploy.master.Master"


class Worker(Daemon):
    """Has one core and 1 GB for an executor."""

    name = "spark-worker"
    ready_line = "Successfully registered with master"
    main_class = "org.apache.spark.deploy.worker.Worker"

    def __init__(self, directory: Path, master: str) -> None:
        super().__init__(directory, temporary=True)
        self._master = master

    def arguments(self) -> list[str]:
        return ["--cores", "1", "--memory", "1g", "--work-dir", str(self.directory / "work"), self._master]


class Standalone:
    """A cluster of so many workers, as a context manager."""

    def __init__(self, directory: Path, workers: int) -> None:
        self.master = Master(directory / "master", temporary=True)
        self.workers = [Worker(directory / f"worker-{number}", self.master.url) for number in range(workers)]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for server in (self.master, *self.workers):
                stack.enter_context(server)
            self._servers = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()


@dataclass(frozen=True)
class Order:
    """One run of a pipeline, for a driver: all that is in the topic, into the table."""

    brokers: str
    topic: str
    store: str
    table: str
    road: Road
    batch: int
    group: str = field(default_factory=lambda: f"cluster-{uuid.uuid4().hex[:8]}")


class Driver:
    """A process with a Spark session on a cluster. It obeys one order after the other, and ends when we do."""

    def __init__(self, cluster: Standalone) -> None:
        command = [sys.executable, "-m", "bench.harness.standalone", cluster.master.url]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        self.pid = self._process.pid

    def obey(self, order: Order) -> Iterator[dict[str, Any]]:
        """What it tells: ``applied`` of every batch as soon as it is committed, and the ``seconds`` of the run."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(asdict(order)) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            told: dict[str, Any] = json.loads(line)
            yield told
            if "seconds" in told:
                return
        raise TallymarkError(f"the driver ended with {self._process.wait()} in the middle of a run; it has said why")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def drive(master: str) -> None:
    """The driver's own program: orders come in, one in each line, and what was done goes out."""
    for line in sys.stdin:
        order = Order(**json.loads(line))
        pipeline = tm.Pipeline(
            group=order.group,
            source=tm.Kafka(order.brokers, order.topic, value=JSON),
            store=order.store,
            limits=tm.Limits(records=order.batch, seconds=600),
            road=order.road,
            membership=ALONE,
            spark={"spark.master": master, "spark.executor.memory": "1g"},
        )
        pipeline.table(order.table)(picked)
        committed = began = time.perf_counter()

        def step(reached: Step, progress: Progress) -> None:
            nonlocal committed
            if reached is Step.COMMITTED:
                committed = time.perf_counter()
                print(json.dumps({"applied": progress.tally.applied}), flush=True)

        pipeline.run("caught-up", on_step=step)
        print(json.dumps({"seconds": committed - began}), flush=True)


if __name__ == "__main__":
    drive(sys.argv[1])
