"""``tallymark status``: the state of a group, on every kind of ledger, once and with ``--watch`` on a terminal."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import tallymark as tm
from tallymark.core.claims import FirstClaim, PositionChanges
from tallymark.core.journal import Run
from tallymark.core.spans import STREAMING, GroupState, Partition
from tallymark.errors import AccessDenied
from tallymark.kafka.brokers import Brokers
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tests.support import databases
from tests.support.background import wait_for
from tests.support.command import DEADLINE, in_process, started
from tests.support.commits import take
from tests.support.kafka import Topics
from tests.support.standing import stand
from tests.support.terminal import CTRL_C, HIDE_CURSOR, SHOW_CURSOR, Terminal

Databases = Callable[[str], str]
QUICK = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
ZERO = Partition("orders", 0)


@pytest.fixture(params=[*databases.KINDS, "redis"])
def url(request: pytest.FixtureRequest, database: Databases, redis_url: str) -> str:
    kind: str = request.param
    return redis_url if kind == "redis" else database(kind)


def seen(url: str, *options: str) -> dict[str, Any]:
    """The one group of a store."""
    done = in_process("status", "--store", url, "--json", *options)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["groups"]
    return dict(found)


def consumer(brokers: str, group: str, topic: str, url: str) -> tm.Consumer:
    return tm.Consumer(group=group, source=tm.Kafka(brokers, topic, settings=QUICK), store=url)


def read(brokers: str, group: str, topic: str, url: str) -> None:
    """All that is there."""
    for batch in consumer(brokers, group, topic, url).batches(until="caught-up"):
        with batch.transaction():
            pass


def ran(store: Store, group: str, name: str, **how: Any) -> None:
    began, now = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC)
    store.write_run(group, Run(name, "worker-7", began, **({"seen": now} | how)), new=True)


def test_the_state_follows_from_runs_in_every_ledger(url: str, group: str) -> None:
    with closing(open_store(url)) as store:
        store.create_ledger()
        take(store, group, "first", [ZERO])
        before = datetime.now(UTC) - timedelta(minutes=2)
        assert seen(url)["state"] == "unknown"
        ran(store, group, "first")
        found = seen(url)
        assert (found["state"], found["reason"]) == ("running", "no commit yet")
        assert [run["host"] for run in found["runs"]] == ["worker-7"]
        ran(store, group, "first", seen=before)
        assert seen(url)["reason"].startswith("run first on worker-7 ended without a final heartbeat, last seen")
        assert in_process("status", "--store", url, "--fail").returncode == 1
        ran(store, group, "first", ended=before)
        assert seen(url)["state"] == "stopped"
        assert in_process("status", "--store", url, "--fail").returncode == 0
        ran(store, group, "second", ended=before, error="[a] broke")
        assert seen(url)["reason"].endswith("[a] broke")
        store.set_state(group, GroupState("paused", "stock taking", "op@host", before))
        shown = in_process("status", group, "--store", url).stdout
        assert f"{group} is paused: by op@host since {before:%Y-%m-%d %H:%M:%S} UTC: stock taking" in shown


def test_lag_is_exact_and_known_while_nothing_runs(
    brokers: str, topics: Topics, group: str, database: Databases
) -> None:
    url, topic = database("sqlite"), topics.create(2, retention_ms="86400000")
    topics.send(topic, range(20), partitions=2)
    read(brokers, group, topic, url)
    hour_ago = int((time.time() - 3600) * 1000)
    topics.send_to(topic, 0, ["a"], timestamp=hour_ago)
    topics.send_to(topic, 0, ["b", "c"])
    done = in_process("status", group, "--json", TALLYMARK_STORE=url, TALLYMARK_BROKERS=brokers)
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = json.loads(done.stdout)["groups"]
    assert (found["state"], found["lag"], found["applied"], found["runs"]) == ("stopped", 3, 20, [])
    first, second = found["partitions"]
    assert (first["current_offset"], first["log_end_offset"], first["lag"]) == (10, 13, 3)
    assert 3600 < first["lag_seconds"] < 3660
    assert 82_000 < first["expires_seconds"] < 86_400 - 3600
    assert (second["lag"], second["lag_seconds"], second["expires_seconds"]) == (0, 0.0, None)
    assert second["rate_in"] == second["rate_applied"] == pytest.approx(10 / 300)
    assert first["drain_seconds"] is None, "nobody drains it"
    table = in_process("status", TALLYMARK_STORE=url, TALLYMARK_BROKERS=brokers).stdout
    assert "\x1b" not in table
    lines = table.splitlines()
    assert lines[0].startswith(f"{group} is stopped: run ")
    assert lines[1] == "  20 applied, 0 dead, 0 skipped, 0 lost, 0 absent; 0 open dead letters, 0 open skips"
    assert lines[2].split()[:6] == ["TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "LAG-SECONDS"]
    assert lines[3].split()[:5] == [topic, "0", "10", "13", "3"]


def test_without_kafka_the_ledger_s_part_is_shown(url: str, group: str) -> None:
    with closing(open_store(url)) as store:
        store.create_ledger()
        assert "no group has run into" in in_process("status", "--store", url).stdout
        take(store, group, "first", [ZERO])
    shown = in_process("status", "--store", url)
    assert (shown.returncode, shown.stdout.splitlines()[-1]) == (0, "lag needs Kafka: add --brokers")
    assert "has no group nobody; list the groups" in in_process("status", "nobody", "--store", url).stderr


def test_brokers_that_do_not_answer_are_named_and_the_rest_is_shown(
    database: Databases, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallymark.kafka.brokers.TIMEOUT", 1.0)
    url = database("sqlite")
    with closing(open_store(url)) as store, socket.socket() as closed:
        store.create_ledger()
        take(store, group, "first", [ZERO])
        closed.bind(("127.0.0.1", 0))
        done = in_process("status", "--store", url, "--brokers", f"127.0.0.1:{closed.getsockname()[1]}")
    assert done.returncode == 2
    assert f"{group} is unknown" in done.stdout
    assert done.stderr.startswith("lag is not known: ")
    assert done.stderr.count("\n") == 1


def test_what_may_not_be_looked_at_hides_no_other_group(
    brokers: str, topics: Topics, group: str, database: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, allowed, secret, query = database("sqlite"), topics.create(1), topics.create(1), "daily totals"
    for name, topic in ((f"{group}-a", secret), (f"{group}-b", allowed)):
        topics.send(topic, range(3), partitions=1)
        stand(brokers, url, name, topic, {0: 1})
    with closing(open_store(url)) as store:
        first = {Partition(query, 0): FirstClaim(4, "query", STREAMING)}
        store.journal().move(f"{group}-c", list(first), lambda *_: PositionChanges(first), "test", datetime.now(UTC))
    ask = Brokers.topics

    def refuse(self: Brokers, names: Sequence[str], **how: Any) -> Any:
        assert query not in names, "it is no topic"
        if secret in names:
            raise AccessDenied(f"topic {secret}: not for you")
        return ask(self, names, **how)

    monkeypatch.setattr(Brokers, "topics", refuse)
    done = in_process("status", "--store", url, "--brokers", brokers, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (2, f"lag is not known: topic {secret}: not for you\n")
    assert [one["lag"] for one in found["groups"]] == [None, 2, None]
    words = f"topic {secret}: not for you"
    assert [found["trouble"], *(one["trouble"] for one in found["groups"])] == [words, words, None, None]
    listed = json.loads(in_process("groups", "--store", url, "--brokers", brokers, "--json").stdout)
    assert [one["trouble"] for one in listed] == [words, None, None]


def test_names_and_errors_are_shown_as_they_are_and_obeyed_by_nobody(database: Databases) -> None:
    url, name = database("sqlite"), "orders[eu] g[/x]"
    with closing(open_store(url)) as store:
        store.create_ledger()
        take(store, name, "first", [ZERO])
        ran(store, name, "first", ended=datetime.now(UTC), error="ValueError: \x1b[2Jgone\nand more")
    for command in ("status", "groups"):
        done = in_process(command, "--store", url)
        assert done.returncode == 0
        assert name in done.stdout
        assert "ValueError: \\x1b[2Jgone\\nand more" in done.stdout
    assert in_process("pause", name, "--store", url).stdout == f"{name}: running -> paused\n"
    assert f"no rebalance of group {name}" in in_process("members", name, "--store", url).stdout
    refused = in_process("status", "g[/x] \x1b[2J", "--store", url)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "has no group g[/x] \\x1b[2J; " in refused.stderr


def test_what_a_service_failed_of_is_told(brokers: str, topics: Topics, group: str, database: Databases) -> None:
    url, topic = database("sqlite"), topics.create(1)
    topics.send(topic, range(5), partitions=1)

    def work() -> None:
        for batch in consumer(brokers, group, topic, url).batches(until="caught-up"):
            with batch.transaction():
                raise KeyError("price")

    with pytest.raises(KeyError):
        work()
    found = seen(url)
    assert (found["state"], found["reason"].rpartition(" UTC: ")[2]) == ("failed", "KeyError: 'price'")
    read(brokers, group, topic, url)
    assert seen(url)["state"] == "stopped"

    app = tm.App(brokers=brokers, store=url, kafka=QUICK, patience=0.1)

    @app.listen(topic, group=group, threads=2)
    def receive(record: tm.Record, db: Any) -> None:
        raise tm.Retry("the till is closed")

    topics.send(topic, range(5), partitions=1)
    with pytest.raises(tm.Retry):
        app.run()
    found = seen(url)
    assert (found["state"], found["reason"].rpartition(" UTC: ")[2]) == ("failed", "the till is closed")


def test_watched_on_a_wide_terminal_numbers_change(
    brokers: str, topics: Topics, group: str, database: Databases
) -> None:
    url, topic = database("sqlite"), topics.create(1)
    topics.send(topic, range(7), partitions=1)
    read(brokers, group, topic, url)
    place = ("--store", url, "--brokers", brokers)
    with Terminal("status", group, "--watch", "--every", "0.2", *place, columns=200) as terminal:
        terminal.shows(f"{group} is stopped", "OWNER", "EXPIRES")
        assert cell(terminal, topic, "CURRENT-OFFSET") == "7"
        topics.send(topic, range(1234), partitions=1)
        wait_for(lambda: cell(terminal, topic, "LAG") == "1234", DEADLINE, "the lag is seen")
        read(brokers, group, topic, url)
        wait_for(lambda: cell(terminal, topic, "CURRENT-OFFSET") == "1241", DEADLINE, "the commit is seen")
        assert cell(terminal, topic, "LAG") == "0"
        terminal.press(CTRL_C)
        assert terminal.ended() == 0
    assert terminal.output.count(HIDE_CURSOR) == terminal.output.count(SHOW_CURSOR) > 0
    assert terminal.output.rindex(SHOW_CURSOR) > terminal.output.rindex(HIDE_CURSOR)
    assert "Traceback" not in terminal.output


def test_watched_on_a_narrow_terminal_columns_go_and_no_number_is_cut(group: str, database: Databases) -> None:
    url = database("sqlite")
    with closing(open_store(url)) as store:
        store.create_ledger()
        long = Partition("a-topic-with-a-name-that-is-far-too-long-for-a-narrow-terminal", 0)
        take(store, group, "first", [ZERO, long], at=12_345_678_901)
    with Terminal("status", "--watch", "--every", "0.2", "--store", url, columns=60) as terminal:
        terminal.shows("columns left out", "a-topic-with")
        assert all(len(line) <= 60 for line in terminal.screen)
        assert "OWNER" not in "".join(terminal.screen)
        assert cell(terminal, "orders", "CURRENT-OFFSET") == "12345678901"
        assert cell(terminal, "a-topic-with", "CURRENT-OFFSET") == "12345678901"
        databases.execute(url, "ALTER TABLE tallymark_runs RENAME TO away")
        terminal.shows("not up to date", "orders")
        databases.execute(url, "ALTER TABLE away RENAME TO tallymark_runs")
        wait_for(
            lambda: not any("not up to date" in line for line in terminal.screen), DEADLINE, "it is up to date again"
        )
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.ended() == 0
    assert terminal.output.rindex(SHOW_CURSOR) > terminal.output.rindex(HIDE_CURSOR)


def cell(terminal: Terminal, topic: str, head: str) -> str | None:
    """The value in the line of a topic below this column head, on the current screen."""
    lines = terminal.screen
    heads = next((line.split() for line in lines if line.startswith("TOPIC ")), [])
    row = next((line.split() for line in lines if line.startswith(topic)), [])
    return row[heads.index(head)] if head in heads and len(row) == len(heads) else None


def test_more_than_the_terminal_is_high_is_said(group: str, database: Databases) -> None:
    url = database("sqlite")
    with closing(open_store(url)) as store:
        store.create_ledger()
        take(store, group, "first", [Partition("orders", number) for number in range(30)])
    with Terminal("status", "--watch", "--store", url, columns=120, lines=12) as terminal:
        terminal.shows("more lines: enlarge the window")
        assert len(terminal.screen) <= 12
        terminal.press(CTRL_C)
        assert terminal.ended() == 0


WAITING = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'tallymark_positions'::regclass"


def test_a_store_that_does_not_answer_keeps_nobody_from_leaving(group: str, database: Databases) -> None:
    url = database("postgresql")
    with closing(open_store(url)) as store:
        store.create_ledger()
        take(store, group, "first", [ZERO])
    with (
        psycopg.connect(url) as locking,
        Terminal("status", "--watch", "--every", "0.2", "--store", url, columns=120) as terminal,
    ):
        terminal.shows(f"{group} is unknown")
        locking.execute("LOCK TABLE tallymark_positions IN ACCESS EXCLUSIVE MODE")
        wait_for(lambda: bool(locking.execute(WAITING).fetchone()), DEADLINE, "somebody waits for the lock")
        terminal.press(CTRL_C)
        began = time.monotonic()
        assert terminal.ended() == 0
        assert time.monotonic() - began < 10
    assert terminal.output.rindex(SHOW_CURSOR) > terminal.output.rindex(HIDE_CURSOR)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_watched_through_a_pipe_one_look_follows_the_other(options: list[str], group: str, database: Databases) -> None:
    url = database("sqlite")
    with closing(open_store(url)) as store:
        store.create_ledger()
        take(store, group, "first", [ZERO])
    process = started("status", "--watch", "--every", "0.2", "--store", url, *options)
    assert process.stdout is not None
    looks = [line for line in (process.stdout.readline() for _ in range(2 if options else 8)) if group in line]
    assert len(looks) == 2
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert "\x1b" not in "".join(looks) + rest
    if options:
        assert json.loads(looks[0])["groups"][0]["group"] == group
