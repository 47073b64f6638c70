"""Running totals that survive kill -9: a pipeline is killed inside a transaction, runs again, and the totals are right.

python examples/running_totals.py
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from decimal import Decimal

from common import BROKERS, STORE, ask, make_topic, new_name, send_values
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import tallymark as tm
from tallymark.core.progress import Progress, Step

SHOPS = ("Aachen", "Bonn", "Celle")


def run(topic: str, killed_in_batch: int) -> None:
    """Add up all sales in the topic; die in this batch, after its rows are written and before they are committed."""
    pipeline = tm.Pipeline(
        group=topic,
        source=tm.Kafka(BROKERS, topic, value=tm.Json("shop STRING, amount DECIMAL(10, 2)")),
        store=STORE,
        limits=tm.Limits(records=1000),
        membership=tm.Group(instance="example"),  # the same member after the kill, without waiting for its timeout
    )

    @pipeline.table(topic, key="shop", write="merge", merge={"sales": "count", "revenue": "sum", "largest": "max"})
    def totals(records: DataFrame) -> DataFrame:
        return records.groupBy("value.shop").agg(
            F.count("*").alias("sales"),
            F.sum("value.amount").alias("revenue"),
            F.max("value.amount").alias("largest"),
        )

    batches = 0

    def kill(step: Step, _: Progress) -> None:
        nonlocal batches
        batches += step is Step.WRITTEN
        if step is Step.WRITTEN and batches == killed_in_batch:
            os.kill(os.getpid(), signal.SIGKILL)

    pipeline.run("caught-up", on_step=kill)


def start(killed_in_batch: int = 0) -> int:
    return subprocess.run([sys.executable, __file__, topic, str(killed_in_batch)], check=False).returncode


def stored() -> dict[str, tuple[int, Decimal, Decimal]]:
    """The table. SQLite keeps a DECIMAL as text."""
    rows = ask(f"SELECT shop, sales, revenue, largest FROM {topic} ORDER BY shop")
    return {shop: (sales, Decimal(revenue), Decimal(largest)) for shop, sales, revenue, largest in rows}


if len(sys.argv) > 1:
    run(sys.argv[1], int(sys.argv[2]))
    sys.exit()

topic, chance = make_topic(name=new_name("sales")), random.Random(1)
sales, revenue, largest = Counter[str](), Counter[str](), dict.fromkeys(SHOPS, 0)
values = []
for _ in range(10_000):
    shop, cents = chance.choice(SHOPS), chance.randrange(1, 10_000)
    values.append({"shop": shop, "amount": f"{cents / 100:.2f}"})
    sales[shop] += 1
    revenue[shop] += cents
    largest[shop] = max(largest[shop], cents)
send_values(topic, values)

print("first run: killed by SIGKILL:", start(killed_in_batch=4) == -signal.SIGKILL)
print("sales in the table:", sum(count for count, _, _ in stored().values()))

print("second run: ended well:", start() == 0)
for shop, total in stored().items():
    print(shop, *total)
    assert total == (sales[shop], Decimal(revenue[shop]) / 100, Decimal(largest[shop]) / 100)
print("sales in the table:", sum(count for count, _, _ in stored().values()))
