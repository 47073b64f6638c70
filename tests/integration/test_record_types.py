"""Several record types in one topic, each in its own table: by schema, by header and by a condition on the value."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import tallymark as tm
from tallymark.core.unmatched import NO_ROW
from tallymark.errors import BadInput
from tests.support.avro import framed, prefix, text
from tests.support.background import wait_for
from tests.support.command import in_process
from tests.support.databases import query
from tests.support.kafka import Topics
from tests.support.pipelines import UNBALANCED, RunningPipeline
from tests.support.protobuf_schemas import tagged
from tests.support.registry import SchemaRegistry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.usefixtures("spark")

Database = Callable[[str], str]
COUNT = 40


def record(name: str, field: str, kind: str) -> dict[str, Any]:
    return {"type": "record", "name": f"shop.{name}", "fields": [{"name": field, "type": kind}]}


PLACED, CANCELLED, REFUNDED = (
    record("Placed", "id", "long"),
    record("Cancelled", "why", "string"),
    record("Refunded", "id", "long"),
)
PROTO = """
syntax = "proto3"; package shop;
message Placed { int64 id = 1; } message Cancelled { string why = 1; } message Refunded { int64 id = 1; }
"""


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


@pytest.fixture(params=["direct", "tasks"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every batch takes this path."""
    from tallymark.spark import reader

    monkeypatch.setattr(reader, "choose", lambda *_, **__: request.param)
    return str(request.param)


def of_type(name: str) -> Callable[[DataFrame], DataFrame]:
    return lambda records: records.where(f"value.{name} IS NOT NULL").select(f"value.{name}.*")


def pipeline_of(brokers: str, topic: str, group: str, url: str, value: Any, **options: Any) -> tm.Pipeline:
    source = tm.Kafka(brokers, topic, value=value)
    return tm.Pipeline(group=group, source=source, store=url, membership=tm.Standalone(), **options)


def events(brokers: str, topic: str, group: str, url: str, value: Any, *types: str) -> tm.Pipeline:
    """A pipeline with a table for each type."""
    made = pipeline_of(brokers, topic, group, url, value)
    for name in types:
        made.table(name.lower())(of_type(name))
    return made


def ids(url: str, table: str) -> list[int]:
    return sorted(int(str(found)) for (found,) in query(url, f"SELECT id FROM {table}"))


def letters(url: str) -> set[tuple[str, object]]:
    found = query(url, "SELECT error, table_name FROM tallymark_dead_letters")
    return {(str(error), table) for error, table in found}


@pytest.mark.faults_where(path="direct", kind="sqlite")
@pytest.mark.faults_where(path="tasks", kind="postgresql")
@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_each_subject_has_a_table_and_an_unknown_type_is_dead_until_it_is_listed(
    topics: Topics, brokers: str, group: str, registry: SchemaRegistry, database: Database, path: str, kind: str
) -> None:
    topic, url = topics.create(2), database(kind)

    def subject(name: str) -> str:
        return f"{topic}-shop.{name}"

    placed, cancelled, refunded = (
        registry.add(f"{topic}-{schema['name']}", text(schema))[0] for schema in (PLACED, CANCELLED, REFUNDED)
    )
    for n in range(COUNT):
        values = [framed(placed, PLACED, {"id": n}), framed(cancelled, CANCELLED, {"why": f"w{n}"})]
        topics.send(topic, [*values, framed(refunded, REFUNDED, {"id": n})] if n % 10 == 0 else values, partitions=2)
    known = [subject("Placed"), subject("Cancelled")]
    avro = tm.Avro(registry.url, subject=known)
    assert events(brokers, topic, group, url, avro, "Placed", "Cancelled").run("caught-up") == tm.Tally(
        applied=2 * COUNT, dead=4
    )
    assert ids(url, "placed") == list(range(COUNT))
    assert len(query(url, "SELECT DISTINCT why FROM cancelled")) == COUNT
    said = "can't be read by the reader's schema: shop.Refunded is none of shop.Placed, shop.Cancelled"
    said = f"schema {refunded} ({topic}-shop.Refunded version 1) {said}"
    assert letters(url) == {(said, None)}
    assert not query(url, UNBALANCED)
    more = tm.Avro(registry.url, subject=[*known, subject("Refunded")])
    later = events(brokers, topic, group, url, more, "Placed", "Cancelled", "Refunded")
    assert later.replay() == tm.Tally(applied=4)
    topics.send(topic, [framed(refunded, REFUNDED, {"id": COUNT})], partitions=2)
    assert later.run("caught-up") == tm.Tally(applied=1)
    assert ids(url, "refunded") == [0, 10, 20, 30, COUNT]
    assert ids(url, "placed") == list(range(COUNT))


