"""Replicas for tests: events sent to Kafka, pipelines that may kill themselves, and rows that can be compared.

``python -m tests.support.replicas`` is such a pipeline; its arguments are those of ``run_until_killed``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

from confluent_kafka import Producer

import tallymark as tm
from tallymark.core.progress import Progress, Step
from tests.support import truth
from tests.support.avro import prefix
from tests.support.debezium import DDL, NAMES, Event, as_avro, as_json

Form = Literal["json", "json with a schema", "avro"]
TIMEOUT = 180.0


def plain(row: Mapping[str, Any]) -> tuple[str | None, ...]:
    """A row as text, the same for every store."""
    return tuple(None if row[name] is None else _PLAIN.get(name, str)(row[name]) for name in NAMES)


def _time(value: Any) -> str:
    found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    found = found.astimezone(UTC).replace(tzinfo=None) if found.tzinfo else found
    return found.isoformat(timespec="microseconds")


_PLAIN = {
    "amount": lambda value: f"{Decimal(str(value)):.2f}",
    "day": lambda value: str(value)[:10],
    "made": _time,
    "seen": _time,
}


def replicated(url: str, table: str = "orders") -> list[tuple[str | None, ...]]:
    """The rows of a replica."""
    found = truth.rows(url, table, *NAMES)
    assert max(found.values(), default=1) == 1
    return ordered(plain(dict(zip(NAMES, row, strict=True))) for row in found)


def ordered(rows: Iterable[tuple[str | None, ...]]) -> list[tuple[str | None, ...]]:
    return sorted(rows, key=lambda row: int(str(row[0])))


def send(brokers: str, topic: str, partitions: int, events: Iterable[Event], form: Form, schema: int = 0) -> int:
    """Write the events in their order, those of a key to one partition. Returns how many there are."""
    producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 5})
    outcomes: list[Any] = []
    count = 0
    for count, event in enumerate(events, start=1):
        if form == "avro":
            value = None if event.value is None else prefix(schema) + as_avro(event.value)
        else:
            value = as_json(event.value, schema=form != "json")
        key = json.dumps({"id": event.id}).encode()
        producer.produce(topic, value, key, event.id % partitions, on_delivery=lambda error, _: outcomes.append(error))
        producer.poll(0)
        if count % 10_000 == 0:
            producer.flush(TIMEOUT)
    assert producer.flush(TIMEOUT) == 0
    assert not any(outcomes), next(filter(None, outcomes))
    return count


def replica(
    brokers: str, topic: str, group: str, store: str, form: Form, registry: str, batch: int, **settings: Any
) -> tm.Pipeline:
    value = tm.Debezium(tm.Avro(registry) if form == "avro" else tm.Json(DDL))
    source = tm.Kafka(brokers, topic, value=value, key=tm.Json("id BIGINT"))
    pipeline = tm.Pipeline(
        group=group, source=source, store=store, limits=tm.Limits(batch), membership=tm.Standalone(), **settings
    )
    pipeline.table("orders", write="replica")
    return pipeline


def run_until_killed(
    brokers: str, topic: str, group: str, store: str, form: Form, registry: str, batch: int, step: Step, number: int
) -> int:
    """Run the pipeline in a child that kills itself at a step of its n-th batch; returns its exit code."""
    arguments = [brokers, topic, group, store, form, registry, str(batch), step.value, str(number)]
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


def main(
    brokers: str, topic: str, group: str, store: str, form: Form, registry: str, batch: str, step: str, number: str
) -> None:
    def watch(passed: Step, progress: Progress) -> None:
        if passed is Step(step) and progress.batch.endswith(f"-{number}"):
            os.kill(os.getpid(), signal.SIGKILL)

    settings = {"spark.master": "local[2]", "spark.driver.memory": "512m"}
    pipeline = replica(brokers, topic, group, store, form, registry, int(batch), spark=settings)
    pipeline.run("caught-up", on_step=watch)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
