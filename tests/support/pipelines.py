"""Pipelines on Spark for tests: created in one line, run in the background, and inspected with SQL."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tallymark import Json, Kafka, Pipeline, Standalone, Tally
from tallymark.core.progress import OnStep, ignore
from tallymark.errors import TallymarkError
from tallymark.run.loop import Until
from tests.support import databases

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIMEOUT = 60.0
ORDERS = Json("id BIGINT, name STRING")
UNBALANCED = (
    "SELECT topic, partition_id FROM tallymark_positions "
    "WHERE applied + dead + skipped + lost + absent <> next_offset - first_offset"
)


def copied(records: DataFrame) -> DataFrame:
    """A row for every record, with the record's coordinates."""
    return records.selectExpr("value.id", "value.name", "partition AS part", "offset AS off")


def one_to_one(brokers: str, topic: str, group: str, store: str, **settings: Any) -> Pipeline:
    """A pipeline that appends a row for each record to the table ``orders``.

    It is standalone by default, because joining a group takes time.
    """
    settings.setdefault("membership", Standalone())
    pipeline = Pipeline(group=group, source=Kafka(brokers, topic, value=ORDERS), store=store, **settings)
    pipeline.table("orders")(copied)
    return pipeline


def coordinates(url: str, table: str = "orders") -> list[tuple[int, int]]:
    """(partition, offset) of every row, with repetitions."""
    return sorted(
        (int(str(part)), int(str(off))) for part, off in databases.query(url, f"SELECT part, off FROM {table}")
    )


def tables(url: str) -> set[str]:
    """The names of all tables and views."""
    source = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')",
        "postgresql": "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'",
        "mysql": "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()",
    }
    return {str(name) for (name,) in databases.query(url, source[url.split(":")[0].split("+")[0]])}


def next_offsets(url: str) -> dict[int, int]:
    found = databases.query(url, "SELECT partition_id, next_offset FROM tallymark_positions")
    return {int(str(partition)): int(str(offset)) for partition, offset in found}


def exceptions(url: str) -> list[tuple[object, ...]]:
    return databases.query(
        url,
        "SELECT kind, partition_id, start_offset, stop_offset FROM tallymark_exceptions "
        "ORDER BY partition_id, start_offset",
    )


def eventually(condition: Callable[[], bool], timeout: float = TIMEOUT) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Background:
    """A run in a separate thread, stopped at the end of the block in any case."""

    def __init__(self, pipeline: Pipeline, until: Until = "stopped", on_step: OnStep = ignore) -> None:
        self._open = ExitStack()
        destination = self._open.enter_context(pipeline.setup.destination())
        self._loop = pipeline._loop(destination, on_step)
        self._pool = ThreadPoolExecutor(1)
        self.run = self._loop.job.owner.run
        self.future: Future[Tally] = self._pool.submit(self._loop.run, until)

    def stop(self) -> Tally:
        """Stop the run, and wait."""
        self._loop.stop()
        return self.future.result(TIMEOUT)

    def result(self) -> Tally:
        return self.future.result(TIMEOUT)

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._loop.stop()
        with suppress(TallymarkError):
            self.future.exception(TIMEOUT)
        self._pool.shutdown()
        self._open.close()
