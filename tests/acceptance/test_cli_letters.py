"""``tallymark dead-letters``, ``skips``, ``losses``, ``journal``: records that are not in the tables."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tallymark.cli.load import load
from tallymark.core.claims import Advance, FirstClaim, Note, PositionChanges
from tallymark.core.journal import DISCARDED
from tallymark.core.records import DeadLetter
from tallymark.core.spans import Partition, Span, Tally
from tallymark.kafka.brokers import Brokers
from tallymark.operate.letters import LetterReplay, Outcome
from tallymark.stores.opening import open_store
from tests.support.command import in_process
from tests.support.commits import SINCE, moving, owner, take
from tests.support.databases import query
from tests.support.kafka import Topics

ZERO = Partition("orders", 0)
VALUES = (b'{"id": 1, "name": "\\u00e4"}', b"no \x1b[31mJSON", b"\xff\x00\x01")


def written(url: str, group: str) -> None:
    """Three dead letters of one batch, two of them with the same error."""
    store = open_store(url)
    store.create_ledger()
    claims = take(store, group, "a", [ZERO])
    errors = ("not JSON: line 7 [red]", "not JSON: line 12 [red]", "no room")
    letters = [
        DeadLetter(
            ZERO, at, SINCE, b"k", value, [("trace", b"\xff"), ("none", None)], None if at < 2 else "orders", error
        )
        for at, (value, error) in enumerate(zip(VALUES, errors, strict=True))
    ]
    step = Advance(ZERO, 0, 10, claims[ZERO].epoch, Tally(applied=7, dead=3), SINCE)
    store.apply((), dataclasses.replace(moving(group).entry, advances=[step], dead_letters=letters))
    store.close()


@pytest.fixture(params=["sqlite", "redis"])
def ledger(request: pytest.FixtureRequest, group: str, database: Callable[[str], str], redis_url: str) -> str:
    url = redis_url if request.param == "redis" else database(request.param)
    written(url, group)
    return url


UPSERT = """
import tallymark as tm

pipeline = tm.Pipeline(group={group!r}, source=tm.Kafka({brokers!r}, "orders"), store={store!r})

@pipeline.table("orders", key="id", write="upsert")
def orders(records):
    return records.selectExpr("offset AS id")
