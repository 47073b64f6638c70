"""Nothing is committed while the ownership of a partition is in doubt.

python examples/taken_over.py

Another consumer takes over one of a member's partitions while the member processes a batch. The whole batch is refused,
nothing of it is written, and the member continues with the partitions that it owns.
"""

from __future__ import annotations

from common import STORE, ask, make_topic, new_name, orders, send

import tallymark as tm

topic, group = make_topic(partitions=3), new_name("shop")
send(topic, range(30), partitions=3)
member = tm.Consumer(group=group, source=orders(topic), store=STORE)


def take_over(partition: int) -> None:
    """Another consumer, which reads this partition outside of the group."""
    other = tm.Consumer(
        group=group, source=orders(topic), store=STORE, membership=tm.Standalone(partitions={topic: [partition]})
    )
    for batch in other.batches(until="caught-up"):
        with batch.transaction() as db:
            db.write(topic, batch.records.values_to_arrow())


refused = 0
for number, batch in enumerate(member.batches(until="caught-up")):
    partitions = sorted({record.partition for record in batch.records})
    if number == 0:
        take_over(partitions[0])
    try:
        with batch.transaction() as db:
            db.write(topic, batch.records.values_to_arrow())
        print("committed", len(batch), "records of partitions", partitions)
    except tm.Fenced as error:
        refused += 1
        print("refused", len(batch), "records of partitions", partitions, "because", error)

print("rows and different ones:", ask(f"SELECT count(*), count(DISTINCT id) FROM {topic}"))
assert refused == 1
assert ask(f"SELECT count(*), count(DISTINCT id) FROM {topic}") == [(30, 30)]
