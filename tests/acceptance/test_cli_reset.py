"""``tallymark reset``: its preview, its effect, and its refusals."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import in_process
from tests.support.kafka import Topics
from tests.support.kafka_tools import consumer_groups, described
from tests.support.standing import Service, journal, make_table, numbers, offsets, seen, stand, standing

HOUR = 3_600_000
Reset = Callable[..., Any]


@pytest.fixture
def store(database: Callable[[str], str]) -> str:
    return database("sqlite")


@pytest.fixture
def topic(topics: Topics) -> str:
    """Two partitions of 100 records: half of them three hours old, half of them new. The first ten are deleted."""
    made, now = topics.create(2), int(time.time() * 1000)
    for partition in (0, 1):
        topics.send_to(made, partition, numbers(50), timestamp=now - 3 * HOUR)
        topics.send_to(made, partition, numbers(50), timestamp=now)
    topics.delete_records(made, {0: 10, 1: 10})
    return made


@pytest.fixture
def place(store: str, brokers: str) -> tuple[str, ...]:
    return ("--store", store, "--brokers", brokers)


@pytest.fixture
def reset(group: str, topic: str, place: tuple[str, ...]) -> Reset:
    """``reset("--to-earliest")``: its JSON output, for both partitions."""

    def run(*arguments: str | Path, scope: tuple[str, ...] = ("--topic", topic)) -> Any:
        done = in_process("reset", group, *scope, *place, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def new_offsets(said: Any) -> dict[int, int | None]:
    return {one["partition"]: one["new_offset"] for one in said["partitions"]}


def test_a_preview_says_what_it_means_and_changes_nothing(
    brokers: str, store: str, group: str, topic: str, place: tuple[str, ...]
) -> None:
    stand(brokers, store, group, topic, {0: 80, 1: 30})
    shown = in_process("reset", group, "--topic", topic, "--to-offset", "40", *place)
    assert shown.returncode == 0, shown.stderr
    header, zero, one, *rest = shown.stdout.splitlines()
    assert header.split() == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET", "MEANING"]
    assert zero.split()[:5] == [group, topic, "0", "80", "40"]
    assert zero.rstrip().endswith("repeats 40 offsets")
    assert "skips 10 offsets: backfill can fill them later" in one
    assert rest[0].startswith("the ledger knows no table of this group: what a handler writes by SQL of its own")
    assert rest[1:] == ["nothing was changed: --execute does it"]
    assert offsets(store, group) == {0: 80, 1: 30}
    assert journal(store, group, "reset", "skip") == []


def test_what_is_executed_is_repeated_and_stands_in_the_journal(
    brokers: str, store: str, group: str, topic: str, place: tuple[str, ...]
) -> None:
    make_table(store)
    stand(brokers, store, group, topic, {0: 100, 1: 100})
    done = in_process(
        *("reset", group, "--topic", f"{topic}:1", "--shift-by", "-30", "--reason", "bad rows", "--execute"), *place
    )
    assert done.returncode == 0, done.stderr
    assert "1 of 1 partitions moved" in done.stdout
    assert offsets(store, group) == {0: 100, 1: 70}
    (line,) = journal(store, group, "reset")
    assert (line.note.span.start, line.note.span.stop) == (70, 100)
    assert line.note.reason.startswith("--shift-by -30 by ")
    assert line.note.reason.endswith(": bad rows")
    Service(brokers, store, group, topic).catch_up()
    assert seen(store) == Counter((1, offset) for offset in range(70, 100))
    assert all(position.balanced for position in standing(store, group).values())


@pytest.mark.parametrize(
    ("option", "new"),
    [
        (["--to-earliest"], 10),
        (["--to-latest"], 100),
        (["--to-offset", "77"], 77),
        (["--to-offset", "0"], 10),
        (["--shift-by", "-5"], 55),
        (["--shift-by", "500"], 100),
        (["--to-current"], 60),
        (["--by-duration", "PT1H30M"], 50),
        (["--by-duration", "5h"], 10),
        (["--to-datetime", "2001-01-01T00:00:00Z"], 10),
        (["--to-datetime", "2100-01-01T00:00:00"], 100),
    ],
)
def test_every_aim(brokers: str, store: str, group: str, topic: str, reset: Reset, option: list[str], new: int) -> None:
    stand(brokers, store, group, topic, {0: 60, 1: 60})
    assert new_offsets(reset(*option)) == {0: new, 1: new}
    assert reset(*option, "--execute")["executed"]
    assert offsets(store, group) == {0: new, 1: new}
    assert all(position.balanced for position in standing(store, group).values())
    kind = ["reset"] * 2 if new < 60 else ["skip"] * 2 if new > 60 else []
    assert [line.note.kind for line in journal(store, group, "reset", "skip")] == kind


def test_what_the_log_does_not_hold_is_clamped_with_a_warning(
    brokers: str, store: str, group: str, topic: str, place: tuple[str, ...]
) -> None:
    stand(brokers, store, group, topic, {0: 5})
    done = in_process("reset", group, "--all-topics", "--to-current", *place, "--execute")
    assert f"warning: {topic}[0]: clamped from 5 to 10, the log holds 10..100" in done.stdout
    assert "skips 5 offsets, 5 of them deleted from the log" in done.stdout
    assert offsets(store, group) == {0: 10}


def test_a_partition_without_a_position_gets_one(
    brokers: str, store: str, group: str, topic: str, place: tuple[str, ...], reset: Reset
) -> None:
    stand(brokers, store, group, topic, {0: 60})
    assert new_offsets(reset("--to-current")) == {0: 60, 1: None}
    shown = in_process("reset", group, "--topic", topic, "--to-latest", *place, "--execute")
    assert "no position: gets this one" in shown.stdout
    assert offsets(store, group) == {0: 100, 1: 100}


def test_offsets_go_to_kafkas_own_tool_and_back(
    brokers: str, topics: Topics, store: str, group: str, tmp_path: Path
) -> None:
    # The tool quotes names of 25 characters or more.
    short, long = topics.create(1), topics.create(2, name=f"a-topic-with-a-long-name-{group}")
    for partition, topic in ((0, short), (0, long), (1, long)):
        topics.send_to(topic, partition, numbers(20))
    stand(brokers, store, group, short, {0: 7})
    stand(brokers, store, group, long, {0: 3, 1: 20})
    ours, theirs, place = tmp_path / "ours.csv", tmp_path / "theirs.csv", ("--store", store, "--brokers", brokers)
    assert in_process("reset", group, "--export", str(ours), "--store", store).returncode == 0
    tool = ("--reset-offsets", "--group", group)
    theirs.write_text(consumer_groups(brokers, *tool, "--from-file", str(ours), "--execute", "--export"))
    assert sorted(filter(None, theirs.read_text().splitlines())) == sorted(ours.read_text().splitlines())
    there = described(brokers, group)
    assert {(one.topic, one.number): int(at) for one, (at, _) in there.items()} == {
        (short, 0): 7,
        (long, 0): 3,
        (long, 1): 20,
    }
    assert in_process("reset", group, "--all-topics", "--to-earliest", "--execute", *place).returncode == 0
    back = in_process("reset", group, "--from-file", str(theirs), "--execute", "--export", "-", *place)
    assert back.stdout == ours.read_text()
    again = in_process("reset", group, "--export", "-", "--store", store)
    assert again.stdout == ours.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["GROUP", "--to-latest"], "give --topic (several are fine) or --all-topics, and not both"),
        (["GROUP", "--topic", "TOPIC", "--all-topics", "--to-latest"], "and not both"),
        (["GROUP", "--topic", "TOPIC"], "nothing says where to; give one of --to-earliest"),
        (
            ["GROUP", "--topic", "TOPIC", "--to-latest", "--shift-by", "0"],
            "--to-latest and --shift-by exclude each other",
        ),
        (["GROUP", "--topic", "TOPIC:7", "--to-latest"], "has no partition 7; its partitions are 0..1"),
        (["GROUP", "--topic", "never-was", "--to-latest"], "topic never-was does not exist"),
        (["other", "--topic", "TOPIC", "--to-latest"], "has no group other"),
        (["GROUP", "--topic", "TOPIC", "--by-duration", "soon"], "'soon' is not a duration"),
        (["GROUP", "--topic", "TOPIC", "--to-datetime", "noon"], "'noon' is not a time"),
        (["GROUP", "--from-file", "missing.csv"], "--from-file missing.csv can't be read: No such file"),
        (["GROUP", "--topic", "TOPIC", "--shift-by", "1"], "[1] has no position to shift"),
        (["GROUP", "--export", "/nowhere/file"], "--export /nowhere/file can't be written: No such file"),
    ],
)
def test_mistakes_get_one_sentence(
    brokers: str, store: str, group: str, topic: str, place: tuple[str, ...], arguments: list[str], words: str
) -> None:
    stand(brokers, store, group, topic, {0: 60})
    said = [one.replace("GROUP", group).replace("TOPIC", topic) for one in arguments]
    done = in_process("reset", *said, *place, "--execute")
    assert done.returncode == 2
    assert words in done.stderr
    assert offsets(store, group) == {0: 60}


def test_a_topic_that_was_made_again_names_the_way_out(
    brokers: str, topics: Topics, store: str, group: str, topic: str, place: tuple[str, ...]
) -> None:
    stand(brokers, store, group, topic, {0: 60})
    topics.recreate(topic)
    done = in_process("reset", group, "--all-topics", "--to-earliest", *place)
    assert done.returncode == 2
    assert "was deleted and created again" in done.stderr
    assert "or delete this one with tallymark delete-group" in done.stderr


def test_the_file_of_a_service_says_group_store_and_brokers(
    brokers: str, store: str, group: str, topic: str, tmp_path: Path
) -> None:
    stand(brokers, store, group, topic, {0: 60})
    file = tmp_path / "service.py"
    file.write_text(
        f"import tallymark as tm\napp = tm.App(brokers={brokers!r}, store={store!r})\n"
        f"@app.listen({topic!r}, group={group!r})\ndef receive(record, db): pass\n"
    )
    done = in_process("reset", "--file", file, "--all-topics", "--to-latest", "--execute")
    assert done.returncode == 0, done.stderr
    assert offsets(store, group) == {0: 100}
