"""``tallymark ledger``: an administrator creates, upgrades and prunes the ledger of applications that may not."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect
from sqlalchemy.engine import make_url

import tallymark as tm
from tallymark.core.claims import Advance, Entry, Replay
from tallymark.core.journal import DISCARDED, LetterQuery, Rebalance, Run
from tallymark.core.spans import Partition, Tally
from tallymark.errors import AccessDenied
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tallymark.stores.sql.ledger.tables import VERSION
from tests.support import databases
from tests.support.command import in_process
from tests.support.commits import SINCE, take, work
from tests.support.kafka import Topics
from tests.support.redis import client, key

Databases = Callable[[str], str]
ZERO = Partition("orders", 0)
NOW = datetime.now(UTC)
OLD = NOW - timedelta(days=40)
DIALECTS = {"postgresql": "postgresql", "mariadb": "mysql", "sqlite": "sqlite"}
TO_VERSION: dict[int, Sequence[str]] = {
    5: ("ALTER TABLE tallymark_positions DROP COLUMN drift",),
    4: ("DROP TABLE tallymark_tables",),
    3: ("ALTER TABLE tallymark_positions DROP COLUMN leader_epoch",),
    2: (
        "ALTER TABLE tallymark_dead_letters DROP COLUMN changed_at",
        "ALTER TABLE tallymark_dead_letters DROP COLUMN changed_by",
        "DROP TABLE tallymark_runs",
    ),
    1: ("DROP TABLE tallymark_rebalances",),
}
"""What takes a ledger back from the version after it."""


@pytest.fixture(params=[*databases.KINDS, "redis"])
def url(request: pytest.FixtureRequest, database: Databases, redis_url: str) -> str:
    kind: str = request.param
    return redis_url if kind == "redis" else database(kind)


def create(url: str) -> None:
    with closing(open_store(url)) as store:
        store.create_ledger()


def age(url: str, version: int) -> None:
    """Make the ledger one of an older version."""
    if url.startswith("redis"):
        client(url).hset(key(url, "tallymark:schema"), "version", version)
        return
    statements = [one for number in range(VERSION - 1, version - 1, -1) for one in TO_VERSION[number]]
    databases.execute(url, *statements, f"UPDATE tallymark_schema SET version = {version}")


def reflected(url: str) -> dict[str, Any]:
    """All that the database says of its tables, in comparable form."""
    engine = create_engine(make_url(url).set(drivername=databases.DRIVERS[make_url(url).get_backend_name()]))
    found, tables = inspect(engine), {}
    try:
        for name in found.get_table_names():
            columns = [{**one, "type": repr(one["type"])} for one in found.get_columns(name)]
            indexes = sorted(found.get_indexes(name), key=lambda one: str(one["name"]))
            tables[name] = columns, indexes, found.get_pk_constraint(name), found.get_table_options(name)
        # A view's text has the name of its database in it, on MariaDB.
        database = f"`{make_url(url).database}`"
        views = {name: found.get_view_definition(name).replace(database, "") for name in found.get_view_names()}
        return {"tables": tables, "views": views}
    finally:
        engine.dispose()


def run_script(url: str, script: str) -> None:
    """Run a file of statements as the database's own tool does: the whole of it, comments too."""
    engine = create_engine(make_url(url).set(drivername=databases.DRIVERS[make_url(url).get_backend_name()]))
    raw: Any = engine.raw_connection()
    try:
        if url.startswith("sqlite"):
            raw.driver_connection.executescript(script)
        elif url.startswith("postgresql"):
            raw.driver_connection.autocommit = True
            raw.driver_connection.execute(script)
        else:
            statements = re.sub("^--.*$", "", script, flags=re.MULTILINE).split(";\n")
            for statement in filter(str.strip, statements):
                raw.cursor().execute(statement)
            raw.commit()
    finally:
        raw.close()
        engine.dispose()


# create and upgrade


def test_a_ledger_is_created_once(url: str) -> None:
    first, second = (in_process("ledger", "create", "--store", url) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0)
    assert re.fullmatch(rf"created the ledger in \S+, version {VERSION}\n", first.stdout)
    assert re.fullmatch(rf"the ledger in \S+ has version {VERSION} already: nothing was changed\n", second.stdout)
    with closing(open_store(url)) as store:
        assert store.ledger_version() == VERSION


