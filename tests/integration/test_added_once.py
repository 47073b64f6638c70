"""A backfill adds the skipped records to merged totals, and a replay the repaired ones: each exactly once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tallymark import Tally
from tallymark.core.progress import Step
from tallymark.kafka.brokers import Brokers
from tallymark.operate.emptying import Consent
from tallymark.operate.moves import Resetting
from tallymark.operate.reset import Aim
from tallymark.stores.opening import open_store
from tests.support import totals
from tests.support.kafka import Topics
from tests.support.proxy import Cut, Proxy
from tests.support.totals import BAD_KIND, FULL
from tests.support.totals_driver import Driver, Engine, Fault, Kind, prepare, repair, start

PARTITIONS = (0, 1)
COUNT = 12
"""The number of records that are skipped in each partition, and the number of those that are read before and after."""
MOST = 8
"""The size of a batch: a backfill of both partitions takes four."""

engines = pytest.mark.parametrize("engine", ["service", "pipeline"])
kinds = pytest.mark.parametrize("kind", ["backfill", "replay"])
Value = dict[str, Any]


def value(number: int) -> Value:
    return {
        "id": number,
        "kind": 1,
        "shop": "ab"[number % 2],
        "day": number % 3,
        "flag": [1, 0, None][number % 3],
        "points": number if number % 4 else None,
        "amount": f"{(-1) ** number * number}.25",
        "word": f"w{number}",
        "state": f"s{number}",
        "at": 7 * number % 1009,
        "since": f"2026-01-01T00:00:00.{number:06}+00:00",
    }


def broken(number: int) -> Value:
    """A record that one of the tables refuses until it is repaired."""
    return value(number) | ({"shop": FULL, "points": 5} if number % 2 else {"kind": BAD_KIND})


class Shop:
    """A group whose tables were filled by a run, with a skip in each partition, or with dead letters."""

    def __init__(self, topics: Topics, url: str, group: str, engine: Engine, kind: Kind) -> None:
        self.topics, self.url, self.kind = topics, url, kind
        self.topic = topics.create(len(PARTITIONS))
        self.driver = Driver(topics.brokers, url, group, self.topic, engine, most=MOST, alone=True)
        self.missing: list[Value] = []
        numbers = [partition * 100 + number for partition in PARTITIONS for number in range(COUNT)]
        self.there = [value(number) for number in numbers]
        bad = [1000 + number for number in numbers]
        prepare(url, bad)
        self._send(self.there)
        if kind == "backfill":
            repair(url, bad)
            self._run()
            self.missing = [value(500 + number) for number in numbers]
            self._send(self.missing)
            self._jump()
            later = [value(900 + number) for number in numbers]
            self._send(later)
            self.there += later
        else:
            self.missing = [broken(1000 + number) for number in numbers]
            self._send(self.missing)
            for partition in PARTITIONS:
                topics.send_to(self.topic, partition, ["undecodable"])
        self._run()
        if kind == "replay":
            repair(url, bad)

    def _send(self, values: Iterable[Value]) -> None:
        for each in values:
            self.topics.send_to(self.topic, each["id"] // 100 % 2 if each["id"] % 100 < COUNT else 0, [each])

    def _run(self) -> None:
        self.driver.work(until="caught-up")

    def _jump(self) -> None:
        store, brokers = open_store(self.url), Brokers(self.topics.brokers)
        reset = partial(Resetting, store, self.driver.group, brokers, all_topics=False)
        reset(Aim("shift", "--shift-by", COUNT), [self.topic]).execute(
            "op", "too far behind", take_over=True, consent=Consent()
        )
        store.close()

    def mend(self, **changes: Any) -> Tally:
        """Backfill or replay everything."""
        return replace(self.driver, kind=self.kind, **changes).work()

    def mend_until_killed(self, step: Step, batch: int, logs: Path) -> None:
        fault = Fault(step, batch, signal.SIGKILL)
        process = start(replace(self.driver, kind=self.kind, fault=fault, logs=logs))
        process.join(60)
        assert process.exitcode == -signal.SIGKILL

    @property
    def applied(self) -> int:
        return sum(tally["applied"] for tally in totals.tallies(self.url).values())

    def check(self, *, mended: bool) -> None:
        totals.check(self.url, [*self.there, *(self.missing if mended else [])], None if mended else FULL, TABLES)
        left = 0 if mended else len(self.missing)
        dead = len(PARTITIONS) if self.kind == "replay" else 0
        outcomes = {"applied": len(self.there) + len(self.missing) - left, "dead": dead, "skipped": 0}
        outcomes["skipped" if self.kind == "backfill" else "dead"] += left
        found = totals.tallies(self.url).values()
        assert {name: sum(tally[name] for tally in found) for name in outcomes} == outcomes


TABLES = ("totals", "origins", "grouped")


@pytest.fixture
def make(topics: Topics, group: str) -> Callable[[str, Engine, Kind], Shop]:
    return lambda url, engine, kind: Shop(topics, url, group, engine, kind)


@pytest.mark.faults_where(engine="service", url=["mariadb", "sqlite"])
@pytest.mark.faults_where(engine="pipeline", url=["postgresql", "redis"])
@engines
@kinds
def test_what_was_missing_is_added_once_and_a_second_time_finds_nothing(
    kind: Kind, engine: Engine, url: str, make: Callable[..., Shop]
) -> None:
    shop = make(url, engine, kind)
    shop.check(mended=False)
    dead = len(PARTITIONS) if kind == "replay" else 0
    assert shop.mend() == Tally(applied=len(shop.missing), dead=dead)
    shop.check(mended=True)
    before = totals.found(url)
    assert shop.mend() == Tally(dead=dead)
    assert totals.found(url) == before


@pytest.mark.faults_where(engine="service", url=["mariadb", "sqlite"])
@pytest.mark.faults_where(engine="pipeline", url=["postgresql", "redis"])
@pytest.mark.faults_where(step=Step.WRITTEN)
@pytest.mark.faults_where(step=Step.MOVED, kind="replay")
@pytest.mark.faults_where(step=Step.COMMITTED, kind="backfill")
@pytest.mark.parametrize("step", [Step.WRITTEN, Step.MOVED, Step.COMMITTED])
@engines
@kinds
def test_killed_between_the_rows_and_the_commit_or_after_it_nothing_is_added_twice(
    kind: Kind, engine: Engine, step: Step, url: str, make: Callable[..., Shop], tmp_path: Path
) -> None:
    shop = make(url, engine, kind)
    before = shop.applied
    shop.mend_until_killed(step, 2, tmp_path)
    batches = 2 if step is Step.COMMITTED else 1
    added = shop.applied - before
    assert 0 < added <= batches * MOST
    assert added > MOST or step is not Step.COMMITTED
    assert sum(row["orders"] for row in totals.found(url)["grouped"].values()) == before + added
    shop.mend()
    shop.check(mended=True)


@pytest.mark.faults_where(engine="service", url="mariadb")
@pytest.mark.faults_where(engine="pipeline", url=["postgresql", "redis"])
@pytest.mark.faults_where(kind="backfill", lose="request")
@pytest.mark.faults_where(kind="replay", lose="reply")
@pytest.mark.parametrize("lose", ["request", "reply"])
@pytest.mark.parametrize("url", ["postgresql", "mariadb", "redis"], indirect=True)
@engines
@kinds
def test_a_connection_that_is_cut_at_the_commit_adds_nothing_twice(
    kind: Kind, engine: Engine, lose: Any, url: str, make: Callable[..., Shop]
) -> None:
    shop = make(url, engine, kind)
    with Proxy(url) as proxy:
        after = b"" if url.startswith("redis") else b"tallymark_batches"
        cuts = [Cut(proxy.commit, lose, after=after)] * 2
        proxy.arm(*cuts)
        shop.mend(store=proxy.url)
        assert proxy.done == cuts
    shop.check(mended=True)
