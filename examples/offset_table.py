"""The offsets are rows in a table of the database that holds the results.

TALLYMARK_STORE=mysql://user@localhost/shop python examples/offset_table.py

The table has topic, group, partition, offset and time of update, and the key (group, topic, partition). It is
created on first use, written with every batch, and readable with SQL: which partitions have an offset, which have none?
"""

from __future__ import annotations

from common import STORE, ask, make_topic, new_name, orders, send

import tallymark as tm

OFFSETS = """
    SELECT topic, group_name, partition_id, next_offset, updated_at FROM tallymark_positions
    WHERE group_name = :group AND topic = :topic AND partition_id IN (0, 1, 2) ORDER BY partition_id"""

topic, group = make_topic(partitions=3), new_name("shop")
send(topic, range(20), partitions=2)
# Only the first two partitions are read, so that the third has no offset.
consumer = tm.Consumer(
    group=group, source=orders(topic), store=STORE, membership=tm.Standalone(partitions={topic: [0, 1]})
)


def offsets() -> dict[int, int]:
    return {partition: offset for _, _, partition, offset, _ in ask(OFFSETS, group=group, topic=topic)}


for batch in consumer.batches(max_records=5, until="caught-up"):
    with batch.transaction() as db:
        db.write(topic, batch.records.values_to_arrow())
    print("after a batch, by partition:", offsets())

for row in ask(OFFSETS, group=group, topic=topic):
    print(*row)
for partition in range(3):
    print(f"partition {partition}:", offsets().get(partition, "no offset yet"))
assert offsets() == {0: 10, 1: 10}