"""


def test_a_preview_tells_what_execute_would_refuse(
    brokers: str, group: str, database: Callable[[str], str], tmp_path: Path
) -> None:
    url, file = database("sqlite"), tmp_path / "orders.py"
    written(url, group)
    file.write_text(UPSERT.format(group=group, brokers=brokers, store=url))
    why = "table orders: older records would overwrite newer rows; set version=, or add --overwrite"
    preview = in_process("dead-letters", "replay", file)
    assert preview.returncode == 0
    assert f"would be replayed; --execute would be refused: {why}" in preview.stdout
    assert json.loads(in_process("dead-letters", "replay", file, "--json").stdout)["refused"] == why
    assert "--execute does it" in in_process("dead-letters", "replay", file, "--overwrite").stdout
    assert in_process("dead-letters", "replay", file, "--execute").stderr == f"error: {why}\n"
    assert in_process("backfill", file).stderr == f"error: {why}\n"

    assert in_process("pause", group, "--reason", "stock taking", "--store", url).returncode == 0
    paused = in_process("dead-letters", "replay", file, "--overwrite").stdout
    assert f"--execute would be refused: group {group} has been paused since" in paused
    assert "stock taking; resume it with tallymark resume" in paused

    nowhere = in_process("dead-letters", "replay", file, "--to-topic", "zzz-nowhere").stdout
    assert "--execute would be refused: topic zzz-nowhere does not exist" in nowhere
    assert "tallymark produce zzz-nowhere --create 4" in nowhere


def listed(url: str, *arguments: str) -> list[dict[str, Any]]:
    done = in_process("dead-letters", "list", *arguments, "--store", url, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.faults_where(ledger="redis")
def test_letters_are_listed_shown_and_given_up(ledger: str, group: str) -> None:
    run = in_process
    shown = run("dead-letters", "list", group, "--store", ledger)
    assert shown.stdout.split("\n")[0].split() == [
        *("ID", "GROUP", "TOPIC", "PARTITION", "OFFSET", "TIME", "TABLE", "STATE", "ERROR"),
    ]
    assert "not JSON: line 7 [red]" in shown.stdout
    first, second, third = listed(ledger)
    assert (first["offset"], first["state"], third["table"]) == (0, "dead", "orders")
    for arguments, offsets in (
        (["--error", "json"], [0, 1]),
        (["--table", "orders", "--partition", "0"], [2]),
        (["--limit", "1"], [0]),
        (["--since", "1h"], [0, 1, 2]),
        (["--until", "2026-01-01T00:00:00Z"], []),
        (["--state", "replayed"], []),
        (["--topic", "clicks"], []),
    ):
        assert [one["offset"] for one in listed(ledger, *arguments)] == offsets, arguments

    (text, json_, bytes_) = (
        in_process("dead-letters", "show", one["id"], "--store", ledger) for one in (second, first, third)
    )
    assert "no \\x1b[31mJSON" in text.stdout, "nothing that a terminal would obey"
    assert '  {\n    "id": 1,\n    "name": "ä"\n  }' in json_.stdout
    assert "00000000  ff 00 01" in bytes_.stdout
    assert "header    trace: \\xff" in bytes_.stdout
    assert json.loads(in_process("dead-letters", "show", third["id"], "--store", ledger, "--json").stdout)[
        "value_base64"
    ]

    preview = in_process("dead-letters", "discard", "--all", "--error", "JSON", "--store", ledger)
    assert "2 dead letters of" in preview.stdout
    assert "--execute does it" in preview.stdout
    assert len(listed(ledger)) == 3
    done = in_process(
        "dead-letters", "discard", first["id"], "--reason", "a test", "--execute", "--store", ledger, "--json"
    )
    assert json.loads(done.stdout)["discarded"] == 1
    (gone,) = listed(ledger, "--state", DISCARDED)
    assert gone["id"] == first["id"]
    assert gone["changed_by"].endswith(": a test")
    assert [one["id"] for one in listed(ledger)] == [second["id"], third["id"]]
    again = in_process("dead-letters", "discard", first["id"], "--execute", "--store", ledger)
    assert (again.returncode, f"dead letter {first['id']} is discarded; nothing was changed" in again.stderr) == (
        2,
        True,
    )
    history = run("dead-letters", "show", first["id"], "--store", ledger).stdout
    assert "discarded by" in history


def test_many_letters_are_counted_by_their_errors(ledger: str, group: str) -> None:
    found = json.loads(in_process("dead-letters", "list", "--summary", "--store", ledger, "--json").stdout)
    assert [(one["error"], one["count"]) for one in found] == [("not JSON: line 7 [red]", 2), ("no room", 1)]
    assert "not JSON: line 7 [red]" in in_process("dead-letters", "list", "--summary", "--store", ledger).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list"], "dead-letters list needs --store"),
        (["list", "--state", "odd", "--store", "URL"], "--state odd is not known; write dead, replayed"),
        (["list", "--since", "soon", "--store", "URL"], "'soon' is not a time"),
        (["show", "4711", "--store", "URL"], "there is no dead letter 4711"),
        (["discard", "--store", "URL"], "name the dead letters, or write --all"),
        (["discard", "4711", "--execute", "--store", "URL"], "dead letter 4711 is unknown; nothing was changed"),
        (["replay", "nothing.py"], "there is no such file"),
    ],
)
def test_mistakes_get_one_sentence(
    arguments: list[str], words: str, group: str, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TALLYMARK_STORE", raising=False)
    url = database("sqlite")
    written(url, group)
    done = in_process("dead-letters", *(url if one == "URL" else one for one in arguments))
    assert done.returncode == 2
    assert words in done.stderr


SERVICE = """
import tallymark as tm

app = tm.App(brokers={brokers!r}, store={store!r}, membership=tm.Standalone())

