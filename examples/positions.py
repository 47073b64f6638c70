"""The kinds of positions, and a group's members and their partitions.

python examples/positions.py

committed: the position in the ledger; current: the next record to deliver; last stable: the end of the readable
records; high watermark: the same with the records of transactions that are still open in Kafka, also called log end.
"""

from __future__ import annotations

from common import BROKERS, STORE, make_topic, new_name, orders, send
from confluent_kafka import Producer

import tallymark as tm
from tallymark.kafka.brokers import Brokers


def show(when: str, place: tm.PartitionProgress) -> None:
    ends = f"last stable {place.last_stable}, high watermark {place.high_watermark}, lag {place.lag}"
    print(f"{place.partition} {when}: committed {place.committed}, current {place.current}, {ends}")


topic, group = make_topic(), new_name("shop")
send(topic, range(10))
unfinished = Producer({"bootstrap.servers": BROKERS, "transactional.id": group, "log_level": 0})
unfinished.init_transactions()
unfinished.begin_transaction()
for n in range(3):
    unfinished.produce(topic, b'{"id": %d}' % n, partition=0)
unfinished.flush()

consumer = tm.Consumer(group=group, source=orders(topic), store=STORE)
for batch in consumer.batches(max_records=4, until="caught-up"):
    [before] = consumer.positions()
    with batch.transaction() as db:
        db.write(topic, batch.records.values_to_arrow())
    [after] = consumer.positions()
    show("in hand", before)
    show("committed", after)
    assert before.current == before.committed + len(batch)
    assert after.committed == after.current
    members = Brokers(BROKERS).members(group)
unfinished.abort_transaction()

for member in members:
    print("member:", member.client, "at", member.host, "has", *member.partitions)
assert (after.committed, after.last_stable, after.high_watermark, after.lag) == (10, 10, 13, 3)
assert [str(partition) for partition in members[0].partitions] == [f"{topic}[0]"]
