"""Where a partition starts: earliest, latest, and the "uncommitted" variants that prefer the saved position.

python examples/first_poll.py

There are also start="timestamp=2026-01-31T00:00:00Z" and tm.Start.explicit({"orders": {0: 17}}).
"""

from __future__ import annotations

from common import STORE, ask, make_topic, new_name, orders, send

import tallymark as tm

STRATEGIES = ("uncommitted-earliest", "uncommitted-latest", "earliest", "latest")
topic, shop = make_topic(), new_name("shop")


def read(start: str) -> list[int]:
    """Run with this strategy until caught up. Every strategy has its own group."""
    consumer = tm.Consumer(group=f"{shop}-{start}", source=orders(topic), store=STORE, start=start)
    found: list[int] = []
    for batch in consumer.batches(until="caught-up"):
        with batch.transaction():
            found += [record.value["id"] for record in batch.records]
    return found


send(topic, range(3))
first = {start: read(start) for start in STRATEGIES}
send(topic, range(3, 5))
second = {start: read(start) for start in STRATEGIES}

for start in STRATEGIES:
    print(f"{start:20} nothing saved: {first[start]!s:10} saved position 3, two new records: {second[start]}")
assert list(first.values()) == [[0, 1, 2], [], [0, 1, 2], []]
assert list(second.values()) == [[3, 4], [3, 4], [0, 1, 2, 3, 4], []]

# The last two override the saved position, which repeats or skips records. The ledger records that.
for group, kind, since, until, reason in ask(
    "SELECT group_name, kind, start_offset, stop_offset, reason FROM tallymark_exceptions WHERE topic = :topic",
    topic=topic,
):
    print(f"{group}: {kind} {since}..{until}, {reason}")
