"""Sends dead letters to another topic, at least once.

They are sent, acknowledged by all in-sync replicas, and then settled; after a crash in between they are sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from tallymark.core.journal import SENT, Letter
from tallymark.core.records import DeadLetter
from tallymark.core.spans import Tally
from tallymark.errors import CommitRefused
from tallymark.produce.producer import Producer
from tallymark.run.letters import MOST, OpenLetters
from tallymark.stores.contract import Store

PREFIX = "tallymark-"


def resend(letters: OpenLetters, ledger: Store, producer: Producer, topic: str, by: str) -> Tally:
    """Send these letters, each with its origin in the headers. Letters whose record Kafka has deleted stay dead."""
    total = Tally()
    while task := letters.next(MOST):
        for record in task.records:
            headers = origin(record, task.tried[record.partition, record.offset].group)
            producer.send(topic, record.value, key=record.key, headers=headers)
        producer.flush()
        _settle(ledger, [task.tried[record.partition, record.offset] for record in task.records], by)
        letters.drop(letter.id for letter in task.tried.values())
        total += Tally(applied=len(task.records), dead=len(task.gone))
    return total


def origin(record: DeadLetter, group: str) -> list[tuple[str, bytes | None]]:
    """Return the record's own headers and those of its origin, which replace the origin of an earlier resend."""
    origin = {
        "group": group,
        "topic": record.partition.topic,
        "partition": record.partition.number,
        "offset": record.offset,
        "error": record.error,
    }
    own = [header for header in record.headers if header[0] not in {PREFIX + name for name in origin}]
    return [*own, *((PREFIX + name, str(value).encode()) for name, value in origin.items())]


def _settle(ledger: Store, letters: Sequence[Letter], by: str) -> None:
    """Settle the letters together, or singly if some of them were settled by another process."""
    now = datetime.now(UTC)
    try:
        ledger.journal().settle(letters, SENT, by, now)
    except CommitRefused:
        for letter in letters:
            with suppress(CommitRefused):
                ledger.journal().settle([letter], SENT, by, now)
