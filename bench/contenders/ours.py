"""The contenders of tallymark: pipelines and a listener. Every lap is a group of its own."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from bench.contenders.workloads import PICKED, Workload
from bench.harness import tables
from bench.harness.race import Course, Idle, Lap
from bench.harness.records import DDL
from bench.harness.servers import forget_groups, new_group
from bench.harness.tables import Mode
from tallymark.core.plan import Limits
from tallymark.core.progress import Progress, Step
from tallymark.formats.value import Format, Json
from tallymark.kafka.membership import Standalone
from tallymark.kafka.source import Kafka
from tallymark.run.commit import Delivery
from tallymark.service.app import App
from tallymark.spark.pipeline import Pipeline, Road
from tallymark.stores.opening import open_sql

JSON = Json(DDL)
ALONE = Standalone()
"""No group is joined: a race is about records, and brokers may make a new group wait for seconds."""


@dataclass
class OurPipeline(Idle):
    """A pipeline that runs until it has caught up, in a session that is warm."""

    name: str
    mode: Mode = "append"
    records: int = Limits.records
    road: Road = "auto"
    delivery: Delivery = "exactly-once"
    workload: Workload = PICKED
    memory: int = Limits.memory
    value: Format | None = None
    """The format of values, if they are not the JSON of the workload."""

    def lap(self, course: Course) -> Lap:
        self.workload.prepare(course, self.mode)
        pipeline = self.pipeline(course)
        commits: list[tuple[int, float]] = []

        def watch(step: Step, progress: Progress) -> None:
            if step is Step.COMMITTED:
                commits.append((progress.offsets, time.perf_counter() - began))

        try:
            began = time.perf_counter()
            pipeline.run("caught-up", on_step=watch)
            seconds = time.perf_counter() - began
        finally:
            forget(course)
        return self.workload.lap(course, self.name, seconds, commits[0] if len(commits) > 1 else (0, 0.0))

    def pipeline(self, course: Course) -> Pipeline:
        pipeline = Pipeline(
            group=new_group(course),
            source=Kafka(course.brokers, course.topic, value=self.value or Json(self.workload.ddl)),
            store=course.url,
            limits=Limits(records=self.records, memory=self.memory),
            road=self.road,
            delivery=self.delivery,
            membership=ALONE,
        )
        self.workload.add_tables(pipeline, course, self.mode)
        return pipeline


@dataclass
class OurListener(Idle):
    """A listener that hands Arrow batches to the store, without Spark."""

    name: str
    records: int = 10_000

    def lap(self, course: Course) -> Lap:
        tables.prepare(course)
        app = App(brokers=course.brokers, store=course.url, membership=ALONE)

        @app.listen(course.topic, group=new_group(course), value=JSON, batch=True, max_records=self.records)
        def handle(records: Any, db: Any) -> None:
            db.write(course.table, records.values_to_arrow())

        try:
            began = time.perf_counter()
            app.run("caught-up")
            seconds = time.perf_counter() - began
        finally:
            forget(course)
        return tables.lap(course, self.name, course.records, seconds)


def forget(course: Course) -> None:
    """Remove the groups of this course from the ledger."""
    with closing(open_sql(course.url)) as store:
        if store.has_ledger():
            forget_groups(store, course.topic)
