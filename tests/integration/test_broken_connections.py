"""After a connection breaks during a commit, the outcome is known, nothing is lost and nothing is repeated."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tallymark.core.claims import PositionChanges
from tallymark.core.progress import Progress, Step
from tallymark.core.spans import Owner, Partition
from tallymark.errors import Fenced, Unreachable
from tallymark.local.sandbox import Sandbox
from tallymark.stores.opening import open_sql, open_store
from tests.plugins.run import PARTITIONS
from tests.support.crash import Run, make_loop
from tests.support.databases import query
from tests.support.proxy import Cut, Lose, Proxy
from tests.support.reader import PlainReader
from tests.support.truth import Committed, check_complete, check_consistent

LANDED = "commit confirmed after a connection loss"
UNKNOWN = "commit outcome unknown"
RIVAL = Owner("rival-run", "rival-host", datetime(2026, 1, 31, 12, 30, tzinfo=UTC))
ROWS = {"postgresql": b'COPY "events"', "mysql": b"INSERT INTO events"}


@pytest.fixture(params=["postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, database: Callable[[str], str]) -> str:
    return database(request.param)


class Watched:
    """A run in this process, with a hook for the steps of a batch."""

    def __init__(self, run: Run) -> None:
        self._store = open_store(run.store)
        self._reader = PlainReader(run.brokers)
        self._due: dict[tuple[Step, int], Callable[[], None]] = {}
        self._passed = dict.fromkeys(Step, 0)
        self.loop = make_loop(run, self._store, self._reader, self._watch)

    def at(self, step: Step, occurrence: int, happens: Callable[[], None]) -> Watched:
        self._due[step, occurrence] = happens
        return self

    def run(self) -> None:
        try:
            self.loop.run("caught-up")
        finally:
            self._reader.close()
            self._store.close()
        assert not self._due

    def _watch(self, step: Step, _: Progress) -> None:
        self._passed[step] += 1
        self._due.pop((step, self._passed[step]), lambda: None)()


@pytest.fixture
def watched(brokers: str, proxy: Proxy, group: str, topic: str) -> Watched:
    return Watched(Run(brokers, proxy.url, group, topic))


@pytest.mark.parametrize("lose", ["request", "reply"])
def test_a_commit_whose_outcome_is_unknown_is_applied_once(
    lose: Lose,
    watched: Watched,
    proxy: Proxy,
    url: str,
    committed: Committed,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cut = Cut(proxy.commit, lose)
    with caplog.at_level(logging.WARNING):
        watched.at(Step.MOVED, 2, lambda: proxy.arm(cut)).run()
    assert proxy.done == [cut]
    assert caplog.text.count(UNKNOWN) == 1
    assert caplog.text.count(LANDED) == (1 if lose == "reply" else 0)
    check_complete(url, committed)


@pytest.mark.faults_where(url="mariadb")
@pytest.mark.parametrize("first", ["request", "reply"])
@pytest.mark.parametrize("second", ["request", "reply"])
def test_asking_for_the_outcome_may_break_too(
    first: Lose, second: Lose, watched: Watched, proxy: Proxy, url: str, committed: Committed
) -> None:
    asking = Cut(proxy.commit, second, after=b"UPDATE tallymark_positions")
    cuts = [Cut(proxy.commit, first), asking, asking]
    watched.at(Step.MOVED, 2, lambda: proxy.arm(*cuts)).run()
    assert proxy.done == cuts
    check_complete(url, committed)


@pytest.mark.parametrize("first", ["request", "reply"])
@pytest.mark.parametrize("second", ["request", "reply"])
def test_a_script_whose_outcome_is_unknown_is_applied_once(
    first: Lose,
    second: Lose,
    brokers: str,
    group: str,
    topic: str,
    redis_url: str,
    committed: Committed,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On Redis the commit is a script, and so is the lookup of its outcome, which may fail, too."""
    with Proxy(redis_url) as proxy, caplog.at_level(logging.WARNING):
        cuts = [Cut(proxy.commit, first), Cut(proxy.commit, second)]
        watched = Watched(Run(brokers, proxy.url, group, topic))
        watched.at(Step.MOVED, 2, lambda: proxy.arm(*cuts)).run()
    assert proxy.done == cuts
    assert caplog.text.count(LANDED) == (1 if first == "reply" else 0)
    check_complete(redis_url, committed)


