"""The six ways to apply the same records: a run, a backfill and a replay, of a pipeline and of a service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import tallymark as tm
from tallymark.core.budget import Budget
from tallymark.core.claims import Advance, Entry, FirstClaim, PositionChanges, Restart
from tallymark.core.journal import LetterQuery
from tallymark.core.plan import Limits
from tallymark.core.progress import Progress, Step
from tallymark.core.records import DeadLetter
from tallymark.core.retry import retrying
from tallymark.core.spans import Partition, Tally
from tallymark.core.start import Start
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.membership import Assignment, Membership
from tallymark.run.claimed import run_loop
from tallymark.run.commit import Destination
from tallymark.run.letters import OpenLetters, replay
from tallymark.run.setup import Job
from tallymark.run.skips import backfill
from tallymark.service.batch import Batch
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tests.support import truth
from tests.support.crash import new_owner
from tests.support.kafka import Topics
from tests.support.reader import EVENTS, PlainReader

RECORDS = 20
"""Records in each of two partitions."""
ALL = Counter({(partition, offset, offset): 1 for partition in (0, 1) for offset in range(RECORDS)})
Engine = Literal["pipeline", "service"]
Kind = Literal["run", "backfill", "replay"]


class Assigned:
    """A group member whose partitions the test assigns."""

    chosen: frozenset[Partition] | None = None
    grace: float | None = 0.1

    def __init__(self, partitions: Iterable[Partition]) -> None:
        self._now = Assignment(dict.fromkeys(partitions, 1), frozenset(), 1.0)
        self.acknowledged: set[Partition] = set()

    def revoke(self, partition: Partition) -> None:
        self._now = Assignment(self._now.ours, frozenset([partition]), 1.0)

    def assignment(self) -> Assignment:
        return self._now

    def acknowledge(self, partitions: Iterable[Partition]) -> None:
        self.acknowledged.update(partitions)
        ours = {partition: serial for partition, serial in self._now.ours.items() if partition not in self.acknowledged}
        self._now = Assignment(ours, frozenset(), 1.0)

    def join(self) -> None: ...
    def leave(self) -> None: ...
    def mirror(self, positions: Mapping[Partition, int]) -> None: ...


@dataclass
class Way:
    """One of the six, on its own topic and group. It uses the URL ``store``; ``url`` leads to the same store."""

    topics: Topics
    url: str
    group: str
    engine: Engine
    kind: Kind
    values: list[Any] = field(default_factory=lambda: [{"id": number} for number in range(RECORDS)])
    store: str = ""
    steps: list[tuple[Step, Progress]] = field(default_factory=list)
    handled: list[int] = field(default_factory=list)
    """The sizes of the batches that the handler of a service got."""

    stop: Callable[[], None] = lambda: None
    """Stops the latest ``go``."""

    def __post_init__(self) -> None:
        self.store = self.store or self.url
        self.topic = self.topics.create(2)
        self.parts = [Partition(self.topic, number) for number in (0, 1)]
        for number in (0, 1):
            self.topics.send_to(self.topic, number, self.values)
        store, brokers = open_store(self.url), Brokers(self.topics.brokers)
        store.create_ledger()
        store.create_tables([EVENTS.spec], {EVENTS.spec.name: EVENTS.schema})
        first = FirstClaim(0, brokers.find([self.topic])[self.topic].id, brokers.cluster_id())
        before = new_owner()
        claims = store.claim(
            self.group, before, self.parts, lambda _: PositionChanges(dict.fromkeys(self.parts, first)), {}
        )
        if self.kind == "backfill":
            jumps = dict.fromkeys(self.parts, Restart(RECORDS, "far behind"))
            claims = store.claim(self.group, before, self.parts, lambda _: PositionChanges({}, jumps), claims)
        elif self.kind == "replay":
            store.apply([], self._died({part: claims[part].epoch for part in self.parts}))
        store.release(self.group, claims.values())
        store.close()

    def _died(self, epochs: Mapping[Partition, int]) -> Entry:
        """All records are dead, and their values are only in Kafka."""
        now, words = datetime.now(UTC), "no; its value of 99 bytes is too large for the database and only in Kafka"
        steps = [Advance(part, 0, RECORDS, epochs[part], Tally(dead=RECORDS), now) for part in self.parts]
        letters = [
            DeadLetter(part, offset, now, None, None, (), None, words)
            for part in self.parts
            for offset in range(RECORDS)
        ]
        return Entry(self.group, "before", now, now, steps, dead_letters=letters)

    def go(
        self,
        on_step: Callable[[Step, Progress], None] = lambda *_: None,
        membership: Membership | None = None,
        **settings: Any,
    ) -> None:
        """Apply all records, up to 1,000 at once."""

        def watch(step: Step, progress: Progress) -> None:
            self.steps.append((step, progress))
            on_step(step, progress)

        self._pipeline(watch, membership, **settings) if self.engine == "pipeline" else self._service(watch, **settings)

    def _pipeline(
        self, on_step: Any, membership: Membership | None, budget: Budget | None = None, patience: float = 10.0
    ) -> None:
        store, reader = open_store(self.store), PlainReader(self.topics.brokers, [EVENTS])
        job = Job(self.group, [self.topic], [EVENTS.spec], new_owner(), Start.parse("uncommitted-earliest"),
                  Limits(1_000), budget=budget or Budget(), patience=patience)  # fmt: skip
        brokers, where = Brokers(self.topics.brokers), Destination(store, store)
        self.stop = brokers.stop.set
        try:
            if self.kind == "run":
                run_loop(job, brokers, where, reader, on_step, membership).run("caught-up")
            elif self.kind == "backfill":
                backfill(job, brokers, where, reader, on_step, brokers.stop)
            else:
                query = partial(OpenLetters, self.group, store, [self.topic], LetterQuery(), brokers)
                letters = retrying(query, patience=patience)
                replay(job, where, reader, letters, on_step, brokers.stop)
        finally:
            reader.close()
            store.close()

    def consumer(self, **settings: Any) -> tm.Consumer:
        source = tm.Kafka(self.topics.brokers, self.topic, value=tm.Json("id BIGINT"))
        return tm.Consumer(
            group=self.group, source=source, store=self.store, **{"membership": tm.Standalone(), **settings}
        )

    def batches(self, on_step: Any, **settings: Any) -> Generator[Batch, None, None]:
        consumer = self.consumer(**settings)
        self.stop = consumer.stop
        if self.kind == "run":
            return consumer.batches(1_000, until="caught-up", on_step=on_step)
        return getattr(consumer, self.kind)(1_000, on_step=on_step)  # type: ignore[no-any-return]

    def _service(self, on_step: Any, **settings: Any) -> None:
        for batch in self.batches(on_step, **settings):
            with batch.transaction() as db:
                self.handled.append(len(batch))
                rows = [
                    {"partition_id": one.partition, "record_offset": one.offset, "id": one.value["id"]}
                    for one in batch.records
                ]
                db.write("events", rows)

    def look(self, change: Callable[[Store], Any]) -> Any:
        store = open_store(self.url)
        try:
            return change(store)
        finally:
            store.close()

    def events(self) -> Counter[tuple[int, int, int]]:
        return truth.events(self.url)

    def check(self) -> None:
        """Every offset has one outcome, and the open skips and letters are those that the tallies count."""
        positions = self.look(lambda store: store.positions(self.group)[self.group])
        assert all(position.balanced for position in positions)
        total = Tally.sum(position.tally for position in positions)
        assert total.skipped == sum(len(skip.span) for skip in self.look(lambda store: store.skips(self.group)))
        assert total.dead == len(self.look(lambda store: store.journal().letters(LetterQuery(self.group))))
        assert total.applied == self.events().total()
