"""Dead letters to another topic, for whoever can do more with them: at least once.

They are sent, acknowledged by all replicas, and then settled; a crash in between sends them again the next time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone

from tallymark.books import SENT, Letter
from tallymark.brokers import Brokers
from tallymark.errors import CommitRefused
from tallymark.openletters import MOST, OpenLetters, completed, place
from tallymark.producer import Producer
from tallymark.read import DeadLetter
from tallymark.spans import Tally
from tallymark.stores.store import Store

PREFIX = "tallymark-"


def resend(letters: OpenLetters, ledger: Store, brokers: Brokers, producer: Producer, topic: str, by: str) -> Tally:
    """Send these, each with where it comes from in its headers; what Kafka has deleted stays dead."""
    total = Tally()
    while found := letters.take(MOST):
        whole, gone = completed(found, ledger, brokers)
        group = {place(letter): letter.group for letter in found}
        for record in whole:
            headers = origin(record, group[record.partition, record.offset])
            producer.send(topic, record.value, key=record.key, headers=headers)
        producer.flush()
        missing = {(one.partition, one.offset) for one in gone}
        _settle(ledger, [letter for letter in found if place(letter) not in missing], by)
        letters.drop(letter.id for letter in found)
        total += Tally(applied=len(whole), dead=len(gone))
    return total


def origin(record: DeadLetter, group: str) -> list[tuple[str, bytes | None]]:
    """The record's own headers, and where it comes from; what an earlier journey says of that is left out."""
    said = {
        "group": group,
        "topic": record.partition.topic,
        "partition": record.partition.number,
        "offset": record.offset,
        "error": record.error,
    }
    own = [header for header in record.headers if header[0] not in {PREFIX + name for name in said}]
    return [*own, *((PREFIX + name, str(value).encode()) for name, value in said.items())]


def _settle(ledger: Store, letters: Sequence[Letter], by: str) -> None:
    """All at once, or one by one if somebody has settled some of them since they were taken."""
    now = datetime.now(timezone.utc)
    try:
        ledger.books().settle(letters, SENT, by, now)
    except CommitRefused:
        for letter in letters:
            with suppress(CommitRefused):
                ledger.books().settle([letter], SENT, by, now)
