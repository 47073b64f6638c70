"""The same in Redis: one entry for each group, topic and partition, written together with the results.

TALLYMARK_STORE=redis://localhost:6379 python examples/offsets_in_redis.py

All keys begin with the tag of the store. The writes of a block are sent at its end, with the positions, as one script.
"""

from __future__ import annotations

import os

import redis
from common import make_topic, new_name, orders, send

import tallymark as tm

STORE = os.environ.get("TALLYMARK_STORE", "redis://localhost:6379?tag=shop")
address, _, tag = STORE.partition("?tag=")
tag = tag or "tallymark"  # the default

topic, group = make_topic(partitions=2), new_name("shop")
send(topic, range(20), partitions=2)
consumer = tm.Consumer(group=group, source=orders(topic), store=STORE)

for batch in consumer.batches(until="caught-up"):
    with batch.transaction() as db:
        rows = [{"id": record.value["id"], "partition": record.partition} for record in batch.records]
        db.write(topic, rows, key="id", write="upsert")

server = redis.Redis.from_url(address, decode_responses=True)
for partition in range(2):
    key = f"{{{tag}}}:tallymark:position:{group}:{topic}:{partition}"
    entry = server.hgetall(key)
    print(key, {name: entry[name] for name in ("next_offset", "applied", "epoch", "updated_at")})
    assert entry["next_offset"] == entry["applied"] == "10"
print("order 17 is", server.hgetall(f"{{{tag}}}:{topic}:17"))
assert all(server.exists(f"{{{tag}}}:{topic}:{n}") for n in range(20))
