"""Results and offsets in one transaction: exactly once, because both are committed or neither.

python examples/one_transaction.py
"""

from __future__ import annotations

from common import STORE, ask, make_topic, new_name, orders, send

import tallymark as tm

topic, group = make_topic(), new_name("shop")


class PowerFailure(Exception):
    pass


def run(fail_at: int | None = None) -> None:
    consumer = tm.Consumer(group=group, source=orders(topic), store=STORE)
    for batch in consumer.batches(max_records=5, until="caught-up"):
        with batch.transaction() as db:
            db.write(topic, batch.records.values_to_arrow())
            if any(record.value["id"] == fail_at for record in batch.records):
                print("rows written in this transaction:", db.written[topic])
                raise PowerFailure  # the rows are written, and the block has not ended


def state() -> tuple[int, int]:
    [(rows,)] = ask(f"SELECT count(*) FROM {topic}")
    [(position,)] = ask("SELECT next_offset FROM tallymark_positions WHERE topic = :topic", topic=topic)
    return rows, position


send(topic, range(5))
run()
print("rows and position at first:", state())
send(topic, range(5, 15))
try:
    run(fail_at=7)
except PowerFailure:
    print("rows and position after the failure:", state())
rows, position = state()
assert rows == position < 8, "order 7 is not there, and the position is before it"

run()
print("rows and position after another run:", state())
assert state() == (15, 15)
assert ask(f"SELECT count(DISTINCT id) FROM {topic}") == [(15,)]
