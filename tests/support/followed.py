"""Orders whose schema gets a field with each version, and pipelines that follow it and may kill themselves.

``python -m tests.support.followed`` is such a pipeline; its arguments are those of ``run_until_killed``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import tallymark as tm
from tallymark.core.progress import Progress, Step
from tallymark.formats.registry import Schemas
from tallymark.formats.registry_server import Registry
from tests.support.avro import ORDER, framed, text
from tests.support.background import wait_for
from tests.support.databases import query
from tests.support.kafka import Topics

TIMEOUT = 180.0
PARTITIONS = 2
ROUND = 30
"""Records of each version."""


def order(version: int) -> dict[str, Any]:
    """The schema with the fields ``f2`` to that of this version."""
    more = [{"name": f"f{n}", "type": ["null", "long"], "default": None} for n in range(2, version + 1)]
    return {**ORDER, "fields": [*ORDER["fields"], *more]}


def value(version: int, id: int) -> dict[str, Any]:
    return {"id": id, "name": f"n{id}", **{f"f{n}": id * 10 + n for n in range(2, version + 1)}}


def send(brokers: str, topic: str, registry: str, version: int) -> None:
    """Register a version of the schema, and write records with it."""
    id = Schemas.of(Registry(registry)).register(f"{topic}-value", "AVRO", text(order(version))).id
    assert id is not None
    numbers = range((version - 1) * ROUND, version * ROUND)
    records = [framed(id, order(version), value(version, number)) for number in numbers]
    Topics(brokers).send(topic, records, partitions=PARTITIONS)


def expected(versions: int) -> list[tuple[object, ...]]:
    """The rows of all records up to this version."""
    rows = [value(n // ROUND + 1, n) for n in range(versions * ROUND)]
    return [tuple(row.get(name) for name in ("id", "name", *columns(versions))) for row in rows]


def columns(versions: int) -> list[str]:
    return [f"f{n}" for n in range(2, versions + 1)]


def written(url: str, versions: int, table: str = "orders") -> list[tuple[object, ...]]:
    return query(url, f"SELECT {', '.join(['id', 'name', *columns(versions)])} FROM {table} ORDER BY id")


def following(
    brokers: str, topic: str, group: str, store: str, registry: str, *, computes: bool = False, **settings: Any
) -> tm.Pipeline:
    settings.setdefault("membership", tm.Standalone())
    source = tm.Kafka(brokers, topic, value=tm.Avro(registry))
    pipeline = tm.Pipeline(group=group, source=source, store=store, **settings)
    pipeline.table("orders", key="id", write="upsert", evolve="follow")(
        lambda records: records.where("value.id >= 0").select("value.*") if computes else records.select("value.*")
    )
    return pipeline


def run_until_killed(
    brokers: str, topic: str, group: str, store: str, registry: str, version: int, step: Step, small: int
) -> int:
    """Run the pipeline in a child, and write records of a new version when it has read all others.

    It kills itself at a step of the batch that has the first of these records; returns its exit code. ``small``: the
    most offsets of a batch that the driver reads.
    """
    arguments = [brokers, topic, group, store, registry, str(version), step.value, str(small)]
    child = subprocess.Popen(
        [sys.executable, "-m", __name__, *arguments], stderr=subprocess.DEVNULL, start_new_session=True
    )
    owned = f"SELECT count(*) FROM tallymark_positions WHERE owner LIKE '{child.pid}-%'"
    try:
        wait_for(lambda: child.poll() is not None or query(store, owned) == [(PARTITIONS,)], TIMEOUT)
        wait_for(lambda: child.poll() is not None or len(written(store, 1)) == (version - 1) * ROUND, TIMEOUT)
        send(brokers, topic, registry, version)
        return child.wait(TIMEOUT)
    finally:
        # Its JVM ends by itself, later.
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def main(brokers: str, topic: str, group: str, store: str, registry: str, version: str, step: str, small: str) -> None:
    from tallymark.spark import reader

    reader.SMALL = int(small)
    schemas = Schemas.of(Registry(registry))

    def watch(passed: Step, _: Progress) -> None:
        if passed is Step(step) and schemas.latest(f"{topic}-value").version == int(version):
            os.kill(os.getpid(), signal.SIGKILL)

    settings = {"spark.master": "local[2]", "spark.driver.memory": "512m"}
    following(brokers, topic, group, store, registry, spark=settings).run(on_step=watch)


if __name__ == "__main__":
    main(*sys.argv[1:])
