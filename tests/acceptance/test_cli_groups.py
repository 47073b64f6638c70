"""``tallymark groups``, ``pause``, ``resume`` and ``delete-group``, on every kind of ledger."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

import tallymark as tm
from tallymark.core.claims import Advance, Entry, Note
from tallymark.core.journal import LetterQuery, Run
from tallymark.core.spans import Partition, Span, Tally
from tallymark.errors import PositionMoved
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_sql, open_store
from tests.support import databases
from tests.support.background import wait_for
from tests.support.command import in_process
from tests.support.commits import SINCE, take, work
from tests.support.kafka import Topics

Databases = Callable[[str], str]
QUICK = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
ZERO = Partition("orders", 0)


@pytest.fixture(params=[*databases.KINDS, "redis"])
def url(request: pytest.FixtureRequest, database: Databases, redis_url: str) -> str:
    kind: str = request.param
    return redis_url if kind == "redis" else database(kind)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as made:
        made.create_ledger()
        yield made


def commit(store: Store, group: str) -> None:
    """Ten offsets, two of them dead and three skipped; the run has ended."""
    claims = take(store, group, "first", [ZERO])
    letters = work(group, "first", claims, 0, 7, dead=2).entry.dead_letters
    step = Advance(ZERO, 0, 10, claims[ZERO].epoch, Tally(applied=5, dead=2, skipped=3), SINCE)
    skip = Note("skip", Span(ZERO, 7, 10), "too late")
    entry = Entry(group, "b-1", SINCE, datetime.now(UTC), [step], dead_letters=letters, notes=[skip])
    store.apply((), entry)
    store.release(group, claims.values())
    ended = datetime.now(UTC)
    store.write_run(group, Run("first", "worker-7", SINCE, ended, ended), new=True)


@pytest.mark.faults_where(url=["redis", "sqlite"])
def test_a_group_is_paused_with_a_reason_and_resumed(store: Store, url: str, group: str) -> None:
    take(store, group, "a", [ZERO])
    paused = in_process("pause", group, "--reason", "stock taking", "--store", url)
    assert (paused.returncode, paused.stdout.strip()) == (0, f"{group}: running -> paused")
    shown = in_process("status", "--store", url).stdout
    assert f"{group} is paused: by " in shown
    assert ": stock taking\n" in shown
    (found,) = json.loads(in_process("status", "--store", url, "--json").stdout)["groups"]
    assert (found["desired_state"], found["state"]) == ("paused", "paused")

    resumed = json.loads(in_process("resume", group, "--store", url, "--json").stdout)
    assert (resumed["before"], resumed["now"]) == ("paused", "running")
    assert "is paused" not in in_process("status", "--store", url).stdout

    unknown = in_process("pause", "nobody", "--store", url)
    assert unknown.returncode == 2
    assert "has no group nobody; list the groups" in unknown.stderr


def test_pause_and_resume_as_they_are_typed(group: str, database: Databases) -> None:
    url = database("sqlite")
    assert "has no ledger" in in_process("pause", group, "--store", url).stderr
    with closing(open_store(url)) as store:
        store.create_ledger()
        take(store, group, "a", [ZERO])
    assert in_process("pause", group, "--store", url).stdout == f"{group}: running -> paused\n"


def test_a_ledger_of_an_older_version_is_told_in_one_sentence(group: str, database: Databases) -> None:
    url = database("sqlite")
    with closing(open_store(url)) as store:
        store.create_ledger()
        take(store, group, "a", [ZERO])
    databases.execute(url, "DROP TABLE tallymark_runs")
    assert in_process("pause", group, "--store", url).returncode == 0
    for command in (["status"], ["groups"], ["delete-group", group]):
        said = in_process(*command, "--store", url).stderr
        assert "is older (no such table: tallymark_runs); the next run upgrades it" in said


@pytest.mark.parametrize(
    ("command", "change"),
    [
        ("audit", "ALTER TABLE tallymark_positions DROP COLUMN record_time"),
        ("status", "ALTER TABLE tallymark_positions DROP COLUMN record_time"),
        ("members", "DROP TABLE tallymark_rebalances"),
        ("journal", "DROP TABLE tallymark_exceptions"),
        ("dead-letters list", "ALTER TABLE tallymark_dead_letters DROP COLUMN changed_by"),
        ("doctor --json --group", "ALTER TABLE tallymark_positions DROP COLUMN record_time"),
    ],
)
def test_whatever_an_older_ledger_lacks_is_told_as_that(
    command: str, change: str, group: str, database: Databases
) -> None:
    url = database("sqlite")
    with closing(open_store(url)) as store:
        store.create_ledger()
        take(store, group, "a", [ZERO])
    databases.execute(url, "DROP VIEW tallymark_status")
    databases.execute(url, change)
    done = in_process(*command.split(), group, "--store", url)
    said = " ".join((done.stdout + done.stderr).split())
    assert "older" in said
    assert "the next run upgrades it" in said


@pytest.mark.parametrize(
    "command",
    [
        *("status", "pause", "resume", "members", "audit", "delete-group", "losses", "journal", "skips list"),
        *("dead-letters list", "dead-letters discard --all --group", "dead-letters show 1 --group"),
        *("reset --to-earliest --all-topics", "doctor --json --group"),
    ],
)
def test_an_unknown_group_is_an_error_everywhere(command: str, group: str, database: Databases) -> None:
    url = database("sqlite")
    with closing(open_store(url)) as store:
        store.create_ledger()
        take(store, group, "a", [ZERO])
    done = in_process(*command.split(), "nobody", "--store", url)
    # The doctor reports it as one of its findings.
    assert done.returncode == (1 if command.startswith("doctor") else 2)
    said = " ".join((done.stdout + done.stderr).split())
    assert "nobody" in said
    assert "list the groups with tallymark groups" in said


def test_looking_makes_no_sqlite_file(tmp_path: Path, brokers: str, topics: Topics) -> None:
    url = f"sqlite:///{tmp_path / 'absent.db'}"
    doctor = in_process("doctor", "--store", url, "--brokers", brokers)
    assert "the first run creates it" in " ".join(doctor.stdout.split())
    assert "create its directory" in " ".join(
        in_process("doctor", "--store", f"sqlite:///{tmp_path}/no/a.db").stdout.split()
    )
    kafka = committed_group(topics)
    shown = in_process("import", "new", "--from-kafka-group", kafka, "--store", url, "--brokers", brokers)
    assert "nothing was changed: --execute does it" in shown.stdout
    assert not (tmp_path / "absent.db").exists()


def committed_group(topics: Topics) -> str:
    """A Kafka group that has committed an offset."""
    topic = topics.create(1)
    topics.send_to(topic, 0, [{"id": 1}])
    consumer = Consumer({"bootstrap.servers": topics.brokers, "group.id": f"g-{topic}", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    return f"g-{topic}"


def test_a_consumer_obeys_a_pause_and_goes_on(
    brokers: str, topics: Topics, group: str, database: Databases, caplog: pytest.LogCaptureFixture
) -> None:
    url, topic = database("sqlite"), topics.create(1)
    consumer, done = reading(brokers, group, topic, url), Counter[str]()

    def work_on() -> None:
        for batch in consumer.batches():
            with batch.transaction():
                done["records"] += len(batch)

    topics.send(topic, range(3), partitions=1)
    thread = threading.Thread(target=work_on)
    thread.start()
    try:
        wait_for(lambda: done["records"] == 3)
        in_process("pause", group, "--reason", "stock taking", "--store", url)
        wait_for(lambda: f"paused group={group}" in caplog.text)
        topics.send(topic, range(100), partitions=1)
        one = found(url, "--brokers", brokers)
        assert (one["state"], one["lag"], len(one["runs"]), done["records"]) == ("paused", 100, 1, 3)
        in_process("resume", group, "--store", url)
        wait_for(lambda: done["records"] == 103)
    finally:
        consumer.stop()
        thread.join(30)
    assert found(url)["state"] == "stopped"


def reading(brokers: str, group: str, topic: str, url: str) -> tm.Consumer:
    return tm.Consumer(group=group, source=tm.Kafka(brokers, topic, settings=QUICK), store=url)


def found(url: str, *options: str) -> dict[str, Any]:
    (one,) = json.loads(in_process("groups", "--store", url, "--json", *options).stdout)
    return dict(one)


def test_groups_has_a_line_for_each(store: Store, url: str, group: str) -> None:
    assert "no group has run into" in in_process("groups", "--store", url).stdout
    commit(store, group)
    take(store, f"{group}-other", "second", [ZERO, Partition("orders", 1)])
    head, first, second = in_process("groups", "--store", url).stdout.splitlines()
    assert head.split() == [
        *("GROUP", "STATE", "PARTITIONS", "LAG", "LAG-SECONDS", "DEAD-LETTERS", "SKIPS", "LAST-COMMIT", "REASON")
    ]
    assert first.split()[:7] == [group, "stopped", "1", "-", "-", "2", "1"]
    assert "run first on worker-7 ended" in first
    assert second.split()[:3] == [f"{group}-other", "unknown", "2"]
    line = json.loads(in_process("groups", "--store", url, "--json").stdout)[0]
    assert (line["open_dead_letters"], line["open_skips"], line["partitions"], line["dead"]) == (2, 1, 1, 2)


def test_groups_knows_the_lag(brokers: str, topics: Topics, group: str, database: Databases) -> None:
    url, topic = database("sqlite"), topics.create(2)
    topics.send(topic, range(10), partitions=2)
    consumer = reading(brokers, group, topic, url)
    for batch in consumer.batches(until="caught-up"):
        with batch.transaction():
            pass
    topics.send(topic, range(7), partitions=2)
    done = in_process("groups", TALLYMARK_STORE=url, TALLYMARK_BROKERS=brokers)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split()[:4] == [group, "stopped", "2", "7"]


def test_delete_group_shows_what_would_go_and_deletes_it(store: Store, url: str, group: str) -> None:
    commit(store, group)
    shown = in_process("delete-group", group, "--store", url)
    assert (shown.returncode, shown.stdout.splitlines()[1:]) == (
        0,
        [
            "  1 positions, with their tally: 5 applied, 2 dead, 3 skipped, 0 lost, 0 absent",
            "  1 batches of the history, 1 runs",
            "  dead letters: 2 dead",
            "  1 open skips",
            f"--execute would be refused: group {group} has 2 open dead letters, and their records may be nowhere "
            "else; replay or discard them (tallymark dead-letters), or add --with-dead-letters",
        ],
    )
    allowed = in_process("delete-group", group, "--store", url, "--with-dead-letters").stdout
    assert "the rows of its tables stay; --execute deletes, and the ledger keeps nothing of it" in allowed
    refused = in_process("delete-group", group, "--store", url, "--execute")
    assert refused.returncode == 2
    assert f"group {group} has 2 open dead letters" in refused.stderr
    assert store.positions(group)

    done = in_process("delete-group", group, "--store", url, "--execute", "--with-dead-letters", "--json")
    assert done.returncode == 0
    said = json.loads(done.stdout)
    assert (said["deleted"], said["dead_letters"], said["positions"][0]["current_offset"]) == (True, {"dead": 2}, 10)
    assert store.positions(group) == {}
    assert store.journal().letters(LetterQuery(group, states=None)) == []
    assert "has no group" in in_process("delete-group", group, "--store", url).stderr


def test_delete_group_as_it_is_typed_leaves_rows_and_takes_stages(group: str, database: Databases) -> None:
    url = database("postgresql")
    databases.execute(url, "CREATE TABLE orders (id BIGINT)", "INSERT INTO orders VALUES (1)")
    with closing(open_sql(url)) as store:
        store.create_ledger()
        take(store, group, "a", [ZERO])
        stages = store.stages(group, "a")
        assert stages is not None
        stage = stages.open(pa.schema([("id", pa.int64())])).name
    refused = in_process("delete-group", group, "--store", url, "--execute")
    assert refused.returncode == 2
    assert f"orders[0] of group {group} belongs to run a on host-of-a since" in refused.stderr
    done = in_process("delete-group", group, "--store", url, "--execute", "--take-over")
    assert (done.returncode, done.stdout.splitlines()[0].partition(" from ")[0]) == (0, "deleted")
    assert "the rows of its tables stay, and the ledger keeps nothing of this" in done.stdout
    assert f"deleted group={group}" in done.stderr
    assert databases.query(url, "SELECT id FROM orders") == [(1,)]
    assert databases.query(url, f"SELECT to_regclass('{stage}')") == [(None,)]


def test_a_live_run_of_a_deleted_group_is_told(brokers: str, topics: Topics, group: str, database: Databases) -> None:
    url, topic = database("sqlite"), topics.create(1)
    topics.send(topic, range(3), partitions=1)
    consumer = reading(brokers, group, topic, url)
    with closing(consumer.batches()) as batches:
        for batch in batches:
            refused = in_process("delete-group", group, "--store", url, "--execute")
            assert "belongs to run" in refused.stderr
            assert in_process("delete-group", group, "--store", url, "--execute", "--take-over").returncode == 0
            with pytest.raises(PositionMoved, match="check whether the group was deleted"), batch.transaction():
                pass
            break
    assert open_store(url).positions(group) == {}
