"""Verifies the demo: counts the records in Kafka and in the database independently, and compares each of them."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import text

from tallymark.core.spans import Position, Tally
from tallymark.errors import TallymarkError
from tallymark.operate.demo.settings import DemoSettings
from tallymark.operate.demo.totals import TotalsVerdict, expected_totals, stored_totals
from tallymark.stores.sql.ledger.read import read_group
from tallymark.stores.sql.store import SqlStore

PATIENCE = 120
Record = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True)
class PartitionVerdict:
    """One partition as counted by the ledger, by a plain consumer and in the tables."""

    position: Position
    records: int
    rows: int
    letters: int
    missing: int
    duplicated: int

    @property
    def holds(self) -> bool:
        tally = self.position.tally
        return (
            self.position.balanced
            and self.missing == self.duplicated == 0
            and (tally.applied, tally.dead) == (self.rows, self.letters)
            and self.records == tally.applied + tally.dead + tally.skipped + tally.lost
        )


@dataclass(frozen=True)
class DemoVerdict:
    partitions: list[PartitionVerdict]
    totals: TotalsVerdict
    kills: int
    seconds: float

    @property
    def holds(self) -> bool:
        records = bool(self.partitions) and all(partition.holds for partition in self.partitions)
        return records and not self.totals.wrong

    @property
    def tally(self) -> Tally:
        return Tally.sum(partition.position.tally for partition in self.partitions)

    def total(self, name: str) -> int:
        return sum(getattr(partition, name) for partition in self.partitions)


def judge(settings: DemoSettings, store: SqlStore, *, kills: int, seconds: float) -> DemoVerdict:
    kafka = committed_records(settings.brokers, settings.topic)
    rows, letters = _rows(store, settings.table), _letters(store, settings.group)
    held = Counter(rows) + Counter(letters)
    verdicts = []
    for position in _positions(store, settings.group):
        number = position.partition.number
        in_kafka = {record for record in kafka if record[0] == number}
        copies = Counter({record: count for record, count in held.items() if record[0] == number})
        verdicts.append(
            PartitionVerdict(
                position,
                records=len(in_kafka),
                rows=sum(1 for record in rows if record[0] == number),
                letters=sum(1 for record in letters if record[0] == number),
                missing=len(in_kafka - copies.keys()),
                # Extra copies, and rows that should not exist.
                duplicated=sum(count - (record in in_kafka) for record, count in copies.items()),
            )
        )
    totals = TotalsVerdict(expected_totals(kafka.values()), stored_totals(store, settings.totals))
    return DemoVerdict(verdicts, totals, kills, seconds)


def committed_records(brokers: str, topic: str) -> dict[Record, bytes | None]:
    """Read the value of every committed record, with a consumer that is independent of the pipeline."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": f"verdict-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    records: dict[Record, bytes | None] = {}
    ended: set[int] = set()
    deadline = time.monotonic() + PATIENCE
    while len(ended) < len(partitions):
        if time.monotonic() > deadline:
            raise TallymarkError(f"the brokers at {brokers} did not deliver all records within {PATIENCE} s")
        for message in consumer.consume(10_000, 0.5):
            if message.error():
                ended.add(int(message.partition() or 0))
            else:
                records[int(message.partition() or 0), int(message.offset() or 0)] = message.value()
    consumer.close()
    return records


def _rows(store: SqlStore, table: str) -> list[Record]:
    return _records(store, f"SELECT partition_id, record_offset FROM {table}", {})


def _letters(store: SqlStore, group: str) -> list[Record]:
    sql = "SELECT partition_id, record_offset FROM tallymark_dead_letters WHERE group_name = :group_name"
    return _records(store, sql, {"group_name": group})


def _records(store: SqlStore, sql: str, parameters: dict[str, str]) -> list[Record]:
    with store.look() as connection:
        return [(row[0], row[1]) for row in connection.execute(text(sql), parameters)]


def _positions(store: SqlStore, group: str) -> list[Position]:
    with store.look() as connection:
        return read_group(connection, group).get(group, [])
