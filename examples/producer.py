"""A producer: fire and forget, callback, future; partitioners, interceptors, listeners.

python examples/producer.py
"""

from __future__ import annotations

from typing import Any

from common import BROKERS, make_topic, new_name

import tallymark as tm
from tallymark.produce.settings import java_partition

topic = make_topic(partitions=4)
delivered: list[tm.Metadata] = []


class Stamped:
    """An interceptor has any of these methods. Interceptors are called in their order."""

    acknowledged = 0

    def on_send(self, record: Any) -> Any:
        return record._replace(headers={"sent-by": "example"})

    def on_acknowledgement(self, metadata: tm.Metadata | None, error: tm.TallymarkError | None) -> None:
        Stamped.acknowledged += metadata is not None and error is None

    def close(self) -> None:
        print("acknowledged:", self.acknowledged)


def seen(metadata: tm.Metadata | None, error: tm.TallymarkError | None) -> None:
    print("callback:", error or metadata)


with tm.Producer(BROKERS, interceptors=[Stamped()], on_success=delivered.append) as producer:
    producer.send(topic, {"id": 41}, key="41")  # fire and forget: close() raises if it failed
    producer.send(topic, {"id": 42}, key="42", on_delivery=seen)
    place = producer.send(topic, {"id": 43}, key="43").result(timeout=30)
    print("future:", place.partition, place.offset)
    producer.send(topic, None, key="41")  # a tombstone
assert Stamped.acknowledged == len(delivered) == 4
assert place.partition == java_partition(b"43", 4)  # where Java's default partitioner puts this key


def by_last_digit(_topic: str, key: bytes | None, partitions: int) -> int:
    return int((key or b"0")[-1:]) % partitions


with tm.Producer(BROKERS, profile="fast", settings={"linger.ms": 5}, partitioner=by_last_digit) as producer:
    chosen = [producer.send(topic, b"", key=str(key)) for key in (10, 11, 12, 13, 14)]
    found = [one.result(timeout=30).partition for one in chosen]
    print("own partitioner:", found)
    assert found == [0, 1, 2, 3, 0]

with tm.Producer(BROKERS, transactional_id=new_name("shop")) as producer:
    with producer.transaction():  # visible at the end of the block, or never
        producer.send(topic, {"id": 44}, key="44")
        producer.send(topic, {"id": 45}, key="45")
    print("committed:", producer.statistics())

app = tm.App(brokers=BROKERS, store="sqlite:///example.db")
orders = app.template(topic)  # framework style: the topic is bound, the producer is shared
print("template:", orders.send({"id": 46}, key="46").result(timeout=30).topic == topic)
