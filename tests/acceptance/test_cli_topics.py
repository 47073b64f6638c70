"""``tallymark produce`` and ``tallymark consume``, as a user types them."""

from __future__ import annotations

import json
import signal
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tallymark.kafka.brokers import Brokers
from tests.support.background import wait_for
from tests.support.command import BINARY, DEADLINE, in_process, started
from tests.support.kafka import Topics


def lines(*arguments: str, brokers: str) -> list[dict[str, Any]]:
    done = in_process("consume", *arguments, "--brokers", brokers, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def topic(topics: Topics) -> str:
    """Two partitions with ten records each, then a record of an aborted transaction."""
    name = topics.create(2)
    for partition in range(2):
        topics.send_to(name, partition, [{"n": n} for n in range(10)])
    topics.send_in_transaction(name, {0: [b"never"]}, commit=False)
    return name


def test_consume_shows_ten_records_and_says_how_to_see_more(topic: str, brokers: str) -> None:
    done = in_process("consume", topic, "--brokers", brokers)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 10
    first = done.stdout.splitlines()[0]
    assert first.startswith(f"{topic}[")
    assert first.endswith('Z {"n": 0}')
    assert "more: --limit 0 shows all" in done.stderr


def test_consume_ends_where_the_topic_ends(topic: str, brokers: str) -> None:
    found = lines(topic, "--limit", "0", brokers=brokers)
    assert sorted((one["partition"], one["offset"]) for one in found) == [(p, o) for p in range(2) for o in range(10)]
    assert all(json.loads(one["value"]) == {"n": one["offset"]} for one in found)


@pytest.mark.parametrize(
    ("start", "offsets"), [("-3", [9]), ("9", [9]), ("latest", []), ("500", []), ("1999-01-01", range(10))]
)
def test_consume_starts_where_it_is_told(topic: str, brokers: str, start: str, offsets: Any) -> None:
    """The last three offsets of partition 0 are a record, one that was taken back, and the marker of that."""
    found = lines(topic, "--from", start, "--partition", "0", "--limit", "0", brokers=brokers)
    assert [one["offset"] for one in found] == list(offsets)


def test_consume_shows_bytes_headers_and_tombstones_and_nothing_that_a_terminal_obeys(
    topics: Topics, brokers: str
) -> None:
    name = topics.create(1, retention_ms="-1")
    when = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000)
    topics.send_to(name, 0, [b"\xff\x1b[31mred"], key=b"k\x07", headers=[("tra\x1bce", b"\x00")], timestamp=when)
    topics.send_to(name, 0, [None], key=b"gone", timestamp=when)
    shown = in_process("consume", name, "--brokers", brokers).stdout.splitlines()
    assert shown[0] == f"{name}[0] 0 2026-01-31T12:00:00.000Z key=k\\x07 tra\\x1bce:\\x00 \\xff\\x1b[31mred"
    assert shown[1].endswith("key=gone null")
    record, tombstone = lines(name, brokers=brokers)
    assert (record["value_base64"], record["headers"]) == ("/xtbMzFtcmVk", [{"name": "tra\x1bce", "value": "\x00"}])
    assert (tombstone["key"], tombstone["value"]) == ("gone", None)


def test_consume_follows_until_ctrl_c(topics: Topics, brokers: str) -> None:
    name = topics.create(1)
    topics.send(name, [b"before"] * 5, partitions=1)
    running = started("consume", name, "--follow", "--brokers", brokers)
    assert running.stdout is not None
    assert all(running.stdout.readline().endswith(" before\n") for _ in range(5))
    topics.send(name, [b"now"] * 15, partitions=1)
    assert all(running.stdout.readline().endswith(" now\n") for _ in range(15))
    running.send_signal(signal.SIGINT)
    assert running.wait(10) == 0
    assert running.stderr is not None
    assert running.stderr.read() == ""


