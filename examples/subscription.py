"""Subscribe to a list of topics or to a pattern; the ledger records every rebalance.

python examples/subscription.py

When a partition is revoked, its finished records are committed, and the next owner starts after them. That needs no
rebalance listener. tallymark_rebalances has the member, the partitions gained and lost, the time and the duration.
"""

from __future__ import annotations

from common import STORE, ask, at_work, make_topic, new_name, orders, send, wait_until

import tallymark as tm

shop = new_name("shop")
books = make_topic(partitions=2, name=f"{shop}-books")
music = make_topic(partitions=2, name=f"{shop}-music")
send(books, range(10), partitions=2)

# A list of topics.
listed = tm.Consumer(group=f"{shop}-list", source=orders([books, music]), store=STORE)
read = 0
for batch in listed.batches(until="caught-up"):
    with batch.transaction():  # without rows, only the positions move
        read += len(batch)
print("by a list of topics:", read, "records")
assert read == 10


# A pattern starts with ^. Two members share the matching topics.
def member() -> tm.Consumer:
    return tm.Consumer(group=shop, source=orders(f"^{shop}-.*"), store=STORE)


def known(what: str) -> int:
    return int(ask(f"SELECT {what} FROM tallymark_positions WHERE group_name = :group", group=shop)[0][0] or 0)


with at_work(member(), table=shop):
    wait_until(lambda: known("sum(applied)") == 10)
    with at_work(member(), table=shop):
        wait_until(lambda: known("count(DISTINCT owner)") == 2)
        send(music, range(10, 20), partitions=2)
        wait_until(lambda: known("sum(applied)") == 20)
        print("by a pattern, two members:", known("count(DISTINCT owner)"))

assert ask(f"SELECT count(*), count(DISTINCT id) FROM {shop}") == [(20, 20)]
found = ask(
    "SELECT kind, gained, lost, run, seconds FROM tallymark_rebalances WHERE group_name = :group ORDER BY happened_at",
    group=shop,
)
for kind, gained, lost, run, seconds in found:
    print(f"{kind:8} gained {gained} lost {lost} by {run} in {seconds:.2f} s")
assert {"assigned", "revoked"} <= {kind for kind, *_ in found}
assert len({run for _, _, _, run, _ in found}) == 2
