"""A user's streaming query: the rows of every micro-batch are written once, whatever Spark repeats."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tallymark import Sink
from tallymark.core.claims import PositionChanges
from tallymark.core.progress import Progress, Step
from tallymark.core.spans import Partition
from tallymark.core.tables import TableSpec
from tallymark.errors import BadInput
from tallymark.stores.opening import open_store
from tests.support import databases
from tests.support.command import in_process
from tests.support.crash import new_owner
from tests.support.kafka import Topics
from tests.support.pipelines import UNBALANCED, coordinates
from tests.support.streams import NAME, TIMEOUT, files, kafka, put, run, run_until_killed, sink_into, start, totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.usefixtures("spark")]

POSITION = "SELECT next_offset, first_offset, applied FROM tallymark_positions"


class PowerFailure(Exception):
    pass


def failing_at(step: Step, number: int) -> Callable[[Step, Progress], None]:
    """Ends the query at this step, before Spark's checkpoint records it."""

    def watch(passed: Step, progress: Progress) -> None:
        if passed is step and progress.batch.split("-")[1] == str(number):
            raise PowerFailure

    return watch


def ids(url: str, table: str = "sales") -> list[str]:
    return sorted(str(one) for (one,) in databases.query(url, f"SELECT id FROM {table}"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three files, each a micro-batch."""
    folder = tmp_path / "in"
    for n in range(3):
        put(folder, f"f{n}", {"id": 2 * n, "shop": "a", "amount": 1.5}, {"id": 2 * n + 1, "shop": "b", "amount": 2.0})
    return folder


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("postgresql", Step.COMMITTED),
        ("sqlite", Step.MOVED),
        pytest.param("mariadb", Step.COMMITTED, marks=pytest.mark.faults),
        pytest.param("mariadb", Step.MOVED, marks=pytest.mark.faults),
    ],
)
def test_a_micro_batch_that_spark_repeats_is_written_once(
    spark: SparkSession, database: Callable[[str], str], source: Path, tmp_path: Path, kind: str, step: Step
) -> None:
    store_url = database(kind)
    with pytest.raises(Exception, match="PowerFailure"):
        run(sink_into(store_url, failing_at(step, 1)), files(spark, source), tmp_path / "checkpoint")
    assert databases.query(store_url, POSITION) == [(2, 0, 2) if step is Step.COMMITTED else (1, 0, 1)]

    run(sink_into(store_url), files(spark, source), tmp_path / "checkpoint")

    assert ids(store_url) == ["0", "1", "2", "3", "4", "5"]
    assert databases.query(store_url, POSITION) == [(3, 0, 3)]
    assert databases.query(store_url, UNBALANCED) == []


def test_redis_takes_micro_batches_too(spark: SparkSession, redis_url: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="PowerFailure"):
        run(sink_into(redis_url, failing_at(Step.COMMITTED, 1)), files(spark, source), tmp_path / "checkpoint")
    run(sink_into(redis_url), files(spark, source), tmp_path / "checkpoint")

    store = open_store(redis_url)
    [position] = store.positions(NAME)[NAME]
    store.close()
    assert (position.next_offset, position.tally.applied, position.balanced) == (3, 3, True)


def test_what_a_deleted_checkpoint_repeats_is_refused_and_not_dropped(
    spark: SparkSession, database: Callable[[str], str], source: Path, tmp_path: Path
) -> None:
    url = database("sqlite")
    run(sink_into(url), files(spark, source), tmp_path / "checkpoint")
    shutil.rmtree(tmp_path / "checkpoint")
    put(source, "f3", {"id": 6, "shop": "a", "amount": 1.0})

    with pytest.raises(Exception, match="start the query with the old checkpoint, or give the sink another name"):
        run(sink_into(url), files(spark, source), tmp_path / "checkpoint")

    assert ids(url) == ["0", "1", "2", "3", "4", "5"]
    assert databases.query(url, POSITION) == [(3, 0, 3)]


@pytest.mark.parametrize("behind", [1, 2])
def test_an_older_copy_of_the_checkpoint_is_refused_because_its_batches_hold_other_rows(
    spark: SparkSession, database: Callable[[str], str], tmp_path: Path, behind: int
) -> None:
    url, folder, checkpoint, old = database("sqlite"), tmp_path / "in", tmp_path / "checkpoint", tmp_path / "old"
    put(folder, "f0", {"id": 0})
    run(sink_into(url), files(spark, folder, "id BIGINT"), checkpoint)
    shutil.copytree(checkpoint, old)
    for n in range(1, behind + 1):
        put(folder, f"f{n}", {"id": n})
        run(sink_into(url), files(spark, folder, "id BIGINT"), checkpoint)
    # The old copy plans another file as its next batch than the one that was written.
    (folder / "f1.json").unlink()
    put(folder, "g1", {"id": 99})

    with pytest.raises(Exception, match="with other rows, so it is an older copy"):
        run(sink_into(url), files(spark, folder, "id BIGINT"), old)

    assert ids(url) == [str(n) for n in range(behind + 1)]


def test_of_two_drivers_with_the_same_checkpoint_the_older_one_is_fenced(
    spark: SparkSession, database: Callable[[str], str], source: Path, tmp_path: Path
) -> None:
    url, checkpoint = database("postgresql"), tmp_path / "checkpoint"
    other = open_store(url)

    def overtaken(step: Step, progress: Progress) -> None:
        if step is Step.STAGED and progress.batch.split("-")[1] == "1":
            other.claim(NAME, new_owner(), [Partition(NAME, 0)], lambda _: PositionChanges({}), {})

    with closing(other), pytest.raises(Exception, match=r"was claimed by run \S+ on test-host"):
        run(sink_into(url, overtaken), files(spark, source), checkpoint)

    assert ids(url) == ["0", "1"]
    assert databases.query(url, POSITION) == [(1, 0, 1)]
    run(sink_into(url), files(spark, source), checkpoint)
    assert ids(url) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.faults
def test_a_driver_with_a_copy_of_the_checkpoint_fences_the_first_one_and_goes_on(
    spark: SparkSession, brokers: str, topics: Topics, database: Callable[[str], str], tmp_path: Path
) -> None:
    url, topic, checkpoint, copy = database("postgresql"), topics.create(2), tmp_path / "checkpoint", tmp_path / "copy"
    topics.send(topic, [{"id": n} for n in range(30)], partitions=2)

    def overtaken(step: Step, progress: Progress) -> None:
        if step is Step.STAGED and progress.batch.split("-")[1] == "1":
            shutil.copytree(checkpoint, copy)
            assert run_until_killed(f"{brokers}/{topic}", copy, url, Step.DONE, 99) == 0

    with pytest.raises(Exception, match="was claimed by"):
        run(sink_into(url, overtaken), kafka(spark, brokers, topic), checkpoint)

    assert coordinates(url, "sales") == sorted(topics.committed(topic))
    assert databases.query(url, POSITION) == [(3, 0, 3)]


def test_a_sink_can_join_a_query_that_has_run_before(
    spark: SparkSession, database: Callable[[str], str], source: Path, tmp_path: Path
) -> None:
    url = database("sqlite")
    run(sink_into(url), files(spark, source), tmp_path / "checkpoint")
    put(source, "f3", {"id": 6, "shop": "a", "amount": 1.0})

    run(sink_into(url, name="late"), files(spark, source), tmp_path / "checkpoint")

    assert databases.query(url, f"{POSITION} WHERE group_name = 'late'") == [(4, 3, 1)]


def test_batches_that_went_past_the_sink_are_missed(
    spark: SparkSession, database: Callable[[str], str], source: Path, tmp_path: Path
) -> None:
    url = database("sqlite")
    run(sink_into(url), files(spark, source), tmp_path / "checkpoint")
    put(source, "f3", {"id": 6, "shop": "a", "amount": 1.0})
    run(sink_into(url, name="other"), files(spark, source), tmp_path / "checkpoint")
    put(source, "f4", {"id": 7, "shop": "a", "amount": 1.0})

    with pytest.raises(Exception, match="batch 4 follows batch 2, so the rows in between would be missing"):
        run(sink_into(url), files(spark, source), tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("kind", "road"),
    [
        ("sqlite", "driver"),
        pytest.param("postgresql", "executors", marks=pytest.mark.faults),
        pytest.param("mariadb", "executors", marks=pytest.mark.faults),
    ],
)
def test_tables_of_one_sink_are_shaped_and_written_together(
    spark: SparkSession, database: Callable[[str], str], tmp_path: Path, kind: str, road: str
) -> None:
    url, folder = database(kind), tmp_path / "in"
    put(folder, "f0", {"id": 1, "v": 1, "place": {"x": 1}}, {"id": 2, "v": 1}, {"id": 1, "v": 3})
    put(folder, "f1", {"id": 1, "v": 2}, {"id": 3, "v": 1})
    sink = Sink(NAME, store=url, road=road)  # type: ignore[arg-type]
    sink.table("latest", key="id", write="upsert", version="v")

    @sink.table("places")
    def places(rows: DataFrame) -> DataFrame:
        return rows.where("place IS NOT NULL").select("id", "place")

    run(sink, files(spark, folder, "id BIGINT, v BIGINT, place STRUCT<x: INT>"), tmp_path / "checkpoint")

    assert databases.query(url, "SELECT id, v FROM latest ORDER BY id") == [(1, 3), (2, 1), (3, 1)]
    [(number, place)] = databases.query(url, "SELECT id, place FROM places")
    assert (number, str(place).replace(" ", "").replace("'", '"')) == (1, '{"x":1}')


def test_rows_are_deleted_by_a_condition_on_them(
    spark: SparkSession, database: Callable[[str], str], tmp_path: Path
) -> None:
    url, folder = database("sqlite"), tmp_path / "in"
    put(folder, "f0", {"id": 1, "op": "c", "v": 10}, {"id": 2, "op": "c", "v": 10})
    put(folder, "f1", {"id": 1, "op": "d"}, {"id": 2, "op": "d", "v": 9}, {"id": 3, "op": "c"})
    sink = Sink(NAME, store=url)
    sink.table("sales", key="id", write="upsert", delete="op = 'd'")
    sink.table("versions", key="id", write="upsert", version="v", delete="op = 'd'")

    run(sink, files(spark, folder, "id BIGINT, op STRING, v BIGINT"), tmp_path / "checkpoint")

    assert ids(url) == ["3"]
    assert ids(url, "versions") == ["2", "3"]


def test_a_deletion_without_a_version_among_rows_of_its_key_is_refused(spark: SparkSession) -> None:
    """The rows of a micro-batch are ordered only by their versions."""
    from tallymark.spark.microbatch import collected, table_rows

    spec = TableSpec("sales", ("id",), "upsert", version="v", delete="op = 'd'", per_batch=True)
    rows = spark.createDataFrame([(1, "c", 1), (1, "c", 2), (2, "d", None), (2, "c", 3)], "id INT, op STRING, v INT")
    with pytest.raises(BadInput, match="several rows have the same id"):
        collected(spec, table_rows(spec, lambda one: one, rows), "batch")
    found = collected(spec, table_rows(spec, lambda one: one.where("id = 1 OR op = 'd'"), rows), "batch")
    assert (found.puts["v"].to_pylist(), found.deletes["id"].to_pylist()) == ([2], [2])


@pytest.mark.parametrize("kind", ["postgresql", pytest.param("sqlite", marks=pytest.mark.faults)])
def test_a_row_that_the_database_refuses_fails_the_batch_and_is_named(
    spark: SparkSession, database: Callable[[str], str], tmp_path: Path, kind: str
) -> None:
    url, folder = database(kind), tmp_path / "in"
    databases.execute(url, "CREATE TABLE sales (id BIGINT PRIMARY KEY, amount DOUBLE PRECISION CHECK (amount > 0))")
    put(folder, "f0", *({"id": n, "shop": "a", "amount": 0.0 if n == 5 else 1.0} for n in range(8)))
    sink = Sink(NAME, store=url)
    sink.table("sales", key="id", write="upsert")(lambda rows: rows.select("id", "amount"))

    with pytest.raises(Exception, match=r"table sales refused the row with id 5: .*amount"):
        run(sink, files(spark, folder), tmp_path / "checkpoint")

    assert ids(url) == []
    assert databases.query(url, POSITION) == [(0, 0, 0)]


def test_status_shows_a_query_with_and_without_brokers(
    spark: SparkSession, brokers: str, database: Callable[[str], str], source: Path, tmp_path: Path
) -> None:
    url = database("sqlite")
    run(sink_into(url), files(spark, source), tmp_path / "checkpoint")

    for options in ([], ["--brokers", brokers]):
        shown = in_process("status", "--store", url, *options)
        assert shown.returncode == 0, shown.stderr
        assert NAME in shown.stdout
        assert in_process("status", NAME, "--store", url, "--json", *options).returncode == 0


def test_a_query_whose_program_ends_without_closing_its_sink_is_stopped(
    spark: SparkSession, database: Callable[[str], str], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, at_exit = database("sqlite"), list[Callable[[], None]]()
    monkeypatch.setattr("tallymark.spark.sink.atexit.register", at_exit.append)
    query = start(sink_into(url), files(spark, source), tmp_path / "checkpoint")
    assert query.awaitTermination(TIMEOUT)

    # As the interpreter does when the program ends.
    at_exit[-1]()

    (shown,) = json.loads(in_process("status", NAME, "--store", url, "--json").stdout)["groups"]
    assert shown["state"] == "stopped"
    assert databases.query(url, "SELECT owner FROM tallymark_status") == [(None,)]


def test_settings_that_can_not_work_are_refused() -> None:
    with pytest.raises(BadInput, match="no tombstones"):
        Sink(NAME, store="sqlite:///x.db").table("t", key="id", write="upsert", delete="tombstone")
    with pytest.raises(BadInput, match="1 to 249 characters"):
        Sink(" x", store="sqlite:///x.db")
    with pytest.raises(BadInput, match="is not known; write driver or executors"):
        Sink("x", store="sqlite:///x.db", road="other")  # type: ignore[arg-type]


KILLS = [
    pytest.param(Step.COMMITTED, [(2, 0, 2)], id="committed"),
    pytest.param(Step.MOVED, [(1, 0, 1)], id="moved", marks=pytest.mark.faults),
]


@pytest.mark.faults
@pytest.mark.parametrize(("step", "left"), KILLS)
def test_a_query_over_kafka_that_is_killed_beside_its_commit_writes_every_record_once(
    spark: SparkSession,
    brokers: str,
    topics: Topics,
    database: Callable[[str], str],
    tmp_path: Path,
    step: Step,
    left: list[tuple[int, ...]],
) -> None:
    url, topic, checkpoint = database("postgresql"), topics.create(2), tmp_path / "checkpoint"
    topics.send(topic, [{"id": n} for n in range(30)], partitions=2)

    assert run_until_killed(f"{brokers}/{topic}", checkpoint, url, step, 1) == -9
    assert databases.query(url, POSITION) == left
    assert not (checkpoint / "commits" / "1").exists()

    run(sink_into(url), kafka(spark, brokers, topic), checkpoint)

    assert coordinates(url, "sales") == sorted(topics.committed(topic))
    assert databases.query(url, UNBALANCED) == []


@pytest.mark.faults
@pytest.mark.parametrize("step", [Step.COMMITTED, Step.MOVED])
def test_a_query_with_state_that_is_killed_counts_every_row_once(
    spark: SparkSession, database: Callable[[str], str], source: Path, tmp_path: Path, step: Step
) -> None:
    url, checkpoint = database("mariadb"), tmp_path / "checkpoint"

    assert run_until_killed(str(source), checkpoint, url, step, 1) == -9

    sink = Sink(NAME, store=url)
    sink.table("totals", key="shop", write="upsert")
    run(sink, totals(files(spark, source)), checkpoint, "update")
    assert databases.query(url, "SELECT shop, count FROM totals ORDER BY shop") == [("a", 3), ("b", 3)]
