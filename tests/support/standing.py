"""Groups with given positions, and services that continue from there."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from tallymark.core.claims import FirstClaim, PositionChanges
from tallymark.core.journal import NoteLine
from tallymark.core.spans import Partition, Position
from tallymark.errors import CommitRefused, TallymarkError
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.source import Kafka
from tallymark.service.consumer import Consumer
from tallymark.stores.opening import open_store
from tests.support.databases import execute, query

QUICK = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200, "fetch.wait.max.ms": 20}
TABLE = "CREATE TABLE seen (part INT, off BIGINT)"


def stand(brokers: str, store_url: str, group: str, topic: str, at: Mapping[int, int]) -> None:
    """A group with these positions and no live run."""
    asked = Brokers(brokers)
    topic_id, cluster = asked.find([topic])[topic].id, asked.cluster_id()
    first = {Partition(topic, number): FirstClaim(offset, topic_id, cluster) for number, offset in at.items()}
    store = open_store(store_url)
    store.create_ledger()
    store.journal().move(group, list(first), lambda *_: PositionChanges(first), "test", datetime.now(timezone.utc))
    store.close()


def standing(store_url: str, group: str) -> dict[int, Position]:
    """The positions of a group that reads one topic."""
    store = open_store(store_url)
    try:
        found = store.positions(group) if store.has_ledger() else {}
        return {one.partition.number: one for one in found.get(group, [])}
    finally:
        store.close()


def offsets(store_url: str, group: str) -> dict[int, int]:
    return {number: position.next_offset for number, position in standing(store_url, group).items()}


def journal(store_url: str, group: str, *kinds: str) -> list[NoteLine]:
    store = open_store(store_url)
    try:
        return store.journal().notes(group, kinds)
    finally:
        store.close()


def seen(store_url: str) -> Counter[tuple[int, int]]:
    """The number of rows of each record."""
    return Counter((int(str(part)), int(str(off))) for part, off in query(store_url, "SELECT part, off FROM seen"))


class Service:
    """A consumer that appends a row for every record."""

    def __init__(
        self,
        brokers: str,
        store_url: str,
        group: str,
        topic: str,
        on_batch: Callable[[], None] = lambda: None,
        fetch: Mapping[str, Any] = QUICK,
        **settings: Any,
    ) -> None:
        source = Kafka(brokers, topic, settings=fetch)
        self.consumer = Consumer(group=group, source=source, store=store_url, **settings)
        self.error: TallymarkError | None = None
        self._on_batch = on_batch
        self._thread = threading.Thread(target=self._run, daemon=True)

    def catch_up(self, most: int = 500) -> None:
        self._work(most, "caught-up")

    def _work(self, most: int, until: Any) -> None:
        for batch in self.consumer.batches(most, until=until):
            try:
                with batch.transaction() as db:
                    self._on_batch()
                    db.write("seen", [{"part": one.partition, "off": one.offset} for one in batch.records])
            except CommitRefused:
                if not batch.abandoned:
                    raise

    def _run(self) -> None:
        try:
            self._work(500, "stopped")
        except TallymarkError as error:
            self.error = error

    def __enter__(self) -> Service:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.stop()
        self.wait()

    def wait(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


def make_table(store_url: str) -> None:
    execute(store_url, TABLE)


def numbers(count: int) -> list[str]:
    return [json.dumps({"id": number}) for number in range(count)]