def test_an_older_ledger_is_upgraded(url: str) -> None:
    create(url)
    age(url, 2)
    refused = in_process("ledger", "create", "--store", url)
    assert refused.returncode == 2
    assert f"has version 2, this tallymark creates {VERSION}: use tallymark ledger upgrade" in refused.stderr
    done = in_process("ledger", "upgrade", "--store", url, "--json")
    assert {**json.loads(done.stdout), "store": ""} == {"store": "", "before": 2, "now": VERSION}
    again = in_process("ledger", "upgrade", "--store", url)
    assert (again.returncode, again.stdout.endswith("already: nothing was changed\n")) == (0, True)


def test_what_can_not_be_created_or_upgraded_is_told_in_one_sentence(database: Databases) -> None:
    url = database("postgresql")
    absent = in_process("ledger", "upgrade", "--store", url)
    assert absent.stderr.endswith("has no ledger: use tallymark ledger create\n")
    missing = in_process("ledger", "create")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr == (
        "error: ledger create needs --store (or TALLYMARK_STORE), or --file with a pipeline or an app\n"
    )
    create(url)
    databases.execute(url, f"INSERT INTO tallymark_schema VALUES ({VERSION + 1}, now())")
    for command in ("create", "upgrade", "sql"):
        newer = in_process("ledger", command, "--store", url)
        assert f"version {VERSION + 1}, this tallymark supports {VERSION}: upgrade tallymark" in newer.stderr


# sql


@pytest.mark.parametrize("kind", databases.KINDS)
def test_the_printed_statements_create_the_same_ledger(kind: str, database: Databases) -> None:
    url = database(kind)
    create(url)
    wanted = reflected(url)
    url = url.replace("store.db", "other.db") if kind == "sqlite" else database(kind)
    run_script(url, in_process("ledger", "sql", "--dialect", DIALECTS[kind]).stdout)
    assert reflected(url) == wanted
    assert len(wanted["tables"]) == 9
    assert databases.query(url, "SELECT version FROM tallymark_schema") == [(VERSION,)]
    assert "there is nothing to do" in in_process("ledger", "sql", "--store", url).stdout
    in_process("ledger", "create", "--store", url)
    with closing(open_store(url)) as store:
        take(store, "some-group", "a", [ZERO])


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("kind", databases.KINDS)
def test_the_printed_statements_upgrade_an_older_ledger(kind: str, version: int, database: Databases) -> None:
    url = database(kind)
    create(url)
    wanted = reflected(url)
    note = "INSERT INTO tallymark_exceptions (group_name, topic, partition_id, start_offset, stop_offset, kind, reason,"
    note += " recorded_at) VALUES ('g', 'orders', {}, 10, 20, '{}', '', CURRENT_TIMESTAMP)"
    age(url, version)
    databases.execute(url, note.format(0, "skip"), note.format(1, "skip"), note.format(0, "reset"))
    script = in_process("ledger", "sql", "--dialect", DIALECTS[kind], "--from", str(version)).stdout
    assert in_process("ledger", "sql", "--store", url).stdout == script
    run_script(url, script)
    assert reflected(url) == wanted
    kinds = ["void" if version == 1 else "skip", "skip", "reset"]
    assert databases.query(url, "SELECT kind FROM tallymark_exceptions ORDER BY id") == [(one,) for one in kinds]
    assert databases.query(url, "SELECT max(version) FROM tallymark_schema") == [(VERSION,)]


def test_statements_are_printed_for_databases_with_sql_alone(redis_url: str) -> None:
    refused = in_process("ledger", "sql", "--store", redis_url)
    assert "has no tables and needs no statements: use tallymark ledger create" in refused.stderr
    unclear = in_process("ledger", "sql")
    assert unclear.stderr.startswith("error: ledger sql needs --dialect, --store (or TALLYMARK_STORE)")
    both = in_process("ledger", "sql", "--from", "2", "--store", redis_url)
    assert "--from needs --dialect" in both.stderr
    newer = in_process("ledger", "sql", "--dialect", "mysql", "--from", str(VERSION + 1))
    assert f"version {VERSION + 1}, this tallymark supports {VERSION}: upgrade tallymark" in newer.stderr


# prune


def commit(store: Store, group: str, start: int, stop: int, at: datetime, dead: int = 0) -> None:
    claims = take(store, group, "the-owner", [ZERO])
    letters = work(group, "x", claims, start, stop, dead=dead).entry.dead_letters
    step = Advance(ZERO, start, stop, claims[ZERO].epoch, Tally(applied=stop - start - dead, dead=dead), SINCE)
    store.apply((), Entry(group, f"batch-{start}", at, at, [step], dead_letters=letters))