@pytest.mark.faults_where(path="direct")
def test_each_message_has_a_table(
    topics: Topics, brokers: str, group: str, registry: SchemaRegistry, database: Database, path: str
) -> None:
    topic, url = topics.create(1), database("postgresql")
    id, _ = registry.add(f"{topic}-value", PROTO, "PROTOBUF")
    start = prefix(id)
    for n in range(COUNT):
        topics.send(topic, [start + b"\0" + tagged(1, n), start + b"\x02\x02" + tagged(1, b"late")])
    topics.send(topic, [start + b"\x02\x04" + tagged(1, 7), None, start + b"\0"])
    value = tm.Protobuf(registry.url, message=["shop.Placed", "shop.Cancelled"])
    assert events(brokers, topic, group, url, value, "Placed", "Cancelled").run("caught-up") == tm.Tally(
        applied=2 * COUNT + 2, dead=1
    )
    assert ids(url, "placed") == [0, *range(COUNT)]
    assert query(url, "SELECT why, count(*) FROM cancelled GROUP BY why") == [("late", COUNT)]
    assert letters(url) == {(f"the value is a shop.Refunded of schema {id}, none of shop.Placed, shop.Cancelled", None)}


BY_HEADER = "exists(headers, h -> h.key = 'type' AND CAST(h.value AS STRING) = '{}')"


def by_header(name: str) -> Callable[[DataFrame], DataFrame]:
    return lambda records: records.where(BY_HEADER.format(name)).select("value.id")


def send_by_header(topics: Topics, topic: str) -> None:
    """Also without a header, and with others before the one that counts."""
    for n in range(COUNT):
        for name in ("placed", "cancelled"):
            topics.send(topic, [{"id": n}], partitions=1, headers=[("trace", b"\xff"), ("type", name.encode())])
    topics.send(topic, [{"id": 100}], partitions=1)
    topics.send(topic, [{"id": 101}], partitions=1, headers=[("type", b"refunded")])
    topics.send(topic, [{"id": 102}], partitions=1, headers=[("type", None)])


@pytest.mark.faults_where(path="direct")
def test_a_header_selects_the_table_and_a_last_table_takes_the_rest(
    topics: Topics, brokers: str, group: str, database: Database, path: str
) -> None:
    topic, url = topics.create(1), database("postgresql")
    send_by_header(topics, topic)
    pipeline = pipeline_of(brokers, topic, group, url, tm.Json("id BIGINT"), unmatched="dead")
    for name in ("placed", "cancelled"):
        pipeline.table(name)(by_header(name))
    known = f"({BY_HEADER.format('placed')} OR {BY_HEADER.format('cancelled')})"
    pipeline.table("rest")(lambda records: records.where(f"{known} IS NOT TRUE").select("value.id"))
    assert pipeline.run("caught-up") == tm.Tally(applied=2 * COUNT + 3)
    assert ids(url, "placed") == ids(url, "cancelled") == list(range(COUNT))
    assert ids(url, "rest") == [100, 101, 102]


@pytest.mark.faults
def test_executors_stage_the_rows_of_each_type(
    topics: Topics, brokers: str, group: str, registry: SchemaRegistry, database: Database
) -> None:
    topic, url = topics.create(1), database("postgresql")
    placed, cancelled = (registry.add(schema["name"], text(schema))[0] for schema in (PLACED, CANCELLED))
    for n in range(COUNT):
        values = [framed(placed, PLACED, {"id": n}), framed(cancelled, CANCELLED, {"why": "late"})]
        topics.send(topic, [*values, framed(placed, REFUNDED, {"id": n})[:-1]], headers=[("type", b"x")])
    avro = tm.Avro(registry.url, subject=["shop.Placed", "shop.Cancelled"])
    pipeline = pipeline_of(brokers, topic, group, url, avro, road="executors")
    pipeline.table("placed")(of_type("Placed"))
    pipeline.table("by_header")(lambda records: records.where(BY_HEADER.format("x")).select("value.Cancelled.why"))
    assert pipeline.run("caught-up") == tm.Tally(applied=2 * COUNT, dead=COUNT)
    assert ids(url, "placed") == list(range(COUNT))
    assert query(url, "SELECT count(*), count(why) FROM by_header") == [(2 * COUNT, COUNT)]


