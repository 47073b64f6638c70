"""Write modes on Spark: the content of the table follows from the records, for any division into batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tallymark import Json, Kafka, Limits, Pipeline, Standalone, Tally
from tallymark.core.progress import Progress, Step
from tallymark.errors import BadInput, Unreachable
from tallymark.operate.audit.deep import compare
from tallymark.operate.check import try_pipeline
from tests.support import databases, redis
from tests.support.kafka import Topics
from tests.support.pipelines import UNBALANCED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.usefixtures("spark")

SCHEMA = Json("id BIGINT, name STRING, op STRING, v BIGINT")


def keyed(records: DataFrame) -> DataFrame:
    """A tombstone has no value: its key identifies the row."""
    return records.selectExpr("coalesce(value.id, cast(cast(key as string) as bigint)) AS id", "value.name")


def make(brokers: str, topic: str, group: str, store: str, records: int = 3, **settings: Any) -> Pipeline:
    return Pipeline(
        group=group,
        source=Kafka(brokers, topic, value=SCHEMA),
        store=store,
        limits=Limits(records=records),
        **settings,
    )


def names(url: str, table: str = "orders") -> dict[int, Any]:
    if url.startswith("redis"):
        found = redis.dump(url, f"{table}:")
        return {int(key): row.get(b"name", b"").decode() or None for key, row in found.items()}
    return {int(str(key)): name for key, name in databases.query(url, f"SELECT id, name FROM {table}")}


@pytest.mark.faults_where(url=["mariadb", "redis", "sqlite"], records=2)
@pytest.mark.parametrize("records", [2, 100], ids=["several batches", "one batch"])
def test_tombstones_and_predicates_delete(records: int, brokers: str, topics: Topics, group: str, url: str) -> None:
    topic = topics.create(1)
    for number in (1, 2, 3, 4):
        topics.send_to(topic, 0, [{"id": number, "name": f"n{number}"}], key=str(number))
    topics.send_to(topic, 0, [None], key="1")
    topics.send_to(topic, 0, [{"id": 2, "op": "d"}, {"id": 3, "op": "d"}, {"id": 3, "name": "again"}])
    topics.send_to(topic, 0, [None], key="9")
    pipeline = make(brokers, topic, group, url, records)
    pipeline.table("orders", key="id", write="upsert", delete="tombstone")(keyed)
    pipeline.table("marked", key="id", write="upsert", delete="value.op = 'd' OR value IS NULL")(keyed)

    assert pipeline.run("caught-up") == Tally(applied=9)

    assert names(url) == {2: None, 3: "again", 4: "n4"}
    assert names(url, "marked") == {3: "again", 4: "n4"}


@pytest.mark.faults_where(url=["mariadb", "redis", "sqlite"], records=1)
@pytest.mark.parametrize("records", [1, 100], ids=["several batches", "one batch"])
def test_an_older_version_never_overwrites_a_newer_one(
    records: int, brokers: str, topics: Topics, group: str, url: str
) -> None:
    topic = topics.create(1)
    values = [(1, "five", 5), (1, "three", 3), (2, "none", None), (2, "one", 1), (2, "nothing", None), (3, "a", 7)]
    topics.send_to(topic, 0, [{"id": key, "name": name, "v": v} for key, name, v in [*values, (3, "b", 7)]])
    for key in ("1", "3"):
        topics.send_to(topic, 0, [None], key=key)
    topics.send_to(topic, 0, [{"id": 2, "op": "d", "v": 0}, {"id": 3, "name": "back", "v": 1}])
    pipeline = make(brokers, topic, group, url, records)

    @pipeline.table("orders", key="id", write="upsert", version="v")
    def orders(records: DataFrame) -> DataFrame:
        return records.where("value IS NOT NULL").select("value.id", "value.name", "value.v")

    @pipeline.table("left_over", key="id", write="upsert", version="v", delete="value IS NULL OR value.op = 'd'")
    def left_over(records: DataFrame) -> DataFrame:
        key = "coalesce(value.id, cast(cast(key as string) as bigint)) AS id"
        return records.selectExpr(key, "value.name", "value.v")

    @pipeline.table("firsts", key="id", write="ignore")
    def firsts(records: DataFrame) -> DataFrame:
        return records.where("value IS NOT NULL").select("value.id", "value.name")

    assert pipeline.run("caught-up") == Tally(applied=11)
    assert names(url) == {1: "five", 2: "one", 3: "b"}
    assert names(url, "left_over") == {2: "one", 3: "back"}, "a tombstone deletes every version"
    assert names(url, "firsts") == {1: "five", 2: "none", 3: "a"}


def test_provenance_says_which_record_wrote_a_row(brokers: str, topics: Topics, group: str, store_url: str) -> None:
    topic = topics.create(2)
    topics.send_to(topic, 1, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 1, "name": "c"}])
    pipeline = make(brokers, topic, group, store_url, 100)
    pipeline.table("orders", key="id", write="upsert", provenance=True)(keyed)
    pipeline.table("log", provenance=True)(keyed)
    pipeline.run("caught-up")
    columns = "id, tallymark_topic, tallymark_partition, tallymark_offset"
    assert databases.query(store_url, f"SELECT {columns} FROM orders ORDER BY id") == [
        (1, topic, 1, 2),
        (2, topic, 1, 1),
    ]
    log = databases.query(store_url, f"SELECT {columns} FROM log ORDER BY tallymark_offset")
    assert log == [(1, topic, 1, 0), (2, topic, 1, 1), (1, topic, 1, 2)]
    joined = "SELECT count(*) FROM log JOIN tallymark_batches b ON b.batch = log.tallymark_batch"
    assert databases.query(store_url, joined) == [(3,)]


def test_what_needs_a_single_record_refuses_functions_that_merge_them(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    topic, url = topics.create(1), database("sqlite")
    topics.send_to(topic, 0, [{"id": 1, "name": "a"}])

    def merged(records: DataFrame) -> DataFrame:
        return records.groupBy("value.id").count()

    deleting = make(brokers, topic, group, url)
    deleting.table("counts", key="id", write="upsert", delete="tombstone")(merged)
    with pytest.raises(
        BadInput, match="table counts: delete= needs a function that makes each row from a single record"
    ):
        deleting.run("caught-up")
    totals = make(brokers, topic, group, url)
    totals.table("totals", key="id", write="upsert")(merged)
    with pytest.raises(BadInput, match="table totals: its function merges records, and write='upsert' would replace"):
        totals.run("caught-up")
    with pytest.raises(BadInput, match="or set per_batch=True if no key occurs in a later batch"):
        try_pipeline(totals)
    windows = make(brokers, topic, group, url)
    of_one = "row_number() OVER (PARTITION BY value.id ORDER BY offset DESC) AS nth"
    total = "1 + count(*) OVER (PARTITION BY value.id) AS total"
    windows.table("choosing", key="id", write="upsert")(
        lambda records: records.selectExpr("value.id", of_one).where("nth = 1").select("id")
    )
    windows.table("totals", key="id", write="upsert")(lambda records: records.selectExpr("value.id", total))
    with pytest.raises(BadInput, match="table totals: a window function computes total of the records of one batch"):
        try_pipeline(windows)
    firsts = make(brokers, topic, group, url)
    firsts.table("firsts", key="id", write="ignore")(merged)
    with pytest.raises(BadInput, match="table firsts: its function merges records, and write='ignore' would keep"):
        firsts.run("caught-up")
    wrong = make(brokers, topic, group, url)
    wrong.table("orders", key="id", write="upsert", delete="nonsense = 1")(keyed)
    with pytest.raises(BadInput, match="table orders: delete='nonsense = 1' can't be parsed"):
        wrong.run("caught-up")


def odd(records: DataFrame) -> DataFrame:
    return records.selectExpr("value.`a.b`", "value.`b``c`", "value.`v.` + 10 AS `v.`", "struct(value) AS `s.t`")


@pytest.mark.faults_where(road="executors")
@pytest.mark.faults_where(kind="mariadb")
@pytest.mark.parametrize("road", ["driver", "executors"])
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_column_may_have_any_name(
    kind: str, road: Any, brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    """Spark interprets dots and backticks: such a column is not a field of another, and merges no records."""
    topic, url = topics.create(1), database(kind)
    topics.send_to(topic, 0, [{"a.b": n % 2, "b`c": "x", "v.": n} for n in range(6)])
    source = Kafka(brokers, topic, value=Json("`a.b` BIGINT, `b``c` STRING, `v.` BIGINT, `at``.` TIMESTAMP"))
    pipeline = Pipeline(group=group, source=source, store=url, road=road, membership=Standalone())
    pipeline.table("picked", provenance=True)(lambda records: records.select("value.*"))
    pipeline.table("latest", key="a.b", write="upsert", version="v.")(lambda records: records.select("value.*"))
    pipeline.table("computed", key=("a.b", "b`c"), write="upsert", version="v.", provenance=True)(odd)
    pipeline.table("firsts", key="a.b", write="ignore")(odd)
    assert pipeline.run("caught-up") == Tally(applied=6)
    columns = '"a.b", "b`c", "v."' if kind == "postgresql" else "`a.b`, `b``c`, `v.`"
    expected = {"picked": range(6), "latest": [4, 5], "computed": [14, 15], "firsts": [10, 11]}
    for table, versions in expected.items():
        found = databases.query(url, f"SELECT {columns} FROM {table}")
        assert set(found) == {(version % 2, "x", version) for version in versions}, table
        assert len(found) == len(versions), table
    assert compare(pipeline).wrong == 0


# The executors' path


@pytest.mark.faults_where(kind="mariadb")
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_executors_stage_what_one_transaction_promotes(
    kind: str,
    brokers: str,
    topics: Topics,
    group: str,
    database: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "tallymark")
    topic, url = topics.create(3), database(kind)
    topics.send(topic, [{"id": n % 40, "name": f"n{n}", "v": n} for n in range(120)], partitions=3)
    topics.send(topic, [b"garbage"], partitions=1)
    pipeline = make(brokers, topic, group, url, 60, road="executors")
    pipeline.table("log", provenance=True)(keyed)

    @pipeline.table("orders", key="id", write="upsert", version="v")
    def orders(records: DataFrame) -> DataFrame:
        return records.select("value.id", "value.name", "value.v")

    assert pipeline.run("caught-up") == Tally(applied=120, dead=1)
    assert caplog.text.count("path=executors") == 2
    assert "smaller batches" not in caplog.text
    assert names(url) == {n: f"n{n + 80}" for n in range(40)}
    assert databases.query(url, "SELECT count(*), count(DISTINCT name) FROM log") == [(120, 120)]
    assert databases.query(url, UNBALANCED) == []
    assert not stages(url)


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_executors_stage_picked_columns_and_leave_a_batch_with_a_refused_row_to_the_driver(
    kind: str,
    brokers: str,
    topics: Topics,
    group: str,
    database: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "tallymark")
    topic, url = topics.create(3), database(kind)
    topics.send(topic, [{"id": n, "name": f"n{n}", "v": n} for n in range(120)], partitions=2)
    # A partition of garbage only, a name that PostgreSQL can't store, and text that resembles JSON.
    topics.send_to(topic, 2, [b"garbage", b"[]"])
    topics.send_to(topic, 0, [b'{"id": 1000, "v": 007}', b'{"id": 1001, "name": "a\\u0000b"}'])
    topics.send_to(topic, 0, [b'\xef\xbb\xbf{"id": 1002, "name": "n"}'])
    pipeline = make(brokers, topic, group, url, 200, road="executors")
    pipeline.table("orders")(lambda records: records.select("value.id", "value.name"))
    pipeline.table("log", provenance=True)(lambda records: records.select("value.id"))
    tally = pipeline.run("caught-up")
    assert tally == (Tally(applied=120, dead=5) if kind == "postgresql" else Tally(applied=121, dead=4))
    # PostgreSQL refuses the name, and only the driver finds the record of a refused row.
    assert ("reading through the driver" if kind == "postgresql" else "path=executors") in caplog.text
    assert databases.query(url, "SELECT count(*), count(DISTINCT id) FROM orders") == [(tally.applied, tally.applied)]
    assert databases.query(url, "SELECT count(*), count(DISTINCT id) FROM log") == [(tally.applied, tally.applied)]
    assert databases.query(url, UNBALANCED) == []
    assert not stages(url)


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_staged_row_that_is_refused_is_found_in_smaller_batches(
    kind: str,
    brokers: str,
    topics: Topics,
    group: str,
    database: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    from pyspark.sql.functions import count

    caplog.set_level("INFO", "tallymark")
    topic, url = topics.create(2), database(kind)
    databases.execute(url, "CREATE TABLE orders (id BIGINT, name VARCHAR(4))")
    topics.send(topic, [{"id": n, "name": "too long" if n in (5, 30) else "ok"} for n in range(32)], partitions=2)
    pipeline = make(brokers, topic, group, url, 100, road="executors")
    pipeline.table("orders")(keyed)
    pipeline.table("totals")(lambda records: records.groupBy("partition").agg(count("*").alias("records")))
    assert pipeline.run("caught-up") == Tally(applied=30, dead=2)
    assert "committing in smaller batches" in caplog.text
    assert databases.query(url, "SELECT sum(records) FROM totals") == [(30,)]
    assert names(url) == {n: "ok" for n in range(32) if n not in (5, 30)}
    assert not stages(url)


def test_staged_rows_without_a_key_are_dead_and_in_no_other_table(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tallymark")
    topic, url = topics.create(1), database("postgresql")
    databases.execute(url, "CREATE TABLE orders (id BIGINT UNIQUE, name VARCHAR(6))")
    topics.send_to(topic, 0, [{"id": 1, "name": "ok"}, {"name": "no id"}])
    pipeline = make(brokers, topic, group, url, 100, road="executors")
    pipeline.table("orders", key="id", write="upsert")(keyed)
    pipeline.table("totals")(lambda records: records.groupBy("partition").count())
    left: list[object] = []

    def look(step: Step, _: Progress) -> None:
        left.extend(stages(url) if step is Step.COMMITTED else ())

    assert pipeline.run("caught-up", on_step=look) == Tally(applied=1, dead=1)
    assert "a staged row was refused (key column id is NULL or NaN)" in caplog.text
    assert names(url) == {1: "ok"}
    assert databases.query(url, 'SELECT sum("count") FROM totals') == [(1,)]
    assert databases.query(url, UNBALANCED) == []
    assert not left, "what was refused is removed at once"


def test_what_a_crashed_run_has_staged_is_removed_by_the_next_owner(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    from tallymark.stores.opening import open_sql

    topic, url = topics.create(1), database("postgresql")
    topics.send_to(topic, 0, [{"id": 1, "name": "a"}])
    store = open_sql(url)
    import pyarrow as pa

    for owner in (group, "another-group"):
        made = store.stages(owner, "4711-dead")
        assert made is not None
        made.open(pa.schema([("id", pa.int64())]))
    assert len(stages(url)) == 2
    pipeline = make(brokers, topic, group, url)
    pipeline.table("orders")(keyed)
    pipeline.run("caught-up")
    assert len(stages(url)) == 1
    store.close()


def test_a_store_that_executors_can_not_reach_is_named_and_nothing_moves(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallymark.stores.sql.staging import Stages

    topic, url, opened = topics.create(1), database("postgresql"), Stages.open
    topics.send_to(topic, 0, [{"id": n, "name": "a"} for n in range(4)])
    nowhere = "postgresql://me:geheim@127.0.0.1:1/db"
    monkeypatch.setattr(Stages, "open", lambda stages, schema: replace(opened(stages, schema), url=nowhere))
    pipeline = make(brokers, topic, group, url, 100, road="executors", patience=0.5)
    pipeline.table("orders")(keyed)
    with pytest.raises(
        Unreachable, match=r"an executor could not stage rows: postgresql://me:\*\*\*@127\.0\.0\.1:1"
    ) as caught:
        pipeline.run("caught-up")
    assert "geheim" not in str(caught.value)
    assert databases.query(url, "SELECT max(next_offset) FROM tallymark_positions") == [(0,)]
    assert not stages(url)


def test_sqlite_is_no_place_to_stage(brokers: str, topics: Topics, group: str, database: Callable[[str], str]) -> None:
    pipeline = make(brokers, topics.create(1), group, database("sqlite"), road="executors")
    pipeline.table("orders")(keyed)
    with pytest.raises(BadInput, match="road='executors': executors can't stage rows in sqlite"):
        pipeline.run("caught-up")


def stages(url: str) -> list[object]:
    where = "'public'" if url.startswith("postgresql") else "DATABASE()"
    query = f"SELECT table_name FROM information_schema.tables WHERE table_schema = {where}"
    return [name for (name,) in databases.query(url, query) if str(name).startswith("tallymark_stage")]
