"""Threads: one consumer and a pool of workers behind it, or one consumer in each thread.

python examples/threads.py

In both cases the records of a partition are processed in order, and a position never passes an unfinished record.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from typing import Any

from common import BROKERS, QUICK, STORE, ask, make_topic, new_name, orders, send, wait_until

import tallymark as tm

topic, group = make_topic(partitions=4), new_name("shop")

# One consumer with workers. Some records take longer than others, and one in each partition needs a second attempt.
send(topic, range(100), partitions=4)
app = tm.App(brokers=BROKERS, store=STORE, kafka=QUICK)
done: dict[int, list[int]] = defaultdict(list)
refused: set[int] = set()


@app.listen(topic, group=f"{group}-pool", value=tm.Json("id BIGINT"), workers=4, order="partition")
def receive(record: tm.Record, db: Any) -> None:
    time.sleep(random.random() / 100)
    if record.offset == 20 and record.partition not in refused:
        refused.add(record.partition)
        raise tm.Retry("not now")
    done[record.partition].append(record.offset)
    db.write(f"{topic}_pool", {"id": record.value["id"]})


print("workers:", app.run(until="caught-up"))
assert len(refused) == 4
assert all(offsets == list(range(25)) for offsets in done.values()), "in order, and none twice"
assert ask(f"SELECT count(*), count(DISTINCT id) FROM {topic}_pool") == [(100, 100)]


# One consumer in each thread: the group shares the partitions among them.
def work(consumer: tm.Consumer) -> None:
    for batch in consumer.batches():
        with batch.transaction() as db:
            db.write(topic, batch.records.values_to_arrow())


def owners() -> list[tuple[Any, ...]]:
    """The current owners of partitions, and how many of their records are applied."""
    found = ask("SELECT owner, sum(applied) FROM tallymark_status WHERE group_name = :g GROUP BY owner", g=group)
    return [row for row in found if row[0] is not None]


consumers = [tm.Consumer(group=group, source=orders(topic), store=STORE) for _ in range(2)]
threads = [threading.Thread(target=work, args=(consumer,)) for consumer in consumers]
for thread in threads:
    thread.start()
wait_until(lambda: len(owners()) == 2)
send(topic, range(100, 200), partitions=4)
wait_until(lambda: sum(applied for _, applied in owners()) == 200)
print("threads:", *(f"{owner} applied {applied}" for owner, applied in owners()))
for consumer in consumers:
    consumer.stop()
for thread in threads:
    thread.join()
assert ask(f"SELECT count(*), count(DISTINCT id) FROM {topic}") == [(200, 200)]
