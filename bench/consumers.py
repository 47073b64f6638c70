"""Records per second from Kafka to COMMIT without Spark: our consumers beside loops that are written by hand.

Time runs from a contender's first commit to its last, so that joining and starting do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tallymark as tm
from bench.contenders.loops import Clock, Loop, Place, Run, hand_arrow, hand_batches, hand_statements, textbook
from bench.contenders.ours import JSON
from bench.harness.command import Command, run
from bench.harness.race import Comparison, race
from bench.harness.records import DDL
from bench.harness.servers import Servers, course, new_group
from bench.harness.tables import plain_insert
from tallymark.core.progress import Progress, Step

STORES = ("postgresql", "mariadb", "sqlite")
AS_BY_HAND = tm.Json(DDL.replace("TIMESTAMP", "STRING"))
"""The time stays text that the database parses, as with json.loads and a plain INSERT."""
TEXTBOOK, HAND, HAND_ARROW = "by hand, a record", "by hand, 500", "by hand, Arrow and COPY"
HAND_STATEMENTS = "by hand, 500 statements"
CONSUMER, BY_RECORD, ARROW = "Consumer, 500", "listener by record", "listener, Arrow"
SIZES = {500: "500", 10_000: "10,000"}
COMPARISONS = [
    *(Comparison(CONSUMER, peer) for peer in (TEXTBOOK, HAND)),
    *(Comparison(BY_RECORD, peer) for peer in (TEXTBOOK, HAND_STATEMENTS)),
    *(Comparison(f"{ARROW}, {n}", peer) for n in SIZES.values() for peer in (TEXTBOOK, f"{HAND_ARROW}, {n}")),
]


def our_batches(most: int) -> Run:
    """The same statement as by hand, and the same parameters."""

    def run(place: Place, clock: Clock) -> None:
        source = tm.Kafka(place.course.brokers, place.course.topic, value=AS_BY_HAND)
        consumer = tm.Consumer(group=new_group(place.course), source=source, store=place.course.url)
        for batch in consumer.batches(most):
            with batch.transaction() as db:
                db.execute(plain_insert(place.course.table), batch.records.values())
            clock.committed(len(batch))
            if clock.done:
                break

    return run


def our_arrow(most: int) -> Run:
    def run(place: Place, clock: Clock) -> None:
        def handle(records: Any, db: Any) -> None:
            db.write(place.course.table, records.values_to_arrow())

        _listen(place, clock, handle, value=JSON, batch=True, max_records=most)

    return run


def our_records(place: Place, clock: Clock) -> None:
    """A handler by record."""
    insert = plain_insert(place.course.table)

    def handle(record: Any, db: Any) -> None:
        db.execute(insert, record.value)

    _listen(place, clock, handle, value=AS_BY_HAND)


def _listen(place: Place, clock: Clock, handle: Callable[..., None], **settings: Any) -> None:
    app = tm.App(brokers=place.course.brokers, store=place.course.url)
    app.listen(place.course.topic, group=new_group(place.course), **settings)(handle)

    def step(step: Step, progress: Progress) -> None:
        if step is Step.COMMITTED:
            clock.committed(progress.tally.applied)
            if clock.done:
                app.stop()

    app.run(on_step=step)


def contenders(kind: str, only: str) -> Sequence[Loop]:
    """COPY is PostgreSQL's. The slow ones get a share of the records."""
    loops = {TEXTBOOK: textbook, HAND: hand_batches(500), CONSUMER: our_batches(500)}
    loops |= {HAND_STATEMENTS: hand_statements(500), BY_RECORD: our_records}
    if kind == "postgresql":
        for most, name in SIZES.items():
            loops |= {f"{HAND_ARROW}, {name}": hand_arrow(most), f"{ARROW}, {name}": our_arrow(most)}
    shares = {TEXTBOOK: 0.02, HAND_STATEMENTS: 0.1, BY_RECORD: 0.1}
    return [
        Loop(name, run, share=shares.get(name, 1.0), from_first_commit=True)
        for name, run in loops.items()
        if only in name
    ]


def main() -> None:
    command = Command("consumers", __doc__)
    command.options.add_argument("--rounds", type=int, default=3)
    command.options.add_argument("--records", type=int, default=200_000)
    command.options.add_argument("--stores", nargs="+", default=["postgresql"], choices=STORES)
    command.options.add_argument("--only", default="", help="Contenders whose name has this in it.")
    chosen = command.parse()
    outcomes = []
    with Servers() as servers:
        for kind in chosen.stores:
            with course(servers.brokers, servers.url(kind), chosen.records) as at:
                outcomes.append(race(kind, contenders(kind, chosen.only), at, chosen.rounds, COMPARISONS))
        facts = servers.facts(*chosen.stores)
    command.publish_races(chosen, facts, outcomes)


if __name__ == "__main__":
    run(main)
