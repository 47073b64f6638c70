"""A member of a group that writes every record it gets, so that a missing or repeated record is visible.

It runs in a thread (``Working``) or in a child process (``start``), which can be killed and stopped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import tallymark as tm
from tallymark.errors import Fenced, Unreachable
from tallymark.kafka.membership import Group, Standalone
from tallymark.service.batch import Batch
from tallymark.service.consumer import Consumer
from tests.support.background import Background
from tests.support.children import PROCESSES

log = logging.getLogger(__name__)

TIMEOUT = 30.0
QUICK: dict[str, Any] = {
    "session.timeout.ms": 2_000,
    "heartbeat.interval.ms": 200,
    "topic.metadata.refresh.interval.ms": 500,
}
COUNTERS = "CREATE TABLE counters (run VARCHAR(64) PRIMARY KEY, n BIGINT NOT NULL)"


@dataclass(frozen=True)
class Spec:
    """The settings of a member."""

    brokers: str
    store: str
    group: str
    topics: str | Sequence[str]
    name: str = "member"
    most: int = 200
    start: str = "uncommitted-earliest"
    settings: Mapping[str, Any] = field(default_factory=lambda: QUICK)
    membership: Group | Standalone = field(default_factory=Group)
    handler_seconds: float = 0.0
    logs: Path | None = None

    def consumer(self) -> Consumer:
        source = tm.Kafka(self.brokers, self.topics, value=tm.Json("number BIGINT"), settings=self.settings)
        return Consumer(group=self.group, source=source, store=self.store, start=self.start, membership=self.membership)


def work(consumer: Consumer, spec: Spec, inside: Callable[[Batch], None]) -> None:
    """Process batch after batch. After a fenced batch continue with the next one; retry transient failures."""
    for batch in consumer.batches(spec.most):
        deadline = time.monotonic() + TIMEOUT
        while not batch.committed:
            try:
                with batch.transaction() as db:
                    put(db, batch, spec.name)
                    inside(batch)
            except Fenced as error:
                log.warning("fenced: %s", error)
                break
            except Unreachable as error:
                log.warning("again: %s", error)
                if time.monotonic() > deadline:
                    raise


def put(db: Any, batch: Batch, name: str) -> None:
    """Write a row without a key for each record, and a counter: neither hides a repetition.

    On SQL databases as Arrow, with which the next batch is fetched ahead; on Redis from Python objects.
    """
    if hasattr(db, "rpush"):
        seen = [f"{one.value['number']} {one.topic} {one.partition} {one.offset}" for one in batch.records]
        db.rpush("seen", *seen)
        db.incrby("counter", len(seen))
    elif len(batch):
        found = batch.to_arrow()
        places = {"topic": found["topic"], "partition_id": found["partition"], "record_offset": found["offset"]}
        numbers = pc.struct_field(found["value"], "number")
        db.write("seen", pa.table({"number": numbers, **places, "run": pa.repeat(name, len(found))}))
        if not db.execute("UPDATE counters SET n = n + :k WHERE run = :run", {"k": len(found), "run": name}).rowcount:
            db.execute("INSERT INTO counters (run, n) VALUES (:run, :k)", {"k": len(found), "run": name})


class Working(Background[None]):
    """A member that starts immediately. ``inside`` is called in every transaction, before it commits."""

    def __init__(self, spec: Spec, inside: Callable[[Batch], None] = lambda _: None) -> None:
        self.spec = spec
        self.consumer = spec.consumer()
        super().__init__(lambda: self.take(inside), self.consumer.stop)
        self.start()

    def take(self, inside: Callable[[Batch], None]) -> None:
        work(self.consumer, self.spec, inside)


def start(spec: Spec) -> Any:
    """The same in a child process, which leaves on SIGTERM; returns the process."""
    process = PROCESSES.Process(target=_process, args=(spec,), name=spec.name, daemon=True)
    process.start()
    return process


def _process(spec: Spec) -> None:
    if spec.logs is not None:
        form = f"%(asctime)s {spec.name} %(name)s %(message)s"
        logging.basicConfig(filename=spec.logs / f"{spec.name}.log", level=logging.INFO, format=form)
    try:
        work(spec.consumer(), spec, lambda _: time.sleep(spec.handler_seconds))
    except BaseException:
        log.exception("ended by an error")
        raise
