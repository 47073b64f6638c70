"""Records per second from ``send`` to the last report: our producer beside a loop with confluent_kafka's own.

The contenders take turns in one run on the same topic, with the same settings. The loop by hand has a callback for each
record that looks for an error, and polls after each. What counts are the ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import tallymark as tm
from tallymark.local.sandbox import Sandbox
from tallymark.produce.settings import FAST, NO_LOSS, Profile

TOPIC, PARTITIONS = "bench", 4
VALUE = b'{"id": 4711, "customer": "customer-00042, somewhere over the rainbow", "amount": 47.11, "at": "2026-01-01"}'
KEYS = [f"customer-{number}" for number in range(1000)]
BY_HAND = "by hand"
Contender = Callable[[str, Profile, int], None]


def by_hand(brokers: str, profile: Profile, records: int) -> None:
    """With every report looked at, as one has to."""
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


CONTENDERS: dict[str, Contender] = {
    BY_HAND: by_hand,
    "send": fire_and_forget,
    "send, on_delivery": callbacks,
    "send, every future's result": futures,
}


def measure(brokers: str, profile: Profile, records: int, rounds: int) -> dict[str, list[float]]:
    """Records per second in every round, after one that counts for nobody."""
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for number in range(rounds + 1):
        for name, run in CONTENDERS.items():
            began = time.perf_counter()
            run(brokers, profile, records if number else records // 10)
            if number:
                rates[name].append(records / (time.perf_counter() - began))
    return rates


def report(profile: Profile, rates: dict[str, list[float]]) -> list[str]:
    lines = []
    for name, found in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(found, rates[BY_HAND], strict=True)]
        lines.append(
            f"| {profile.name} | {name} | {statistics.median(found) / 1000:,.0f} "
            f"| {min(found) / 1000:,.0f}-{max(found) / 1000:,.0f} "
            f"| {statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f}) |"
        )
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--records", type=int, default=200_000)
    options.add_argument("--write", type=Path, help="Put the table into this file, between the producer marks.")
    chosen = options.parse_args()
    lines = ["| profile | road | k records/s | spread | is, of by hand |", "|---|---|---:|---|---|"]
    with Sandbox() as box:
        brokers = box.kafka().brokers
        admin = AdminClient({"bootstrap.servers": brokers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
        for profile in (NO_LOSS, FAST):
            lines += report(profile, measure(brokers, profile, chosen.records, chosen.rounds))
    said = "\n".join([*lines, "", f"Medians of {chosen.rounds} rounds, in turns, {chosen.records:,} records each."])
    print(said)
    if chosen.write:
        before, _, rest = chosen.write.read_text().partition("<!-- producer -->")
        after = rest.partition("<!-- end of producer -->")[2]
        chosen.write.write_text(f"{before}<!-- producer -->\n{said}\n<!-- end of producer -->{after}")


if __name__ == "__main__":
    main()
