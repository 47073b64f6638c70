"""Pipelines of a TOML file on real Kafka and Spark: SQL gives the same result as a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tallymark import Tally
from tallymark.cli.toml.build import load_pipeline
from tallymark.errors import BadInput
from tallymark.spark.pipeline import Pipeline
from tests.support import databases
from tests.support.databases import tables
from tests.support.kafka import Topics
from tests.support.pipelines import UNBALANCED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

FILE = """
group = "{group}"
store = "{store}"
standalone = true
[limits]
records = {limit}
[source]
brokers = "{brokers}"
topics = ["{topic}"]
format = {{ json = "id BIGINT, name STRING, tags ARRAY<STRING>" }}
"""
TABLES = '''
[tables.orders]
key = "id"
write = "upsert"
delete = "value.name = 'gone'"
provenance = true
sql = """
WITH named AS (SELECT value.id, value.name FROM records r WHERE r.value.id >= 0)
SELECT id, upper(name) AS name FROM (SELECT * FROM named) AS n
"""
[tables.tags]
sql = "SELECT value.id, tag FROM records LATERAL VIEW explode(value.tags) AS tag;"
[tables.counts]
sql = "SELECT value.name, count(*) AS orders FROM records GROUP BY value.name"
'''


@pytest.fixture
def declared(brokers: str, group: str, tmp_path: Path, database: Callable[[str], str]) -> Callable[..., Pipeline]:
    def load(topic: str, text: str, limit: int = 1_000) -> Pipeline:
        known = {"brokers": brokers, "group": group, "store": database("sqlite"), "topic": topic, "limit": limit}
        file = tmp_path / "shop.toml"
        file.write_text(FILE.format(**known) + text)
        return load_pipeline(file)

    return load


def order(number: int, name: str, *tags: str) -> dict[str, object]:
    return {"id": number, "name": name, "tags": tags}


def test_queries_fill_tables_as_functions_do(
    topics: Topics, declared: Callable[..., Pipeline], spark: SparkSession
) -> None:
    topic = topics.create(1)
    sent = [order(1, "old", "x", "y"), order(2, "two"), order(1, "new"), order(-1, "filtered"), b"broken"]
    topics.send_to(topic, 0, sent)
    pipeline = declared(topic, TABLES)

    assert pipeline.run("caught-up") == Tally(applied=4, dead=1)
    topics.send_to(topic, 0, [order(2, "gone"), order(3, "three", "z")])
    assert pipeline.run("caught-up") == Tally(applied=2)

    store = pipeline.setup.store
    rows = databases.query(store, "SELECT id, name, tallymark_offset FROM orders ORDER BY id")
    assert rows == [(1, "NEW", 2), (3, "THREE", 6)]
    assert databases.query(store, "SELECT id, tag FROM tags ORDER BY tag") == [(1, "x"), (1, "y"), (3, "z")]
    assert databases.query(store, "SELECT sum(orders), count(*) FROM counts") == [(6, 6)]
    assert databases.query(store, UNBALANCED) == []
    assert spark.catalog.listTables() == []


def test_a_record_that_a_query_fails_on_is_dead_and_the_others_are_applied(
    topics: Topics, declared: Callable[..., Pipeline]
) -> None:
    topic = topics.create(1)
    topics.send_to(topic, 0, [order(1, "a"), order(0, "b"), order(2, "c")])
    pipeline = declared(topic, '[tables.parts]\nsql = "SELECT 100 div value.id AS part FROM records"\n', limit=2)

    assert pipeline.run("caught-up") == Tally(applied=2, dead=1)

    assert databases.query(pipeline.setup.store, "SELECT part FROM parts ORDER BY 1") == [(50,), (100,)]
    ((offset, error),) = databases.query(
        pipeline.setup.store, "SELECT record_offset, error FROM tallymark_dead_letters"
    )
    assert (offset, "DIVIDE_BY_ZERO" in str(error)) == (1, True)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT valu.id FROM records", "`valu`.`id` cannot be resolved"),
        ("SELEC 1", "Syntax error at or near 'SELEC'"),
        ("CREATE TABLE made AS SELECT 1", "Syntax error at or near 'CREATE'"),
        ("FROM records INSERT INTO made SELECT *", "Syntax error at or near 'INSERT'"),
    ],
)
def test_a_query_that_can_not_be_is_refused_with_its_line_and_does_nothing(
    topics: Topics, declared: Callable[..., Pipeline], capfd: pytest.CaptureFixture[str], sql: str, said: str
) -> None:
    topic = topics.create(1)
    pipeline = declared(topic, f'[tables.orders]\nsql = "{sql}"\n')
    with pytest.raises(BadInput) as refused:
        pipeline.run("caught-up")
    assert "shop.toml line 12: tables.orders.sql: " in str(refused.value)
    assert said in str(refused.value)
    assert "made" not in tables(pipeline.setup.store)
    assert "SQLQueryContextLogger" not in capfd.readouterr().err
