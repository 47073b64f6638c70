"""A standalone consumer: fixed partitions, without a group in Kafka.

python examples/standalone.py

It joins no group, so there are no rebalances. Its positions are stored under the name of its group.
"""

from __future__ import annotations

from common import BROKERS, STORE, ask, make_topic, new_name, orders, send

import tallymark as tm
from tallymark.kafka.brokers import Brokers

topic, group = make_topic(partitions=4), new_name("audit")
send(topic, range(40), partitions=4)
consumer = tm.Consumer(
    group=group, source=orders(topic), store=STORE, membership=tm.Standalone(partitions={topic: [0, 2]})
)
members = 0
for batch in consumer.batches(until="caught-up"):
    members += len(Brokers(BROKERS).members(group))
    with batch.transaction() as db:
        rows = [{"id": record.value["id"], "from_partition": record.partition} for record in batch.records]
        db.write(topic, rows)

found = ask(f"SELECT from_partition, count(*) FROM {topic} GROUP BY from_partition ORDER BY from_partition")
print("rows by partition:", found)
print("members of the group in Kafka:", members)
saved = ask(
    "SELECT partition_id, next_offset FROM tallymark_positions WHERE group_name = :group ORDER BY 1", group=group
)
print("positions:", saved)
assert found == saved == [(0, 10), (2, 10)]
assert members == 0