@app.listen({topic!r}, group={group!r}, value=tm.Json({schema!r}))
def receive(record, db):
    if {fails}:
        raise ValueError("it is odd")
    db.write("seen", {{"id": record.value["id"], "off": record.offset}})
"""


@pytest.fixture
def service(tmp_path: Path, brokers: str, group: str) -> Callable[..., Path]:
    def write(topic: str, store: str, fails: str, schema: str = "id BIGINT") -> Path:
        file = tmp_path / "service.py"
        named = {"brokers": brokers, "topic": topic, "store": store, "group": group}
        file.write_text(SERVICE.format(fails=fails, schema=schema, **named))
        return file

    return write


def ids(url: str) -> list[int]:
    return sorted(int(str(found)) for (found,) in query(url, "SELECT id FROM seen"))


def test_corrected_code_replays_what_it_had_failed_on(
    topics: Topics, group: str, database: Callable[[str], str], service: Callable[..., Path]
) -> None:
    store, topic = database("postgresql"), topics.create(1)
    topics.send(topic, [{"id": n} if n < 18 else f"no JSON {n}" for n in range(20)], key=b"k", headers={"h": b"1"})
    file = service(topic, store, "record.value['id'] % 2")
    run = in_process("run", file, "--until", "caught-up", "--json")
    assert (json.loads(run.stdout)["applied"], json.loads(run.stdout)["dead"]) == (9, 11), run.stderr

    file = service(topic, store, "record.value['id'] == 7 or not record.key or record.headers != [('h', b'1')]")
    preview = in_process("dead-letters", "replay", file)
    assert "11 dead letters of" in preview.stdout
    assert "would be replayed; --execute does it" in preview.stdout
    assert ids(store) == list(range(0, 18, 2))
    done = in_process("dead-letters", "replay", file, "--execute")
    assert "of 11 dead letters: 8 applied, 3 dead still, in" in done.stdout, done.stderr
    assert ids(store) == [n for n in range(18) if n != 7]
    assert query(store, "SELECT sum(applied), sum(dead) FROM tallymark_positions") == [(17, 3)]

    rest = listed(store, group)
    assert sorted({one["error"].split(":")[0] for one in rest}) == ["ValueError", "not JSON"]
    again = in_process("dead-letters", "replay", file, "--error", "odd", "--execute", "--json")
    said = json.loads(again.stdout)
    assert [said[name] for name in ("chosen", "applied", "dead", "settled", "left")] == [1, 0, 1, 0, 0]
    unknown = in_process("dead-letters", "replay", file, "4711")
    assert "no dead letter 4711" in unknown.stderr
    other = in_process("dead-letters", "replay", file, "--group", "other")
    assert "name one of its groups" in other.stderr
    journal = json.loads(in_process("journal", group, "--file", file, "--json").stdout)
    assert [one["kind"] for one in journal] == ["replay"] * 8


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_letters_that_come_after_the_choice_are_left_alone(
    topics: Topics,
    group: str,
    database: Callable[[str], str],
    redis_url: str,
    service: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    store, topic = redis_url if kind == "redis" else database(kind), topics.create(1)
    file, send = service(topic, store, "False"), partial(topics.send, topic, key=b"k")
    send(["no JSON"] * 4)
    assert load(file).run("caught-up").dead == 4
    discarded = listed(store)[0]["id"]

    def beside(*work: Any) -> Outcome:
        """The group goes on after the choice: some die, and somebody gives up one that was chosen."""
        send([f"no JSON {n}" for n in range(7)])
        assert load(file).run("caught-up").dead == 7
        in_process("dead-letters", "discard", discarded, "--execute", "--store", store)
        return run(*work)

    run = LetterReplay.run
    monkeypatch.setattr(LetterReplay, "run", beside)
    said = json.loads(in_process("dead-letters", "replay", file, "--execute", "--json").stdout)
    assert [said[name] for name in ("chosen", "applied", "dead", "settled", "left")] == [4, 0, 3, 1, 0]


def test_letters_go_to_another_topic_with_where_they_come_from(
    topics: Topics, brokers: str, group: str, database: Callable[[str], str], service: Callable[..., Path]
) -> None:
    store, topic, repair = database("sqlite"), topics.create(1), topics.create(1)
    topics.send(topic, [{"id": 0}, "no JSON", "nor this"], key=b"k", headers={"h": b"1"})
    file = service(topic, store, "False")
    in_process("run", file, "--until", "caught-up")
    preview = in_process("dead-letters", "replay", file, "--to-topic", repair)
    assert f"would be sent to {repair}; --execute does it" in preview.stdout
    done = in_process("dead-letters", "replay", file, "--to-topic", repair, "--execute", "--json")
    assert json.loads(done.stdout)["applied"] == 2, done.stderr
    assert sorted(topics.committed(repair).values(), key=str) == [b"no JSON", b"nor this"]
    seen = in_process("consume", repair, "--limit", "1", "--brokers", brokers, "--json")
    record = json.loads(seen.stdout)
    headers = {one["name"]: one["value"] for one in record["headers"]}
    assert record["key"] == "k"
    assert headers.pop("tallymark-error").startswith("not JSON")
    assert headers == {
        "h": "1",
        "tallymark-group": group,
        "tallymark-topic": topic,
        "tallymark-partition": "0",
        "tallymark-offset": "1",
    }
    assert [one["state"] for one in listed(store, "--state", "all")] == ["sent", "sent"]
    nothing = in_process("dead-letters", "replay", file, "--to-topic", repair, "--execute")
    assert "no open dead letter matches" in nothing.stdout
    absent = in_process("dead-letters", "replay", file, "--to-topic", "nowhere", "--execute")
    assert absent.returncode == 0, "nothing is to be sent"


def test_skips_and_losses_are_listed_with_what_kafka_still_holds(
    topics: Topics, brokers: str, group: str, database: Callable[[str], str]
) -> None:
    url, topic = database("sqlite"), topics.create(3)
    for number in range(3):
        topics.send_to(topic, number, ({"id": n} for n in range(20)))
    store, asked = open_store(url), Brokers(brokers)
    store.create_ledger()
    parts = [Partition(topic, number) for number in range(3)]
    start = FirstClaim(0, asked.topics([topic])[topic].id, asked.cluster_id())
    claims = store.claim(group, owner("a"), parts, lambda _: PositionChanges(dict.fromkeys(parts, start)), {})
    steps = [Advance(one, 0, 20, claims[one].epoch, Tally(skipped=10, lost=10), None) for one in parts]
    notes = [Note("loss", Span(one, 0, 10), "deleted before") for one in parts]
    notes += [Note("skip", Span(one, 10, 20), "too far behind") for one in parts]
    store.apply((), dataclasses.replace(moving(group).entry, advances=steps, notes=notes))
    store.close()
    topics.delete_records(topic, {1: 15, 2: 20})

    named = ["--store", url, "--brokers", brokers]
    skips = json.loads(in_process("skips", "list", group, *named, "--json").stdout)
    assert [(one["partition"], one["start"], one["stop"], one["in_kafka"]) for one in skips] == [
        *((0, 10, 20, "all"), (1, 10, 20, "part"), (2, 10, 20, "gone")),
    ]
    assert {one["reason"] for one in skips} == {"too far behind"}
    shown = in_process("skips", "list", *named).stdout
    assert "30 offsets of 3 partitions skipped, and open" in shown
    assert "too far behind" in shown
    losses = in_process("losses", group, "--store", url)
    assert "30 offsets of 3 partitions lost" in losses.stdout
    assert [one["offsets"] for one in json.loads(in_process("losses", "--store", url, "--json").stdout)] == [10] * 3
    journal = in_process("journal", "--store", url).stdout
    assert [line.split()[1] for line in journal.splitlines()[1:]].count("skip") == 3
    unknown = in_process("losses", "nobody", "--store", url)
    assert (unknown.returncode, "has no group nobody" in unknown.stderr) == (2, True)
