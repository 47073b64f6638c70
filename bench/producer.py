"""Records per second from ``send`` to the last report: our producer beside a loop with confluent_kafka's own.

The contenders write to the same topic with the same settings. The loop by hand has a callback for each record that
looks for an error, and polls after each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer

import tallymark as tm
from bench.harness.command import Command, run
from bench.harness.race import Comparison, Course, Idle, Lap, race
from bench.harness.records import PARTITIONS
from bench.harness.servers import Servers
from tallymark.kafka.brokers import Brokers
from tallymark.produce.settings import FAST, NO_LOSS, Profile

TOPIC = "bench"
VALUE = b'{"id": 4711, "customer": "customer-00042, somewhere over the rainbow", "amount": 47.11, "at": "2026-01-01"}'
KEYS = [f"customer-{number}" for number in range(1000)]
BY_HAND = "by hand"


def by_hand(brokers: str, profile: Profile, records: int) -> None:
    """With every report looked at."""
    producer = Producer({"bootstrap.servers": brokers, **profile.effective({})})
    delivered, failed = 0, 0

    def seen(error: Any, _message: Any) -> None:
        nonlocal delivered, failed
        if error is not None:
            failed += 1
        else:
            delivered += 1

    for number in range(records):
        while True:
            try:
                producer.produce(TOPIC, VALUE, KEYS[number % 1000], on_delivery=seen)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    producer.flush()
    assert (delivered, failed) == (records, 0)


def fire_and_forget(brokers: str, profile: Profile, records: int) -> None:
    producer = tm.Producer(brokers, profile=profile)
    for number in range(records):
        producer.send(TOPIC, VALUE, key=KEYS[number % 1000])
    producer.flush()
    assert producer.statistics().delivered == records
    producer.close()


def callbacks(brokers: str, profile: Profile, records: int) -> None:
    delivered = 0

    def seen(_metadata: tm.Metadata | None, error: tm.TallymarkError | None) -> None:
        nonlocal delivered
        delivered += error is None

    with tm.Producer(brokers, profile=profile) as producer:
        for number in range(records):
            producer.send(TOPIC, VALUE, key=KEYS[number % 1000], on_delivery=seen)
    assert delivered == records


def futures(brokers: str, profile: Profile, records: int) -> None:
    with tm.Producer(brokers, profile=profile) as producer:
        sent = [producer.send(TOPIC, VALUE, key=KEYS[number % 1000]) for number in range(records)]
        assert all(one.result().topic == TOPIC for one in sent)


SENDERS: dict[str, Callable[[str, Profile, int], None]] = {
    BY_HAND: by_hand,
    "send": fire_and_forget,
    "send, on_delivery": callbacks,
    "send, every future's result": futures,
}
COMPARISONS = [Comparison(name, BY_HAND) for name in SENDERS if name != BY_HAND]


@dataclass
class Sender(Idle):
    """One way to send all records."""

    name: str
    profile: Profile

    def lap(self, course: Course) -> Lap:
        began = time.perf_counter()
        SENDERS[self.name](course.brokers, self.profile, course.records)
        return Lap(course.records, time.perf_counter() - began)


def main() -> None:
    command = Command("producer", __doc__)
    command.options.add_argument("--rounds", type=int, default=5)
    command.options.add_argument("--records", type=int, default=200_000)
    chosen = command.parse()
    outcomes = []
    with Servers() as servers:
        at = Course(servers.brokers, TOPIC, chosen.records, url="", kind="none")
        Brokers(at.brokers).create(TOPIC, PARTITIONS)
        for profile in (NO_LOSS, FAST):
            contenders = [Sender(name, profile) for name in SENDERS]
            outcomes.append(race(profile.name, contenders, at, chosen.rounds, COMPARISONS))
        facts = servers.facts()
    command.publish_races(chosen, facts, outcomes)


if __name__ == "__main__":
    run(main)
