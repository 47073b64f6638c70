"""At most once, at least once, exactly once: the effect of a crash between results and offsets on each.

python examples/delivery.py
"""

from __future__ import annotations

from typing import Literal

from common import STORE, ask, make_topic, new_name, orders, send

import tallymark as tm
from tallymark.core.progress import Progress, Step

Delivery = Literal["at-most-once", "at-least-once", "exactly-once"]


class Crash(Exception):
    pass


def run(topic: str, group: str, delivery: Delivery, crash_at: Step | None = None) -> None:
    def crash(step: Step, _: Progress) -> None:
        if step is crash_at:
            raise Crash

    consumer = tm.Consumer(group=group, source=orders(topic), store=STORE, delivery=delivery)
    for batch in consumer.batches(until="caught-up", on_step=crash):
        with batch.transaction() as db:
            db.write(topic, batch.records.values_to_arrow())


def rows_after_a_crash(delivery: Delivery, crash_at: Step) -> int:
    """Process ten records, then ten more; the crash is in the middle of the second ten."""
    topic, group = make_topic(), new_name("shop")
    send(topic, range(10))
    run(topic, group, delivery)
    send(topic, range(10, 20))
    try:
        run(topic, group, delivery, crash_at)
    except Crash:
        run(topic, group, delivery)
    [(rows, different, position)] = ask(
        f"SELECT count(*), count(DISTINCT id), (SELECT next_offset FROM tallymark_positions WHERE topic = '{topic}') "
        f"FROM {topic}"
    )
    print(f"{delivery} 20 records, crash at {crash_at.value}: {rows} rows, {different} different, position {position}")
    assert position == 20
    return int(rows)


# Two transactions, with the crash between them.
assert rows_after_a_crash("at-most-once", Step.HALFWAY) < 20, "the offset was saved first, and rows are lost"
assert rows_after_a_crash("at-least-once", Step.HALFWAY) > 20, "the rows were saved first, and some are there twice"
# One transaction, with the crash in it: after the rows were written, and after the position was moved.
assert rows_after_a_crash("exactly-once", Step.WRITTEN) == 20
assert rows_after_a_crash("exactly-once", Step.MOVED) == 20
