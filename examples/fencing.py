"""A member of an old generation can't commit.

python examples/fencing.py

A static member processes a batch when its successor starts with the same instance name, as when a hanging machine is
replaced. The takeover raises the epoch of each partition in the database. The old member's transaction compares it.
"""

from __future__ import annotations

from common import STORE, ask, at_work, make_topic, new_name, orders, send, wait_until

import tallymark as tm

topic, group = make_topic(), new_name("shop")
send(topic, range(10))


def worker() -> tm.Consumer:
    return tm.Consumer(group=group, source=orders(topic), store=STORE, membership=tm.Group(instance="worker-1"))


def state() -> tuple[int, int]:
    return ask("SELECT epoch, next_offset FROM tallymark_positions WHERE group_name = :group", group=group)[0][:2]


refused = None
for batch in worker().batches():
    print("the old one has", len(batch), "records in hand; epoch and position:", state())
    with at_work(worker(), table=topic):
        wait_until(lambda: state()[1] == 10)
        print("its successor has done them; epoch and position:", state())
        try:
            with batch.transaction() as db:
                db.write(topic, batch.records.values_to_arrow())
        except tm.Fenced as error:
            refused = error
    break

print("the old one was refused:", refused)
assert refused is not None
assert ask(f"SELECT count(*), count(DISTINCT id) FROM {topic}") == [(10, 10)]
