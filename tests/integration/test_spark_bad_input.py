"""Invalid input is refused with one sentence that names it, and leaves nothing behind."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tallymark import Json, Kafka, Pipeline, Tally
from tallymark.errors import BadInput, TableMismatch, TallymarkError, UnknownTopic, Unreachable
from tests.integration.test_spark_positions import execute
from tests.support import databases
from tests.support.databases import tables
from tests.support.kafka import Topics
from tests.support.pipelines import copied, next_offsets, one_to_one

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.usefixtures("spark")

Databases = Callable[[str], str]


@pytest.fixture
def topic(topics: Topics) -> str:
    name = topics.create(1)
    topics.send_to(name, 0, [{"id": n, "name": "a"} for n in range(3)])
    return name


def one_sentence(error: BaseException) -> bool:
    words = str(error)
    return "\n" not in words and "Traceback" not in words and "stacktrace" not in words and 20 < len(words) < 500


def refused(pipeline: Pipeline, kind: type[TallymarkError], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        pipeline.run("caught-up")
    assert type(caught.value) is kind
    assert one_sentence(caught.value)


def assert_untouched(url: str) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    assert not path.exists() or tables(url) == set()


def test_an_unknown_topic_is_named_with_the_one_that_was_meant(
    brokers: str, topic: str, group: str, database: Databases
) -> None:
    url = database("sqlite")
    refused(one_to_one(brokers, topic[:-1], group, url), UnknownTopic, rf"topic {topic[:-1]} does not.*mean .*{topic}")
    assert_untouched(url)


def test_brokers_that_are_not_there_are_named(group: str, database: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallymark.kafka.brokers.TIMEOUT", 2.0)
    url = database("sqlite")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    refused(
        one_to_one(address, "orders", group, url, patience=0), Unreachable, f"the brokers at {address} can't be reached"
    )
    assert_untouched(url)


def raising(records: DataFrame) -> DataFrame:
    raise KeyError("no such customer")


def nothing(records: DataFrame) -> None:
    """A forgotten return."""


FUNCTIONS: list[tuple[Callable[[Any], Any], str]] = [
    (raising, r"table orders: its function raised KeyError: 'no such customer'"),
    (nothing, r"table orders: its function must return a DataFrame, not NoneType"),
    (lambda r: r.collect(), r"table orders: its function must return a DataFrame, not list"),
    (lambda r: r.selectExpr("1 AS a", "2 AS A"), r"table orders: its function returns A and a more than once"),
    (lambda r: r.select("value.id", "value.id"), r"table orders: its function returns id more than once"),
    (
        lambda r: r.select("customer"),
        r"table orders: its function raised AnalysisException: .*customer",
    ),
    (lambda r: r.select("value.customer"), r"table orders: .*No such struct field `customer` in `id`, `name`"),
    (lambda r: r.selectExpr("1 AS _tallymark_offset"), r"table orders: .*and none named"),
    (lambda r: r.select(), r"table orders: its function must return columns"),
]


@pytest.mark.parametrize(("function", "words"), FUNCTIONS)
def test_a_function_that_can_not_work_is_refused_before_anything_is_made(
    brokers: str, topic: str, group: str, database: Databases, function: Callable[[Any], Any], words: str
) -> None:
    url = database("sqlite")
    pipeline = Pipeline(group=group, source=Kafka(brokers, topic, value=Json("id BIGINT, name STRING")), store=url)
    pipeline.table("good")(copied)
    pipeline.table("orders")(function)
    refused(pipeline, BadInput, words)
    assert_untouched(url)


def test_a_column_type_that_no_database_has_is_refused(
    brokers: str, topic: str, group: str, database: Databases
) -> None:
    url = database("sqlite")
    pipeline = Pipeline(group=group, source=Kafka(brokers, topic), store=url)
    pipeline.table("orders")(lambda r: r.selectExpr("INTERVAL '1' DAY AS wait"))
    refused(pipeline, BadInput, r"column wait")
    assert "orders" not in tables(url)


@pytest.mark.parametrize("schema", ["id NUMBER", "id", "id BIGINT,"])
def test_a_schema_that_can_not_be_read_is_refused(
    brokers: str, topic: str, group: str, database: Databases, schema: str
) -> None:
    url = database("sqlite")
    pipeline = Pipeline(group=group, source=Kafka(brokers, topic, value=Json(schema)), store=url)
    pipeline.table("orders")(lambda r: r.select("value.*"))
    refused(pipeline, BadInput, "Json schema ")
    assert_untouched(url)


def test_a_function_that_fails_on_data_that_it_merges_stops_the_run_and_nothing_moves(
    brokers: str, topic: str, group: str, database: Databases
) -> None:
    from tallymark.spark.errors import FunctionFailed

    url = database("sqlite")
    pipeline = one_to_one(brokers, topic, group, url)
    pipeline.table("cast")(lambda r: r.selectExpr("sum(CAST(value.name AS INT)) AS total"))
    refused(pipeline, FunctionFailed, r"table cast: its function failed on the data: .*CAST_INVALID_INPUT")
    assert next_offsets(url) == {0: 0}
    assert databases.query(url, "SELECT count(*) FROM orders") == [(0,)]


def test_rows_whose_function_hides_which_is_newer_stop_an_upsert(
    brokers: str, topic: str, group: str, database: Databases
) -> None:
    url = database("sqlite")
    pipeline = Pipeline(group=group, source=Kafka(brokers, topic, value=Json("id BIGINT, name STRING")), store=url)
    pipeline.table("twice", key="id", write="upsert", per_batch=True)(
        lambda r: r.select("value.*").unionAll(r.select("value.*")).where("id = 1")
    )
    refused(pipeline, BadInput, "table twice: several rows have the same id")
    assert next_offsets(url) == {0: 0}
    assert databases.query(url, "SELECT count(*) FROM twice") == [(0,)]


def test_an_upsert_whose_rows_do_not_have_the_key_is_refused(
    brokers: str, topic: str, group: str, database: Databases
) -> None:
    url = database("sqlite")
    pipeline = Pipeline(group=group, source=Kafka(brokers, topic, value=Json("id BIGINT")), store=url)
    pipeline.table("orders", key="number", write="upsert")(lambda r: r.select("value.*"))
    refused(pipeline, TableMismatch, "table orders: the key column number is not in the rows, which have id")
    assert "orders" not in tables(url)


def test_an_existing_table_that_does_not_fit_is_refused_and_left_alone(
    brokers: str, topic: str, group: str, store_url: str
) -> None:
    cases = [
        ("id BIGINT", r"table orders has no column name for the rows' string"),
        ("id BIGINT, name VARCHAR(9), part INT, off BIGINT, must INT NOT NULL", r"column must is NOT NULL without"),
    ]
    if not store_url.startswith("sqlite"):
        cases.append(("id BIGINT, name VARCHAR(9), part INT, off INT", r"column off is INT\w* and can't hold"))
    for columns, words in cases:
        execute(store_url, f"CREATE TABLE orders ({columns})")
        refused(one_to_one(brokers, topic, group, store_url), TableMismatch, words)
        assert tables(store_url) == {"orders"}
        assert databases.query(store_url, "SELECT count(*) FROM orders") == [(0,)]
        execute(store_url, "DROP TABLE orders")


def test_an_existing_table_that_fits_is_filled(brokers: str, topic: str, group: str, store_url: str) -> None:
    execute(store_url, "CREATE TABLE orders (more INT, name VARCHAR(9), off BIGINT, part INT, id DECIMAL(20))")
    assert one_to_one(brokers, topic, group, store_url).run("caught-up") == Tally(applied=3)
    assert databases.query(store_url, "SELECT count(*) FROM orders WHERE more IS NULL AND name = 'a'") == [(3,)]


def test_a_pipeline_without_a_table_is_refused(brokers: str, topic: str, group: str, database: Databases) -> None:
    url = database("sqlite")
    pipeline = Pipeline(group=group, source=Kafka(brokers, topic), store=url)
    refused(pipeline, BadInput, r"the pipeline has no table; decorate a function")
    assert_untouched(url)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"write": "replace"}, r"table orders: write='replace' is not known; write append, upsert, ignore"),
        ({"write": "upsert"}, r"table orders: upsert needs key="),
        ({"key": "id"}, r"append takes no key="),
    ],
)
def test_a_table_that_can_not_be_written_so_is_refused_where_it_is_declared(
    settings: dict[str, Any], words: str, database: Databases
) -> None:
    pipeline = Pipeline(group="g", source=Kafka("localhost:9", "t"), store=database("sqlite"))
    with pytest.raises(BadInput, match=words):
        pipeline.table("orders", **settings)
    pipeline.table("orders")(copied)
    with pytest.raises(BadInput, match="table orders has two functions"):
        pipeline.table("orders")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"group": ""}, "group= must be a name"),
        ({"group": "g" * 256}, "group= must be a name of 1 to 255"),
        ({"on_loss": "ignore"}, "on_loss='ignore' is not known; write fail or record"),
        ({"start": "beginning"}, "start='beginning' is not a first-poll strategy"),
    ],
)
def test_settings_that_mean_nothing_are_refused_at_once(settings: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {"group": "g", "source": Kafka("localhost:9", "t"), "store": "sqlite:///x.db"}
    with pytest.raises(BadInput, match=words):
        Pipeline(**usual | settings)


def test_an_end_that_nobody_knows_is_refused(database: Databases) -> None:
    with pytest.raises(BadInput, match="until='done' is not known; write stopped or caught-up"):
        one_to_one("localhost:9", "t", "g", database("sqlite")).run("done")  # type: ignore[arg-type]
