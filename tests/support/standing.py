"""Groups with given positions, and services that continue from there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from tallymark.core.claims import FirstClaim, PositionChanges
from tallymark.core.journal import NoteLine
from tallymark.core.spans import Partition, Position
from tallymark.errors import CommitRefused
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.source import Kafka
from tallymark.service.consumer import Consumer
from tallymark.stores.opening import open_store
from tests.support.background import Background
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
    store.journal().move(group, list(first), lambda *_: PositionChanges(first), "test", datetime.now(UTC))
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


class Service(Background[None]):
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
        self._on_batch = on_batch
        super().__init__(lambda: self._take(500, "stopped"), self.consumer.stop)

    def catch_up(self, most: int = 500) -> None:
        self._take(most, "caught-up")

    def _take(self, most: int, until: Any) -> None:
        for batch in self.consumer.batches(most, until=until):
            try:
                with batch.transaction() as db:
                    self._on_batch()
                    db.write("seen", [{"part": one.partition, "off": one.offset} for one in batch.records])
            except CommitRefused:
                if not batch.abandoned:
                    raise


def make_table(store_url: str) -> None:
    execute(store_url, TABLE)


def numbers(count: int) -> list[str]:
    return [json.dumps({"id": number}) for number in range(count)]
