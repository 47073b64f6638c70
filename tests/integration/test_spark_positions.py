"""Where a group starts, continues and refuses to continue, with topics that grow, shrink and are replaced."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tallymark import Limits, Start, Tally
from tallymark.core.progress import Progress, Step
from tallymark.errors import BadInput, BeyondEnd, ForeignCluster, RecordsLost, TopicRecreated, UnknownTopic
from tallymark.stores.opening import open_sql
from tests.support import databases
from tests.support.background import wait_for
from tests.support.databases import tables
from tests.support.kafka import Topics
from tests.support.pipelines import (
    UNBALANCED,
    RunningPipeline,
    coordinates,
    exceptions,
    next_offsets,
    one_to_one,
)

pytestmark = pytest.mark.usefixtures("spark")

Databases = Callable[[str], str]


def values(count: int) -> list[dict[str, int]]:
    return [{"id": n} for n in range(count)]


def in_partition(partition: int, *offsets: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(*offsets)]


def execute(url: str, statement: str) -> None:
    """Change the ledger without tallymark."""
    with open_sql(url).transaction() as connection:
        connection.exec_driver_sql(statement)


@pytest.mark.parametrize("prefix", ["", "uncommitted-"])
def test_earliest_begins_at_the_first_record_that_is_left(
    brokers: str, topics: Topics, group: str, database: Databases, prefix: str
) -> None:
    url, topic = database("sqlite"), topics.create(1)
    topics.send_to(topic, 0, values(5))
    topics.delete_records(topic, {0: 2})
    assert one_to_one(brokers, topic, group, url, start=f"{prefix}earliest").run("caught-up") == Tally(applied=3)
    assert coordinates(url) == in_partition(0, 2, 5)
    assert databases.query(url, UNBALANCED) == []


@pytest.mark.parametrize("prefix", ["", "uncommitted-"])
def test_latest_begins_at_the_end(brokers: str, topics: Topics, group: str, database: Databases, prefix: str) -> None:
    url, topic = database("sqlite"), topics.create(1)
    topics.send_to(topic, 0, values(5))
    with RunningPipeline(one_to_one(brokers, topic, group, url, start=f"{prefix}latest")) as running:
        wait_for(lambda: "tallymark_positions" in tables(url) and next_offsets(url) == {0: 5})
        topics.send_to(topic, 0, values(2))
        wait_for(lambda: next_offsets(url) == {0: 7})
        assert running.stop() == Tally(applied=2)
    assert coordinates(url) == in_partition(0, 5, 7)


def test_a_timestamp_begins_at_the_first_record_not_before_it(
    brokers: str, topics: Topics, group: str, database: Databases
) -> None:
    url, topic = database("sqlite"), topics.create(2, retention_ms="-1")
    start = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for seconds in (-2, -1, 0, 1):
        topics.send_to(topic, 0, values(1), timestamp=int(start.timestamp() + seconds) * 1000)
    topics.send_to(topic, 1, values(3), timestamp=int(start.timestamp() - 5) * 1000)
    pipeline = one_to_one(brokers, topic, group, url, start="uncommitted-timestamp=2026-01-31T13:00:00+01:00")
    assert pipeline.run("caught-up") == Tally(applied=2)
    assert coordinates(url) == in_partition(0, 2, 4)
    assert next_offsets(url) == {0: 4, 1: 3}


def test_explicit_offsets_begin_there_and_leave_other_saved_positions_alone(
    brokers: str, topics: Topics, group: str, database: Databases
) -> None:
    url, topic = database("sqlite"), topics.create(2)
    topics.send(topic, values(10), partitions=2)
    start = Start.explicit({topic: {0: 3, 1: 5}})
    assert one_to_one(brokers, topic, group, url, start=start).run("caught-up") == Tally(applied=2)
    again = f"offsets={json.dumps({topic: {'1': 4}})}"
    assert one_to_one(brokers, topic, group, url, start=again).run("caught-up") == Tally(applied=1)
    assert coordinates(url) == [(0, 3), (0, 4), (1, 4)]
    assert exceptions(url) == [("reset", 1, 4, 5)]
    assert databases.query(url, UNBALANCED) == []


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ({0: 6, 1: 0}, r"offset 6 is outside of \S+\[0\], which holds 0\.\.5"),
        ({0: 1}, r"no offset is given for \S+\[1\]"),
    ],
)
def test_explicit_offsets_that_can_not_be_are_refused_and_leave_nothing_behind(
    brokers: str, topics: Topics, group: str, database: Databases, offsets: dict[int, int], words: str
) -> None:
    url, topic = database("sqlite"), topics.create(2)
    topics.send(topic, values(10), partitions=2)
    with pytest.raises(BadInput, match=words):
        one_to_one(brokers, topic, group, url, start=Start.explicit({topic: offsets})).run("caught-up")
    assert next_offsets(url) == {}
    assert databases.query(url, "SELECT * FROM tallymark_groups") == []


def test_a_saved_position_is_only_overridden_on_demand_and_on_the_record(
    brokers: str, topics: Topics, group: str, database: Databases
) -> None:
    url, topic = database("sqlite"), topics.create(1)

    def run(start: str) -> Tally:
        return one_to_one(brokers, topic, group, url, start=start).run("caught-up")

    topics.send_to(topic, 0, values(4))
    assert run("uncommitted-earliest") == Tally(applied=4)
    topics.send_to(topic, 0, values(3))
    assert run("uncommitted-latest") == Tally(applied=3)
    topics.send_to(topic, 0, values(2))
    assert run("latest") == Tally()
    assert exceptions(url) == [("skip", 0, 7, 9)]
    tally = "SELECT applied, skipped, first_offset FROM tallymark_positions"
    assert databases.query(url, tally) == [(7, 2, 0)]
    assert run("earliest") == Tally(applied=9)
    assert sorted(exceptions(url)) == [("reset", 0, 0, 9), ("void", 0, 7, 9)]
    assert databases.query(url, tally) == [(9, 0, 0)]
    assert coordinates(url) == sorted(in_partition(0, 7) + in_partition(0, 9))
    assert databases.query(url, UNBALANCED) == []


@pytest.mark.faults_where(store_url=["mariadb", "postgresql"])
def test_partitions_that_are_added_to_a_running_group_are_read_from_their_start(
    brokers: str, topics: Topics, group: str, store_url: str
) -> None:
    topic = topics.create(4)
    topics.send(topic, values(8), partitions=4)
    with RunningPipeline(one_to_one(brokers, topic, group, store_url, start="uncommitted-latest")) as running:
        wait_for(lambda: "tallymark_positions" in tables(store_url) and len(next_offsets(store_url)) == 4)
        topics.grow(topic, 8)
        # An existing producer would not know the new partitions for minutes.
        Topics(brokers).send(topic, values(16), partitions=8)
        wait_for(lambda: next_offsets(store_url) == dict.fromkeys(range(4), 4) | dict.fromkeys(range(4, 8), 2))
        assert running.stop() == Tally(applied=16)
    assert coordinates(store_url) == sorted(set(topics.committed(topic)) - {(p, o) for p in range(4) for o in range(2)})
    assert databases.query(store_url, UNBALANCED) == []


def test_partitions_that_were_added_while_nobody_ran_are_read_from_their_start_too(
    brokers: str, topics: Topics, group: str, database: Databases
) -> None:
    url, topic = database("sqlite"), topics.create(1)
    one_to_one(brokers, topic, group, url, start="uncommitted-latest").run("caught-up")
    topics.grow(topic, 2)
    topics.send(topic, values(6), partitions=2)
    assert one_to_one(brokers, topic, group, url, start="uncommitted-latest").run("caught-up") == Tally(applied=6)
    assert coordinates(url) == in_partition(0, 3) + in_partition(1, 3)


def test_a_topic_that_was_recreated_while_nobody_ran_is_refused(
    brokers: str, topics: Topics, group: str, database: Databases
) -> None:
    url, topic = database("sqlite"), topics.create(2)
    topics.send(topic, values(4), partitions=2)
    one_to_one(brokers, topic, group, url).run("caught-up")
    topics.recreate(topic, 2)
    topics.send(topic, values(10), partitions=2)
    with pytest.raises(TopicRecreated, match=rf"topic {topic} was deleted and created again .*use a new group"):
        one_to_one(brokers, topic, group, url).run("caught-up")
    assert next_offsets(url) == {0: 2, 1: 2}
    assert len(coordinates(url)) == 4


def test_a_topic_that_is_recreated_between_planning_and_reading_is_refused(
    brokers: str, topics: Topics, group: str, database: Databases
) -> None:
    """The new topic has records at exactly the planned offsets: only its id differs."""
    url, topic = database("sqlite"), topics.create(2)
    topics.send(topic, values(8), partitions=2)

    def recreate(step: Step, progress: Progress) -> None:
        if step is Step.PLANNED and progress.batch.endswith("-2"):
            topics.recreate(topic, 2)
            Topics(brokers).send(topic, values(20), partitions=2)

    with pytest.raises(TopicRecreated, match=topic):
        one_to_one(brokers, topic, group, url, limits=Limits(records=4)).run("caught-up", on_step=recreate)
    assert next_offsets(url) == {0: 2, 1: 2}
    assert len(coordinates(url)) == 4


def test_a_topic_that_is_recreated_under_an_idle_run_is_refused(
    brokers: str, topics: Topics, group: str, database: Databases
) -> None:
    url, topic = database("sqlite"), topics.create(2)
    topics.send(topic, values(4), partitions=2)
    with RunningPipeline(one_to_one(brokers, topic, group, url)) as running:
        wait_for(lambda: "tallymark_positions" in tables(url) and next_offsets(url) == {0: 2, 1: 2})
        topics.recreate(topic, 2)
        Topics(brokers).send(topic, values(10), partitions=2)
        # It may check while there is no topic, or while the new one is still shorter than the position.
        with pytest.raises((TopicRecreated, UnknownTopic), match=topic):
            running.result()
    assert next_offsets(url) == {0: 2, 1: 2}
    assert len(coordinates(url)) == 4


def test_a_position_of_another_cluster_is_refused(
    brokers: str, topics: Topics, group: str, database: Databases
) -> None:
    url, topic = database("sqlite"), topics.create(1)
    topics.send_to(topic, 0, values(2))
    one_to_one(brokers, topic, group, url).run("caught-up")
    execute(url, "UPDATE tallymark_positions SET cluster_id = 'elsewhere'")
    with pytest.raises(ForeignCluster, match="belongs to cluster elsewhere"):
        one_to_one(brokers, topic, group, url).run("caught-up")


def test_a_position_past_the_end_is_refused(brokers: str, topics: Topics, group: str, database: Databases) -> None:
    url, topic = database("sqlite"), topics.create(1)
    topics.send_to(topic, 0, values(2))
    one_to_one(brokers, topic, group, url).run("caught-up")
    execute(url, "UPDATE tallymark_positions SET next_offset = 9")
    with pytest.raises(BeyondEnd, match=rf"{topic}\[0\]: the saved position 9 is past the end of the log at 2"):
        one_to_one(brokers, topic, group, url).run("caught-up")


def test_records_that_are_deleted_after_they_were_read_are_not_missed(
    brokers: str, topics: Topics, group: str, database: Databases
) -> None:
    url, topic = database("sqlite"), topics.create(1)
    topics.send_to(topic, 0, values(5))
    one_to_one(brokers, topic, group, url).run("caught-up")
    topics.send_to(topic, 0, values(2))
    topics.delete_records(topic, {0: 5})
    assert one_to_one(brokers, topic, group, url).run("caught-up") == Tally(applied=2)


def test_records_that_were_deleted_unread_stop_the_run_and_nothing_moves(
    brokers: str, topics: Topics, group: str, database: Databases
) -> None:
    url, topic = database("sqlite"), topics.create(2)
    topics.send(topic, values(4), partitions=2)
    one_to_one(brokers, topic, group, url).run("caught-up")
    topics.send(topic, values(6), partitions=2)
    topics.delete_records(topic, {0: 4})
    with pytest.raises(RecordsLost, match=rf"{topic}\[0\]: offsets 2\.\.4 were deleted before they were read"):
        one_to_one(brokers, topic, group, url).run("caught-up")
    assert next_offsets(url) == {0: 2, 1: 2}
    assert len(coordinates(url)) == 4
    assert exceptions(url) == []


@pytest.mark.faults_where(store_url="mariadb")
def test_records_that_were_deleted_unread_are_written_down_if_that_is_wanted(
    brokers: str, topics: Topics, group: str, store_url: str
) -> None:
    topic = topics.create(2)
    topics.send(topic, values(10), partitions=2)
    topics.delete_records(topic, {0: 0})
    pipeline = one_to_one(brokers, topic, group, store_url, on_loss="record")
    assert pipeline.run("caught-up") == Tally(applied=10)
    topics.send(topic, values(10), partitions=2)
    topics.delete_records(topic, {0: 8, 1: 10})
    assert pipeline.run("caught-up") == Tally(applied=2, lost=8)
    assert exceptions(store_url) == [("loss", 0, 5, 8), ("loss", 1, 5, 10)]
    assert next_offsets(store_url) == {0: 10, 1: 10}
    assert coordinates(store_url) == [*in_partition(0, 5), (0, 8), (0, 9), *in_partition(1, 5)]
    assert databases.query(store_url, UNBALANCED) == []


def test_records_that_are_deleted_between_planning_and_reading_are_lost_on_the_record(
    brokers: str, topics: Topics, group: str, database: Databases
) -> None:
    url, topic = database("sqlite"), topics.create(1)
    topics.send_to(topic, 0, values(6))
    deleted = threading.Event()

    def delete(step: Step, _: Progress) -> None:
        if step is Step.PLANNED and not deleted.is_set():
            deleted.set()
            topics.delete_records(topic, {0: 4})

    tally = one_to_one(brokers, topic, group, url, on_loss="record").run("caught-up", on_step=delete)
    assert tally == Tally(applied=2, lost=4)
    assert coordinates(url) == in_partition(0, 4, 6)
    assert exceptions(url) == [("loss", 0, 0, 4)]
