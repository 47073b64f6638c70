"""Skip ahead: a partition that is too far behind jumps to the newest records, and logs a warning.

python examples/skip_ahead.py

The skip is counted and recorded in the transaction that moves the position, and can be filled in later.
"""

from __future__ import annotations

import logging

from common import STORE, ask, make_topic, new_name, orders, send

import tallymark as tm

logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")

topic, group = make_topic(), new_name("shop")
send(topic, range(1200))
consumer = tm.Consumer(
    group=group,
    source=orders(topic),
    store=STORE,
    catch_up=tm.SkipAhead(when_behind=500, keep=100, every="15m"),
)
for batch in consumer.batches(until="caught-up"):
    with batch.transaction() as db:
        db.write(topic, batch.records.values_to_arrow())

[(count, oldest)] = ask(f"SELECT count(*), min(id) FROM {topic}")
print(f"{count} rows, the oldest is order {oldest}")
[skip] = ask(
    "SELECT kind, start_offset, stop_offset, reason FROM tallymark_exceptions WHERE group_name = :group", group=group
)
print("exception:", *skip)
[tally] = ask("SELECT applied, skipped, next_offset FROM tallymark_status WHERE group_name = :group", group=group)
print("applied, skipped, position:", *tally)
assert (count, oldest) == (100, 1100)
assert skip[:3] == ("skip", 0, 1100)
assert tally == (100, 1100, 1200)
