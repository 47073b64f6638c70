"""Debezium's own connectors: replicas of real tables, through snapshots, large values, restarts and new columns."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest

import tallymark as tm
from bench.peers.connect import Worker
from tallymark.errors import SandboxError
from tallymark.local.sandbox.server import HOST, Server
from tests.support.connectors import FORMS, PARTITIONS, SERVERS, SIGNALS, Connectors, signal, wait_for_text, worker
from tests.support.databases import query
from tests.support.kafka import Topics
from tests.support.source_tables import ADDED, BULK, HIGHEST, SourceTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITH_SCHEMA = "json with a schema"
AGAIN = rf'"after":\{{"id":{HIGHEST},.*"snapshot":"incremental"'
"""Is in the last event of an incremental snapshot."""


@pytest.fixture(scope="module")
def connect(brokers: str) -> Iterator[Worker]:
    with worker(brokers) as started:
        yield started


@contextmanager
def logged(kind: str) -> Iterator[tuple[Server, Any]]:
    """A database with a log, and a connection to it."""
    with tempfile.TemporaryDirectory(prefix="tallymark-source-") as directory:
        # PostgreSQL may run as another user.
        Path(directory).chmod(0o755)
        server = SERVERS[kind](Path(directory) / kind, temporary=True)
        try:
            yield started(kind, server), connected(kind, server)
        finally:
            server.stop()


def started(kind: str, server: Server) -> Server:
    try:
        return server.start()
    except SandboxError as error:
        if kind != "mysql":
            raise
        pytest.skip(f"no MySQL on this machine: {error}")


def connected(kind: str, server: Server) -> Any:
    if kind == "postgresql":
        return psycopg.connect(server.url)
    return pymysql.connect(
        host=HOST,
        port=server.port,
        user="root",
        database="test",
        charset="utf8mb4",
        init_command="SET time_zone = '+00:00'",
        ssl_disabled=True,
    )


@pytest.mark.faults
@pytest.mark.parametrize("kind", list(SERVERS))
def test_a_replica_equals_a_table_that_a_connector_reads(
    spark: SparkSession,
    brokers: str,
    topics: Topics,
    group: str,
    connect: Worker,
    database: Callable[[str], str],
    kind: str,
) -> None:
    with logged(kind) as (server, connection):
        source, connectors = SourceTable(kind, connection, Random(kind)), Connectors(connect, kind, server, group)
        values = changed(source, connectors, kind, topics)
        assert repeated(values[WITH_SCHEMA]), "the restart repeated nothing"
        expected = source.rows()
        assert len(expected) > BULK // 2
        assert any(row["extra"] == ADDED for row in expected.values())

        url = {form: database("postgresql") for form in (*FORMS, "service")}
        for form in FORMS:
            pipeline(brokers, connectors.topic(form), group, url[form], source.ddl).run("caught-up")
        listener(brokers, connectors.topic(WITH_SCHEMA), group, url["service"], source.ddl).run("caught-up")
        for form, store in url.items():
            assert query(store, "SELECT error FROM tallymark_dead_letters") == [], form
            assert_equal(source.replicated(query(store, source.reading)), expected, form)

        source.run("TRUNCATE TABLE orders")
        source.mark("truncated")
        wait(connectors, topics, "truncated")
        pipeline(brokers, connectors.topic(WITH_SCHEMA), group, url[WITH_SCHEMA], source.ddl).run("caught-up")
        ((error,),) = query(url[WITH_SCHEMA], "SELECT error FROM tallymark_dead_letters")
        assert "TRUNCATE" in str(error)
        connectors.remove()


def changed(source: SourceTable, connectors: Connectors, kind: str, topics: Topics) -> dict[str, list[bytes | None]]:
    """Change the table while the connectors read it. Returns the values of each form's topic."""
    for form in FORMS:
        topics.create(PARTITIONS, name=connectors.topic(form))
    source.run(SIGNALS)
    source.change(200)
    connectors.start()
    source.change(100)
    source.mark("streamed")
    wait(connectors, topics, "streamed")
    connectors.wait_until_stored(lambda: source.change(1))
    source.change(100)
    source.mark("killed")
    wait(connectors, topics, "killed")
    connectors.restart()
    if kind == "postgresql":
        source.run("ALTER TABLE orders REPLICA IDENTITY FULL")
    source.change(100)
    source.change_many()
    source.run(f"ALTER TABLE orders ADD extra INT DEFAULT {ADDED}")
    source.change(100)
    source.run(signal(kind))
    source.change(100)
    for form in FORMS:
        wait_for_text(topics, connectors.topic(form), AGAIN, partitions=1)
    source.mark("last")
    values = wait(connectors, topics, "last")
    connectors.check()
    return values


def wait(connectors: Connectors, topics: Topics, mark: str) -> dict[str, list[bytes | None]]:
    return {form: wait_for_text(topics, connectors.topic(form), f"mark {mark}") for form in FORMS}


def repeated(values: list[bytes | None]) -> bool:
    """Whether events were written twice: those with one position, key and operation."""
    events = [json.loads(value)["payload"] for value in values if value]
    places = Counter(
        (
            event["op"],
            (event["after"] or event["before"] or {"id": None})["id"],
            *(event["source"].get(name) for name in ("lsn", "file", "pos", "row")),
        )
        for event in events
    )
    return max(places.values()) > 1


def pipeline(brokers: str, topic: str, group: str, store: str, ddl: str) -> tm.Pipeline:
    source = tm.Kafka(brokers, topic, value=tm.Debezium(tm.Json(ddl)), key=tm.Json("id BIGINT"))
    made = tm.Pipeline(group=group, source=source, store=store, limits=tm.Limits(2_000), membership=tm.Standalone())
    made.table("orders", write="replica")
    return made


def listener(brokers: str, topic: str, group: str, store: str, ddl: str) -> tm.App:
    app = tm.App(brokers=brokers, store=store)

    @app.listen(topic, group=f"{group}-service", value=tm.Debezium(tm.Json(ddl)), batch=True)
    def handle(records: Any, db: Any) -> None:
        db.write("orders", records.changes(), key="id", write="replica")

    return app


def assert_equal(found: dict[int, Any], expected: dict[int, Any], form: str) -> None:
    assert sorted(found) == sorted(expected), form
    pairs = ((name, found[id][name], value) for id, row in expected.items() for name, value in row.items())
    different = {name: (str(ours)[:200], str(theirs)[:200]) for name, ours, theirs in pairs if ours != theirs}
    assert not different, (form, "one value of each column, here and in the source")