def test_consume_ends_quietly_with_whoever_reads_it(topics: Topics, brokers: str) -> None:
    name = topics.create(1)
    topics.send(name, [b"x" * 1000] * 500, partitions=1)
    command = f"{BINARY} consume {name} --limit 0 --brokers {brokers} | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-topic"], "topic no-such-topic does not exist"),
        (["{topic}", "--partition", "7"], "has no partition 7; its partitions are 0..1"),
        (["{topic}", "--from", "yesterday"], "--from yesterday is not known; write earliest, latest, an offset"),
        (["{topic}", "--from", "--5"], "--from --5 is not known"),
    ],
)
def test_consume_says_in_one_sentence_what_it_can_t_do(
    topics: Topics, brokers: str, arguments: list[str], said: str
) -> None:
    topic = topics.create(2)
    done = in_process("consume", *(one.format(topic=topic) for one in arguments), "--brokers", brokers)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def produced(*arguments: str, given: str, brokers: str) -> subprocess.CompletedProcess[str]:
    command = [str(BINARY), "produce", *arguments, "--brokers", brokers]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=60)


def test_produce_makes_a_record_of_every_line(topics: Topics, brokers: str) -> None:
    name = topics.create(2)
    done = produced(name, "--key-delimiter", ":", "-H", "from=test=1", given="a:1\nb::\nc:\r\n", brokers=brokers)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{name}: 3 records acknowledged in ")
    found = {one["key"]: one for one in lines(name, brokers=brokers)}
    assert {key: one["value"] for key, one in found.items()} == {"a": "1", "b": ":", "c": ""}
    assert found["a"]["headers"] == [{"name": "from", "value": "test=1"}]


def test_what_consume_prints_can_be_produced_again(topics: Topics, brokers: str, tmp_path: Path) -> None:
    first, second = topics.create(1), topics.create(1)
    topics.send_to(first, 0, [b"\xff\x00", b"text\n", None], key=b"\xfe", headers=[("h", b"\xfd"), ("n", None)])
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in lines(first, brokers=brokers)))
    done = in_process("produce", second, file, "--format", "json", "--json", "--brokers", brokers)
    assert json.loads(done.stdout)["records"] == 3
    copied = lines(second, brokers=brokers)
    names = ("key_base64", "value", "value_base64", "headers", "timestamp")
    assert [[one.get(n) for n in names] for one in copied] == [
        [one.get(n) for n in names] for one in lines(first, brokers=brokers)
    ]


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        (["--key-delimiter", ":"], "a:1\nb\n", "line 2 has no ':' between key and value; 1 records before it were"),
        (["--format", "json"], '{"value": "x"}\n{"value": 7}\n', "line 2 is not a record as tallymark consume --json"),
        (["--partition", "7"], "a\n", "has no partition 7; it has 1, counted from 0"),
        (["--key-delimiter", ""], "a\n", "a key delimiter has at least one character"),
        (["-H", "nothing"], "", "-H nothing is not a header; write it as name=value"),
        (["--from-file", "/no/such/file"], "", "/no/such/file can't be read: No such file or directory"),
        (["--profile", "reckless"], "", "reckless"),
    ],
)
def test_produce_says_in_one_sentence_what_it_can_t_do(
    topics: Topics, brokers: str, arguments: list[str], given: str, said: str
) -> None:
    done = in_process("produce", topics.create(1), *arguments, "--brokers", brokers, given=given)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_produce_does_not_make_a_topic_of_a_wrong_name(topics: Topics, brokers: str) -> None:
    name = topics.create(1)
    done = produced(name[:-1], given="a\n", brokers=brokers)
    assert done.returncode == 2
    assert f"topic {name[:-1]} does not exist on {brokers}; did you mean {name}" in done.stderr


def test_produce_makes_a_topic_when_it_is_told_to(topics: Topics, brokers: str, group: str) -> None:
    for _ in range(2):
        done = in_process("produce", group, "--create", "3", "--brokers", brokers, given="a\n")
        assert done.returncode == 0, done.stderr
    assert len(Brokers(brokers).topics([group])[group].partitions) == 3
    assert [one["value"] for one in lines(group, brokers=brokers)] == ["a", "a"]


def test_ctrl_c_stops_reading_and_what_was_read_is_acknowledged(topics: Topics, brokers: str) -> None:
    name = topics.create(1)
    running = subprocess.Popen(
        [BINARY, "produce", name, "--brokers", brokers],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stdin is not None
    running.stdin.write("one\ntwo\n")
    running.stdin.flush()
    asked = Brokers(brokers)
    wait_for(lambda: sum(log.end for log in asked.logs(asked.topics([name])).values()) == 2, DEADLINE, "both are there")
    running.send_signal(signal.SIGINT)
    said, complaint = running.communicate(timeout=30)
    assert (running.returncode, complaint) == (130, "interrupted\n")
    assert "2 records acknowledged" in said