def everything(store: Store, group: str) -> tuple[Any, ...]:
    """All that could be pruned."""
    journal = store.journal()
    letters = journal.letters(LetterQuery(group, states=None))
    return journal.history(group), journal.runs(group), store.rebalances(group), letters


def test_old_history_is_removed_and_nothing_that_is_needed(url: str, group: str) -> None:
    with closing(open_store(url)) as store:
        store.create_ledger()
        commit(store, group, 0, 10, OLD, dead=4)
        replayed, discarded, *still_open = store.journal().letters(LetterQuery(group))
        tried = Replay(replayed.id, replayed.record.partition, replayed.record.offset)
        store.apply((), Entry(group, "replay-1", OLD, OLD, [], replays=[tried]))
        store.journal().settle([discarded], DISCARDED, "me", OLD)
        commit(store, group, 10, 20, OLD)
        commit(store, group, 20, 30, NOW)
        for name, seen, ended in (("crashed", OLD, None), ("ended", OLD, OLD), ("recent", NOW, NOW)):
            store.write_run(group, Run(name, "here", OLD, seen, ended), new=True)
        store.write_run(group, Run("the-owner", "here", OLD - timedelta(days=1), OLD), new=True)
        store.write_run(group, Run("the-last", "here", OLD + timedelta(days=1), OLD, OLD), new=True)
        store.record_rebalances(group, [Rebalance(at, "a", "here", 1.0, (ZERO,), (), "assigned") for at in (OLD, NOW)])
        before = everything(store, group)

        preview = in_process("ledger", "prune", "--store", url)
        assert preview.stdout.endswith("nothing was changed: --execute removes 7 rows\n")
        assert everything(store, group) == before
        assert in_process("ledger", "prune", group, "--older-than", "60d", "--store", url, "--execute").returncode == 0
        assert everything(store, group) == before

        done = json.loads(in_process("ledger", "prune", group, "--store", url, "--execute", "--json").stdout)
        assert [line["rows"] for line in done["removed"]] == [3, 2, 1, 1]
        assert [line.name for line in store.journal().history(group)] == ["batch-20"]
        assert {run.name for run in store.journal().runs(group)} == {"recent", "the-owner", "the-last"}
        assert len(store.rebalances(group)) == 1
        left = store.journal().letters(LetterQuery(group, states=None))
        assert {one.id for one in left} == {one.id for one in (discarded, *still_open)}
        assert store.positions(group)[group][0].tally == Tally(applied=27, dead=3)
    audit = in_process("audit", group, "--store", url)
    assert audit.returncode == 0, audit.stdout
    assert in_process("ledger", "prune", "--store", url, "--execute").stdout.endswith("removed 0 rows\n")


def test_the_last_hour_is_never_pruned(database: Databases, group: str) -> None:
    url = database("sqlite")
    create(url)
    refused = in_process("ledger", "prune", "--older-than", "59m", "--store", url)
    assert refused.stderr.startswith("error: --older-than=59m is too short: status and budgets need at least")
    unknown = in_process("ledger", "prune", group, "--store", url)
    assert f"has no group {group}" in unknown.stderr


# An application that may not create tables


@pytest.fixture(params=["postgresql", "mariadb"])
def admin(request: pytest.FixtureRequest, database: Databases) -> str:
    """The administrator's URL of a database with the table that the application fills."""
    url = database(request.param)
    databases.execute(url, "CREATE TABLE orders (id BIGINT PRIMARY KEY, name VARCHAR(40))")
    return url


@pytest.fixture
def application(admin: str) -> Iterator[str]:
    """The URL of a user that may only read and write the table ``orders``."""
    user, database = f"app_{uuid.uuid4().hex[:8]}", make_url(admin).database
    if admin.startswith("postgresql"):
        databases.execute(admin, f"CREATE ROLE {user} LOGIN")
    else:
        databases.execute(admin, f"CREATE USER {user}", f"GRANT CREATE TEMPORARY TABLES ON {database}.* TO {user}")
    databases.execute(admin, f"GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO {user}")
    yield make_url(admin).set(username=user).render_as_string(hide_password=False)
    if admin.startswith("postgresql"):
        databases.execute(admin, f"DROP OWNED BY {user}", f"DROP ROLE {user}")
    else:
        databases.execute(admin, f"DROP USER {user}")


def grant(admin: str, application: str) -> None:
    """Run the statements that stand as comments under the printed ones."""
    user, script = make_url(application).username, in_process("ledger", "sql", "--dialect", _dialect(admin)).stdout
    grants = re.findall("^-- (GRANT .*);$", script, re.MULTILINE)
    assert len(grants) >= 9
    databases.execute(admin, *(one.replace("TO application", f"TO {user}") for one in grants))


