"""What triggers a rebalance: members join and leave, topics appear that match the pattern, partitions are added.

python examples/rebalances.py
"""

from __future__ import annotations

from common import ADMIN, BROKERS, STORE, at_work, make_topic, new_name, orders, wait_until
from confluent_kafka.admin import NewPartitions

import tallymark as tm
from tallymark.kafka.brokers import Brokers

shop = new_name("shop")
books = make_topic(partitions=4, name=f"{shop}-books")
brokers = Brokers(BROKERS)


def member() -> tm.Consumer:
    # A setting of Kafka's client determines how soon new topics and partitions are noticed.
    source = orders(f"^{shop}-.*", **{"topic.metadata.refresh.interval.ms": 500})
    return tm.Consumer(group=shop, source=source, store=STORE)


def show(what: str, *expected: int) -> None:
    """Wait until the members have this many partitions, and print them."""
    wait_until(lambda: sorted(len(one.partitions) for one in brokers.members(shop)) == list(expected))
    print(f"{what}:")
    for one in brokers.members(shop):
        print(f"  {one.client} has", *one.partitions)


with at_work(member(), table=shop):
    show("one member", 4)
    with at_work(member(), table=shop):
        show("another one joins", 2, 2)
    show("it leaves", 4)
    make_topic(partitions=2, name=f"{shop}-music")
    show("a topic appears that matches", 6)
    ADMIN.create_partitions([NewPartitions(books, 5)])[books].result()
    show("a partition is added", 7)
