"""``tallymark import``: a group continues at the offsets of a Kafka group or a Structured Streaming query."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.background import wait_for
from tests.support.command import in_process
from tests.support.kafka import Topics
from tests.support.standing import Service, make_table, numbers, offsets, seen, stand

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def store(database: Callable[[str], str]) -> str:
    return database("sqlite")


@pytest.fixture
def topic(topics: Topics) -> str:
    made = topics.create(3)
    topics.send(made, numbers(60), partitions=2)
    return made


@pytest.fixture
def place(store: str, brokers: str) -> tuple[str, ...]:
    return ("--store", store, "--brokers", brokers)


def old_client(brokers: str, group: str) -> Consumer:
    return Consumer({"bootstrap.servers": brokers, "group.id": group, "enable.auto.commit": False})


def committing(brokers: str, group: str, topic: str, at: dict[int, int]) -> None:
    """The committed offsets of another consumer."""
    client = old_client(brokers, group)
    client.commit(offsets=[TopicPartition(topic, number, offset) for number, offset in at.items()], asynchronous=False)
    client.close()


def rest_of(topic_ends: dict[int, int], at: dict[int, int]) -> Counter[tuple[int, int]]:
    return Counter((part, offset) for part, end in topic_ends.items() for offset in range(at.get(part, 0), end))


def test_a_kafka_group_is_taken_over_without_a_record_twice_or_missing(
    brokers: str, topics: Topics, store: str, group: str, topic: str, place: tuple[str, ...]
) -> None:
    committing(brokers, f"{group}-old", topic, {0: 12, 1: 30})
    arguments = ("import", group, "--from-kafka-group", f"{group}-old", *place)
    shown = in_process(*arguments)
    assert shown.returncode == 0, shown.stderr
    header, zero, one, two, last = shown.stdout.splitlines()
    assert header.split()[3:] == ["COMMITTED-THERE", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "MEANING"]
    assert zero.split()[1:7] == [topic, "0", "12", "-", "30", "18"]
    assert "continues at 12" in zero
    assert one.split()[3:7] == ["30", "-", "30", "0"]
    assert "not imported: starts at the earliest offset" in two
    assert last == "nothing was changed: --execute does it"
    assert offsets(store, group) == {}
    done = in_process(*arguments, "--execute")
    assert f"2 positions taken over from Kafka group {group}-old" in done.stdout
    assert offsets(store, group) == {0: 12, 1: 30}
    topics.send_to(topic, 2, numbers(5))
    make_table(store)
    Service(brokers, store, group, topic).catch_up()
    assert seen(store) == rest_of({0: 30, 1: 30, 2: 5}, {0: 12, 1: 30})


def test_what_is_equal_may_be_imported_again_and_what_differs_may_not(
    brokers: str, store: str, group: str, topic: str, place: tuple[str, ...]
) -> None:
    committing(brokers, f"{group}-old", topic, {0: 12, 1: 30})
    stand(brokers, store, group, topic, {0: 12})
    arguments = ("import", group, "--from-kafka-group", f"{group}-old", *place)
    said = json.loads(in_process(*arguments, "--execute", "--json").stdout)
    assert [(one["current_offset"], one["new_offset"]) for one in said["partitions"]] == [
        (12, 12),
        (None, 30),
        (None, None),
    ]
    assert offsets(store, group) == {0: 12, 1: 30}
    committing(brokers, f"{group}-old", topic, {1: 20})
    refused = in_process(*arguments, "--execute")
    assert refused.returncode == 2
    assert f"{topic}[1] already has position 30, and the import has 20" in refused.stderr
    assert "move it with tallymark reset" in refused.stderr
    assert "there is nothing to change" in in_process(*arguments, "--topic", f"{topic}:0").stdout


def test_a_kafka_group_with_members_is_refused(
    brokers: str, store: str, group: str, topic: str, place: tuple[str, ...]
) -> None:
    committing(brokers, f"{group}-old", topic, {0: 12})
    arguments, client = (
        ("import", group, "--from-kafka-group", f"{group}-old", *place),
        old_client(brokers, f"{group}-old"),
    )
    try:
        client.subscribe([topic])
        wait_for(lambda: client.poll(0.1) is not None)
        refused = in_process(*arguments, "--execute")
        assert refused.returncode == 2
        assert "has 1 member " in refused.stderr
        assert "can't be fenced; stop them first, or use --while-running" in refused.stderr
        assert in_process(*arguments, "--execute", "--while-running").returncode == 0
    finally:
        client.close()
    assert offsets(store, group) == {0: 12}


def test_offsets_that_are_gone_or_not_there_yet_are_told(
    brokers: str, topics: Topics, group: str, topic: str, place: tuple[str, ...]
) -> None:
    committing(brokers, f"{group}-old", topic, {0: 2})
    topics.delete_records(topic, {0: 10})
    arguments = ("import", group, "--from-kafka-group", f"{group}-old", *place)
    assert "8 offsets before 10 are deleted and unread: on_loss= decides" in in_process(*arguments).stdout
    committing(brokers, f"{group}-old", topic, {0: 31})
    assert "offset 31 is past the end of the log at 30" in in_process(*arguments).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing says where to; give one of --from-kafka-group, --from-checkpoint"),
        (["--from-kafka-group", "never-was"], "Kafka group never-was has no offsets to take over"),
        (["--from-checkpoint", "s3a://bucket/there"], "only a local folder can be read"),
        (["--from-checkpoint", "/nowhere"], "/nowhere is not a checkpoint of Structured Streaming"),
        (["--from-checkpoint", "/nowhere", "--from-kafka-group", "g"], "exclude each other"),
    ],
)
def test_mistakes_get_one_sentence(place: tuple[str, ...], group: str, arguments: list[str], words: str) -> None:
    done = in_process("import", group, *arguments, *place)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_query_is_taken_over_without_a_record_twice_or_missing(
    spark: SparkSession,
    brokers: str,
    topics: Topics,
    store: str,
    group: str,
    topic: str,
    place: tuple[str, ...],
    tmp_path: Path,
) -> None:
    kept = tmp_path / "checkpoint"
    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(kept))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    topics.send(topic, numbers(30), partitions=3)
    done = in_process("import", group, "--from-checkpoint", f"file:{kept}", *place, "--execute")
    assert done.returncode == 0, done.stderr
    assert offsets(store, group) == {0: 30, 1: 30, 2: 0}
    make_table(store)
    Service(brokers, store, group, topic).catch_up()
    assert seen(store) == rest_of({0: 40, 1: 40, 2: 10}, {0: 30, 1: 30})


def test_a_batch_of_a_query_that_was_begun_is_told_and_read_again(
    store: str, brokers: str, group: str, topic: str, place: tuple[str, ...], tmp_path: Path
) -> None:
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for batch, offset in ((3, 10), (4, 25)):
        lines = ["v1", "{}", json.dumps({topic: {"0": offset, "1": 10}})]
        (tmp_path / "offsets" / str(batch)).write_text("\n".join(lines))
    (tmp_path / "commits" / "3").write_text("v1\n{}")
    arguments = ("import", group, "--from-checkpoint", str(tmp_path), *place)
    shown = in_process(*arguments)
    span = f"{topic}[0] 10..25"
    assert f"batch 4 of the query was begun and not finished: {span} may be written there already" in shown.stdout
    assert json.loads(in_process(*arguments, "--json").stdout)["unsure"] == [[topic, 0, 10, 25]]
    assert in_process(*arguments, "--execute").returncode == 0
    assert offsets(store, group) == {0: 10, 1: 10}