def _dialect(url: str) -> str:
    return "postgresql" if url.startswith("postgresql") else "mysql"


def consume(brokers: str, topic: str, group: str, store: str) -> None:
    """A run that upserts all records and lets one die."""
    source = tm.Kafka(brokers, topic, value=tm.Json("id BIGINT, name STRING"))
    keep = tm.Retention(runs="1h")
    consumer = tm.Consumer(group=group, source=source, store=store, membership=tm.Standalone(), retention=keep)
    for batch in consumer.batches(until="caught-up"):
        with batch.transaction() as db:
            rows = [record.value for record in batch.records]
            db.write("orders", rows, key="id", write="upsert")


def test_an_application_without_ddl_runs_on_a_ledger_that_exists(
    admin: str, application: str, brokers: str, topics: Topics, group: str
) -> None:
    topic = topics.create(2)
    topics.send(topic, [*({"id": number, "name": f"n{number}"} for number in range(20)), b"garbage"], partitions=2)
    in_process("ledger", "create", "--store", admin)
    grant(admin, application)
    with closing(open_store(admin)) as store:
        store.write_run(group, Run("long ago", "here", OLD, OLD, OLD), new=True)
        store.write_run(group, Run("since then", "here", OLD + timedelta(days=1), OLD, OLD), new=True)
    consume(brokers, topic, group, application)
    assert databases.query(admin, "SELECT count(*) FROM orders") == [(20,)]
    with closing(open_store(application)) as store:
        assert Tally.sum(one.tally for one in store.positions(group)[group]) == Tally(applied=20, dead=1)
        # The retention of its settings.
        assert "long ago" not in {run.name for run in store.journal().runs(group)}
    assert in_process("status", group, "--store", application).returncode == 0
    assert in_process("audit", group, "--store", application).returncode == 0


def test_without_ddl_an_absent_or_older_ledger_ends_a_run_with_the_command(
    admin: str, application: str, brokers: str, topics: Topics, group: str
) -> None:
    topic = topics.create(1)
    user = make_url(application).username
    with pytest.raises(AccessDenied, match=f"no ledger that this user may use.*{user}|schema public") as absent:
        consume(brokers, topic, group, application)
    assert str(absent.value).endswith(
        "have an administrator run tallymark ledger create, or the statements of tallymark ledger sql"
    )
    create(admin)
    grant(admin, application)
    age(admin, 3)
    with pytest.raises(AccessDenied, match=f"has version 3, this tallymark needs {VERSION}") as older:
        consume(brokers, topic, group, application)
    assert "have an administrator run tallymark ledger upgrade" in str(older.value)
    in_process("ledger", "upgrade", "--store", admin)
    consume(brokers, topic, group, application)


def test_a_refused_login_is_not_taken_for_missing_permissions(admin: str) -> None:
    nobody = make_url(admin).set(username="nobody_at_all").render_as_string(hide_password=False)
    with closing(open_store(nobody)) as store, pytest.raises(AccessDenied, match="nobody_at_all") as refused:
        store.create_ledger()
    assert "check the user, the password" in str(refused.value)


def test_a_pipeline_without_ddl_runs_on_a_ledger_that_exists(
    admin: str, application: str, brokers: str, topics: Topics, group: str, spark: object
) -> None:
    topic = topics.create(2)
    topics.send(topic, [{"id": number, "name": f"n{number}"} for number in range(20)], partitions=2)
    create(admin)
    grant(admin, application)
    with closing(open_store(admin)) as store:
        store.write_run(group, Run("long ago", "here", OLD, OLD, OLD), new=True)
        store.write_run(group, Run("since then", "here", OLD + timedelta(days=1), OLD, OLD), new=True)
    source = tm.Kafka(brokers, topic, value=tm.Json("id BIGINT, name STRING"))
    keep = tm.Retention(runs="1h")
    pipeline = tm.Pipeline(
        group=group, source=source, store=application, membership=tm.Standalone(), retention=keep, road="driver"
    )
    pipeline.table("orders", key="id", write="upsert", create=False)(lambda records: records.select("value.*"))
    assert pipeline.run("caught-up") == Tally(applied=20)
    assert databases.query(admin, "SELECT count(*) FROM orders") == [(20,)]
    assert databases.query(admin, "SELECT run FROM tallymark_runs WHERE run = 'long ago'") == []
