"""Pipelines on Spark for tests: created in one line, run in the background, and inspected with SQL."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tallymark import Json, Kafka, Pipeline, Standalone, Tally
from tallymark.core.progress import OnStep, ignore
from tallymark.run.until import Until
from tests.support import databases
from tests.support.background import Background

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


def next_offsets(url: str) -> dict[int, int]:
    found = databases.query(url, "SELECT partition_id, next_offset FROM tallymark_positions")
    return {int(str(partition)): int(str(offset)) for partition, offset in found}


def exceptions(url: str) -> list[tuple[object, ...]]:
    return databases.query(
        url,
        "SELECT kind, partition_id, start_offset, stop_offset FROM tallymark_exceptions "
        "ORDER BY partition_id, start_offset",
    )


class RunningPipeline(Background[Tally]):
    """A run of a pipeline that starts immediately."""

    def __init__(self, pipeline: Pipeline, until: Until = "stopped", on_step: OnStep = ignore) -> None:
        self._open = ExitStack()
        self._loop = pipeline._loop(self._open.enter_context(pipeline.setup.destination()), on_step)
        self.run = self._loop.job.owner.run
        super().__init__(lambda: self._loop.run(until), self._loop.stop)
        self.start()

    def close(self) -> None:
        super().close()
        self._open.close()
