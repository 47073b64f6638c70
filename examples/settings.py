"""The important settings, by Kafka's own names, and the settings that are refused.

python examples/settings.py
"""

from __future__ import annotations

from common import BROKERS, STORE, make_topic, new_name, send

import tallymark as tm

SETTINGS = {
    "session.timeout.ms": 6_000,  # a member without heartbeats for this long is considered dead
    "heartbeat.interval.ms": 500,  # the interval of heartbeats
    "max.poll.interval.ms": 60_000,  # a handler may take longer: polling continues
    "fetch.message.max.bytes": 1 << 20,  # the size of a fetch from one partition
    "fetch.wait.max.ms": 100,
    "connections.max.idle.ms": 540_000,
}
MEMBERSHIPS: list[tm.Group | tm.Standalone] = [
    tm.Group(strategy="range"),
    tm.Group(strategy="roundrobin"),
    tm.Group(strategy="cooperative-sticky"),  # the default
    tm.Group(instance="worker-7"),  # a static member
    tm.Standalone(),
]
REFUSED = {
    "enable.auto.commit": True,
    "auto.offset.reset": "latest",
    "isolation.level": "read_uncommitted",
    "partition.assignment.strategy": "range",
    "group.id": "shop",
}

topic = make_topic(partitions=2)
send(topic, range(20), partitions=2)
source = tm.Kafka(BROKERS, topic, value=tm.Json("id BIGINT"), settings=SETTINGS)
for membership in MEMBERSHIPS:
    consumer = tm.Consumer(
        group=new_name("shop"),
        source=source,
        store=STORE,
        start="uncommitted-earliest",  # the reset policy
        membership=membership,
    )
    sizes = []
    for batch in consumer.batches(max_records=8, until="caught-up"):  # the size limit of a batch
        with batch.transaction():
            sizes.append(len(batch))
    print(membership, sizes)
    assert sum(sizes) == 20
    assert max(sizes) <= 8

for name, value in REFUSED.items():
    try:
        tm.Kafka(BROKERS, topic, settings={name: value})
    except tm.TallymarkError as error:
        print("refused:", error)
    else:
        raise AssertionError(name)