def test_a_record_without_a_row_is_dead_if_the_pipeline_says_so(
    topics: Topics, brokers: str, group: str, database: Database, path: str
) -> None:
    topic, url = topics.create(1), database("postgresql")
    send_by_header(topics, topic)
    topics.send(topic, [b"no JSON"], partitions=1, headers=[("type", b"placed")])
    counting = pipeline_of(brokers, topic, f"{group}-all", url, tm.Json("id BIGINT"))
    counting.table("counted")(by_header("placed"))
    assert counting.run("caught-up") == tm.Tally(applied=2 * COUNT + 3, dead=1)
    pipeline = pipeline_of(brokers, topic, group, url, tm.Json("id BIGINT"), unmatched="dead")
    pipeline.table("placed")(by_header("placed"))
    pipeline.table("cancelled", provenance=True)(by_header("cancelled"))
    assert pipeline.run("caught-up") == tm.Tally(applied=2 * COUNT, dead=4)
    assert ids(url, "placed") == ids(url, "cancelled") == list(range(COUNT))
    mine = f"FROM tallymark_dead_letters WHERE group_name = '{group}' AND error = '{NO_ROW}' AND table_name IS NULL"
    assert query(url, f"SELECT record_offset {mine} ORDER BY 1") == [(2 * COUNT + n,) for n in range(3)]
    assert not query(url, UNBALANCED)
    assert pipeline.replay() == tm.Tally(dead=4)
    pipeline.table("others")(lambda records: records.selectExpr("value.id", "size(headers) AS n"))
    assert pipeline.replay() == tm.Tally(applied=3, dead=1)
    assert ids(url, "others") == [100, 101, 102]


@pytest.mark.faults_where(path="tasks")
def test_a_record_that_a_function_fails_on_is_dead_once(
    topics: Topics, brokers: str, group: str, database: Database, path: str
) -> None:
    topic, url = topics.create(1), database("postgresql")
    topics.send(topic, [{"id": n} for n in range(4)], partitions=1)
    pipeline = pipeline_of(brokers, topic, group, url, tm.Json("id BIGINT"), unmatched="dead")
    pipeline.table("computed")(
        lambda records: records.where("value.id < 3").selectExpr("value.id", "1 / value.id AS x")
    )
    assert pipeline.run("caught-up") == tm.Tally(applied=2, dead=2)
    assert ids(url, "computed") == [1, 2]
    found = query(url, "SELECT record_offset, table_name FROM tallymark_dead_letters ORDER BY 1")
    assert found == [(0, "computed"), (3, None)]


@pytest.mark.parametrize(
    ("road", "function", "said"),
    [
        ("auto", lambda records: records.groupBy("value.id").count(), "functions that compute the rows of each record"),
        ("executors", lambda records: records.select("value.id"), "road='executors': unmatched='dead' compares"),
    ],
)
def test_what_can_not_tell_which_records_have_no_row_is_refused(
    topics: Topics, brokers: str, group: str, database: Database, road: Any, function: Any, said: str
) -> None:
    topic, url = topics.create(1), database("postgresql")
    pipeline = pipeline_of(brokers, topic, group, url, tm.Json("id BIGINT"), unmatched="dead", road=road)
    pipeline.table("some")(function)
    with pytest.raises(BadInput, match=said):
        pipeline.run("caught-up")


def test_a_function_of_a_topic_that_appears_later_is_refused_too(
    topics: Topics, brokers: str, group: str, database: Database
) -> None:
    name, url = f"late{time.monotonic_ns()}", database("postgresql")
    source = tm.Kafka(brokers, rf"^{name}", value=tm.Json("id BIGINT"))
    pipeline = tm.Pipeline(group=group, source=source, store=url, membership=tm.Standalone(), unmatched="dead")
    pipeline.table("{topic}")(lambda records: records.groupBy("value.id").count())
    with RunningPipeline(pipeline) as running:
        topics.send(topics.create(1, name=name), [{"id": 1}])
        wait_for(lambda: not running.alive)
        with pytest.raises(BadInput, match="functions that compute the rows of each record"):
            running.result()


def test_what_unmatched_may_be(brokers: str, group: str) -> None:
    with pytest.raises(BadInput, match="unmatched='skip' is not known; write applied or dead"):
        pipeline_of(brokers, "t", group, "sqlite:///x.db", tm.Bytes(), unmatched="skip")