@pytest.mark.faults_where(url="mariadb", lose="reply")
@pytest.mark.faults_where(url="postgresql", lose="request")
@pytest.mark.parametrize("statement", ["rows", "history", "positions"])
@pytest.mark.parametrize("lose", ["request", "reply"])
def test_a_connection_that_breaks_before_the_commit_is_replaced(
    lose: Lose,
    statement: str,
    watched: Watched,
    proxy: Proxy,
    url: str,
    committed: Committed,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kind = "postgresql" if url.startswith("postgresql") else "mysql"
    words = {
        "rows": ROWS[kind],
        "history": b"INSERT INTO tallymark_batches",
        "positions": b"UPDATE tallymark_positions",
    }
    cut = Cut(words[statement], lose)
    with caplog.at_level(logging.WARNING):
        watched.at(Step.DONE, 1, lambda: proxy.arm(cut)).run()
    assert proxy.done == [cut]
    assert LANDED not in caplog.text
    check_complete(url, committed)


def test_a_connection_that_breaks_between_batches_goes_unnoticed(
    watched: Watched, proxy: Proxy, url: str, committed: Committed, caplog: pytest.LogCaptureFixture
) -> None:
    """The pool pings a connection before it hands it out; the cut is at the ping."""
    cut = Cut(b"", "request")
    with caplog.at_level(logging.WARNING):
        watched.at(Step.DONE, 1, lambda: proxy.arm(cut)).run()
    assert proxy.done == [cut]
    assert UNKNOWN not in caplog.text
    check_complete(url, committed)


@pytest.mark.parametrize("lose", ["request", "reply"])
def test_who_claims_the_group_while_our_connection_is_broken_is_named(
    lose: Lose, watched: Watched, proxy: Proxy, url: str, group: str, topic: str, committed: Committed
) -> None:
    def usurp() -> None:
        claim_for_rival(url, group, [Partition(topic, number) for number in range(PARTITIONS)])

    watched.at(Step.MOVED, 2, lambda: proxy.arm(Cut(proxy.commit, lose, usurp)))
    with pytest.raises(Fenced, match="claimed by run rival-run on rival-host since 2026-01-31 12:30:00 UTC"):
        watched.run()
    check_consistent(url, committed)
    assert query(url, "SELECT DISTINCT owner FROM tallymark_positions") == [("rival-run",)]


def test_a_rival_for_only_some_partitions_is_named_with_them(
    watched: Watched, proxy: Proxy, url: str, group: str, topic: str, committed: Committed
) -> None:
    last = Partition(topic, PARTITIONS - 1)
    watched.at(
        Step.MOVED, 2, lambda: proxy.arm(Cut(proxy.commit, "request", lambda: claim_for_rival(url, group, [last])))
    )
    with pytest.raises(Fenced) as told:
        watched.run()
    assert str(told.value).startswith(f"{last} was claimed by run rival-run on rival-host")
    check_consistent(url, committed)


def test_a_run_that_always_loses_its_connection_gives_up(
    watched: Watched,
    proxy: Proxy,
    url: str,
    committed: Committed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tallymark.core.retry.PATIENCE", 1.0)
    rows = Cut(ROWS["postgresql" if url.startswith("postgresql") else "mysql"], "request")
    watched.at(Step.DONE, 1, lambda: proxy.arm(*[rows] * 10_000))
    with pytest.raises(Unreachable):
        watched.run()
    assert 1 < len(proxy.done) < 50
    check_consistent(url, committed)


def test_a_database_that_is_away_for_two_seconds_is_waited_for(
    brokers: str, group: str, topic: str, committed: Committed
) -> None:
    with Sandbox() as box:
        server = box.postgresql()
        away: list[threading.Timer] = []

        def go_away() -> None:
            server.stop()
            away.append(threading.Timer(2.0, server.start))
            away[0].start()

        Watched(Run(brokers, server.url, group, topic)).at(Step.DONE, 2, go_away).run()
        away[0].join()
        check_complete(server.url, committed)


def test_a_database_that_dies_between_the_rows_and_the_commit_is_waited_for(
    brokers: str, group: str, topic: str, committed: Committed
) -> None:
    with Sandbox() as box:
        server = box.postgresql()

        def die() -> None:
            server.kill()
            server.start()

        Watched(Run(brokers, server.url, group, topic)).at(Step.MOVED, 2, die).run()
        check_complete(server.url, committed)


def claim_for_rival(url: str, group: str, partitions: list[Partition]) -> None:
    store = open_sql(url)
    store.claim(group, RIVAL, partitions, lambda _: PositionChanges({}), {})
    store.close()
