"""Framework style: a few settings and one decorated function make a listener.

python examples/listener.py
"""

from __future__ import annotations

import asyncio
from typing import Any

from common import BROKERS, QUICK, STORE, ask, execute, make_topic, new_name, send

import tallymark as tm

topic, shop = make_topic(partitions=4), new_name("shop")
send(topic, range(100), partitions=4)
execute(f"CREATE TABLE {topic}_each (id BIGINT)")  # db.write creates its tables, db.execute does not

app = tm.App(brokers=BROKERS, store=STORE, kafka=QUICK)
order = tm.Json("id BIGINT")


@app.listen(topic, group=f"{shop}-one", value=order, threads=2)
def each(record: tm.Record, db: Any) -> None:
    """One record at a time, in two threads. A record on which it raises is a dead letter; the others are applied."""
    if record.value["id"] == 42:
        raise ValueError("nobody ordered this")
    db.execute(f"INSERT INTO {topic}_each (id) VALUES (:id)", {"id": record.value["id"]})


@app.listen(topic, group=f"{shop}-batch", value=order, batch=True)
def all_at_once(records: tm.Records, db: Any) -> None:
    """All records of a transaction, without a Python object for each."""
    db.write(f"{topic}_batch", records.values_to_arrow())


@app.listen(topic, group=f"{shop}-async", value=order, workers=8, order="key")
async def enriched(record: tm.Record, db: Any) -> None:
    """Eight records at a time wait for another service; records with the same key stay in order."""
    await asyncio.sleep(0.01)
    db.write(f"{topic}_async", {"id": record.value["id"], "price": record.value["id"] * 1.19})


total = app.run(until="caught-up")  # without until= it runs until Ctrl-C or SIGTERM
print("all listeners together:", total)
for name in ("each", "batch", "async"):
    [(rows, different)] = ask(f"SELECT count(*), count(DISTINCT id) FROM {topic}_{name}")
    print(f"{name}: {rows} rows, {different} different")
    assert rows == different == (99 if name == "each" else 100)
letters = ask("SELECT record_offset, error FROM tallymark_dead_letters WHERE topic = :topic", topic=topic)
print("dead letters:", letters)
[(offset, error)] = letters
assert (offset, error.split(" (")[0]) == (10, "ValueError: nobody ordered this")
assert (total.applied, total.dead) == (299, 1)