FILE = """
group = "{group}"
store = "{store}"
standalone = true
unmatched = "dead"
[source]
brokers = "{brokers}"
topics = ["{topic}"]
format = {{ {format} }}
[tables.placed]
sql = "SELECT value.{placed} FROM records WHERE {is_placed}"
[tables.cancelled]
sql = "SELECT value.{cancelled} FROM records WHERE {is_cancelled}"
"""


def test_a_file_has_a_table_for_each_subject(
    topics: Topics, brokers: str, group: str, registry: SchemaRegistry, database: Database, tmp_path: Path
) -> None:
    topic, url, file = topics.create(1), database("sqlite"), tmp_path / "shop.toml"
    placed, cancelled = (registry.add(schema["name"], text(schema))[0] for schema in (PLACED, CANCELLED))
    topics.send(topic, [framed(placed, PLACED, {"id": 1}), framed(cancelled, CANCELLED, {"why": "late"}), None])
    avro = f'avro = {{ registry = "{registry.url}", subject = ["shop.Placed", "shop.Cancelled"] }}'
    found = {"placed": "Placed.*", "is_placed": "value.Placed IS NOT NULL"}
    found |= {"cancelled": "Cancelled.*", "is_cancelled": "value.Cancelled IS NOT NULL"}
    file.write_text(FILE.format(group=group, store=url, brokers=brokers, topic=topic, format=avro, **found))
    checked = in_process("check", file)
    assert f"dead: {topic}[0] offset 2: {NO_ROW}" in checked.stdout, checked
    ran = in_process("run", file, "--until", "caught-up")
    assert ran.returncode == 0, ran
    assert (ids(url, "placed"), query(url, "SELECT why FROM cancelled")) == ([1], [("late",)])
    assert letters(url) == {(NO_ROW, None)}


@pytest.mark.faults_where(path="tasks")
def test_a_file_has_a_table_for_each_condition(
    topics: Topics, brokers: str, group: str, database: Database, tmp_path: Path, path: str
) -> None:
    topic, url, file = topics.create(1), database("sqlite"), tmp_path / "shop.toml"
    topics.send(topic, [{"id": 1, "type": "placed"}, {"id": 2, "type": "cancelled"}, {"id": 3}], partitions=1)
    found = {"placed": "id", "is_placed": "value.type = 'placed'"}
    found |= {"cancelled": "id", "is_cancelled": "value.type = 'cancelled'"}
    json_ = 'json = "id BIGINT, type STRING"'
    file.write_text(FILE.format(group=group, store=url, brokers=brokers, topic=topic, format=json_, **found))
    other = tmp_path / "other.toml"
    other.write_text(file.read_text().replace('unmatched = "dead"', ""))
    checked = in_process("check", other)
    assert "records that give no row to any table: 1; they count as applied, unless unm" in checked.stdout, checked
    ran = in_process("run", file, "--until", "caught-up")
    assert ran.returncode == 0, ran
    assert (ids(url, "placed"), ids(url, "cancelled")) == ([1], [2])
    assert letters(url) == {(NO_ROW, None)}


def test_a_consumer_gets_the_type_of_each_record(
    topics: Topics, brokers: str, group: str, registry: SchemaRegistry, database: Database
) -> None:
    topic, url = topics.create(1), database("sqlite")
    placed, cancelled, refunded = (
        registry.add(schema["name"], text(schema))[0] for schema in (PLACED, CANCELLED, REFUNDED)
    )
    values = [framed(placed, PLACED, {"id": 1}), framed(cancelled, CANCELLED, {"why": "late"})]
    topics.send(topic, [*values, framed(refunded, REFUNDED, {"id": 2})])
    source = tm.Kafka(brokers, topic, value=tm.Avro(registry.url, subject=["shop.Placed", "shop.Cancelled"]))
    consumer = tm.Consumer(group=group, source=source, store=url, membership=tm.Standalone())
    found: list[Any] = []
    for batch in consumer.batches(until="caught-up"):
        with batch.transaction() as db:
            found += [record.value for record in batch.records]
            db.write("placed", pa.Table.from_struct_array(batch.records.values_to_arrow()["Placed"].drop_null()))
    assert found == [{"Placed": {"id": 1}, "Cancelled": None}, {"Placed": None, "Cancelled": {"why": "late"}}]
    assert query(url, "SELECT * FROM placed") == [(1,)]
    assert len(letters(url)) == 1
