"""``tallymark audit``: the ledger adds up, or the command reports the difference and exits with 1."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tallymark.core.claims import Advance, FirstClaim, PositionChanges
from tallymark.core.journal import LetterQuery
from tallymark.core.records import DeadLetter
from tallymark.core.spans import Partition, Tally
from tallymark.kafka.brokers import Brokers
from tallymark.stores.opening import open_store
from tests.support import databases
from tests.support.command import in_process
from tests.support.commits import SINCE, moving, owner
from tests.support.kafka import Topics

FILE = """
import tallymark

pipeline = tallymark.Pipeline(
    group={group!r},
    source=tallymark.Kafka({brokers!r}, {topic!r}, value=tallymark.Json("id BIGINT")),
    store={store!r},
    membership=tallymark.Standalone(),
)

@pipeline.table("orders", provenance=True)
def orders(records):
    return records.select("value.id")

@pipeline.table("latest", key="id", write="upsert", provenance=True)
def latest(records):
    return records.select("value.id")
"""
APP = """
import tallymark

app = tallymark.App(brokers={brokers!r}, store={store!r})

@app.listen({topic!r}, group={group!r})
def handle(record, db):
    pass
"""


def committed(url: str, group: str, topic: str, brokers: str) -> None:
    """Ten offsets of a topic, the last one dead."""
    store, partition, asked = open_store(url), Partition(topic, 0), Brokers(brokers)
    store.create_ledger()
    first = {partition: FirstClaim(0, asked.topics([topic])[topic].id, asked.cluster_id())}
    claims = store.claim(group, owner("a"), [partition], lambda _: PositionChanges(first), {})
    letter = DeadLetter(partition, 9, SINCE, None, b"?", (), None, "garbage")
    step = Advance(partition, 0, 10, claims[partition].epoch, Tally(applied=9, dead=1), SINCE)
    entry = moving(group, step).entry
    store.apply((), type(entry)(group, entry.batch, SINCE, entry.now, [step], dead_letters=[letter]))
    assert store.journal().letters(LetterQuery(group))
    store.close()


def test_an_audit_says_what_adds_up_and_what_does_not(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    topic, url = topics.create(1), database("sqlite")
    topics.send_to(topic, 0, [{"id": 1}] * 12)
    committed(url, group, topic, brokers)
    where = ("--store", url, "--brokers", brokers)

    well = in_process("audit", group, *where)
    assert (well.returncode, well.stderr) == (0, "")
    assert well.stdout.splitlines()[-1] == f"{group}: all 6 checks hold"
    lines = [line.split() for line in well.stdout.splitlines()]
    assert [line[1] for line in lines[1:-1]] == ["tally", "skips", "dead", "losses", "history", "log"]
    assert "9 applied + 1 dead = 10" in well.stdout
    assert "1 commit of 0..10" in well.stdout
    alone = in_process("audit", group, "--store", url)
    assert "whether Kafka still holds what is unread: add --brokers" in alone.stdout

    databases.execute(url, "DELETE FROM tallymark_dead_letters", "UPDATE tallymark_positions SET next_offset = 13")
    spoilt = in_process("audit", group, *where)
    assert spoilt.returncode == 1
    assert f"{group}: 4 of 6 checks are broken" in spoilt.stdout
    assert "10..13 is in no commit" in spoilt.stdout
    assert f"compare the tables with tallymark audit {group} --deep" in spoilt.stdout
    said = json.loads(in_process("audit", group, *where, "--json").stdout)
    assert (said["group"], said["ok"]) == (group, False)
    assert [one["check"] for one in said["checks"] if one["verdict"] != "ok"] == [
        "tally",
        "dead letters",
        "history",
        "log",
    ]


def test_an_audit_needs_a_group_that_is_there(group: str, database: Callable[[str], str], tmp_path: Path) -> None:
    url = database("sqlite")
    for arguments, words in (
        ((group,), "audit needs --store (or TALLYMARK_STORE), or --file with a pipeline"),
        ((group, "--store", url), "has no ledger: the file does not exist"),
        ((group, "--deep", "--store", url), "name its file with --file"),
    ):
        found = in_process("audit", *arguments)
        assert (found.returncode, words in found.stderr) == (2, True), found.stderr
    open_store(url).create_ledger()
    found = in_process("audit", group, "--store", url)
    assert (found.returncode, f"has no group {group}" in found.stderr) == (2, True)


@pytest.mark.faults
@pytest.mark.usefixtures("spark")
def test_a_deep_audit_lists_what_is_not_in_the_tables(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str], tmp_path: Path
) -> None:
    topic, url, file = topics.create(1), database("sqlite"), tmp_path / "orders.py"
    topics.send_to(topic, 0, [{"id": number} for number in range(5)])
    file.write_text(FILE.format(group=group, brokers=brokers, topic=topic, store=url))
    assert in_process("run", file, "--until", "caught-up", "--json").returncode == 0

    well = in_process("audit", "--deep", "--file", file)
    assert well.returncode == 0, well.stdout
    assert well.stdout.splitlines()[-1] == f"{group}: all 7 checks hold, no differences"

    databases.execute(url, "DELETE FROM orders WHERE id = 3")
    spoilt = in_process("audit", "--deep", "--file", file)
    assert spoilt.returncode == 1
    assert f"table orders: {topic}[0] offset 3 is missing: 0 rows, 1 wanted" in spoilt.stdout
    assert spoilt.stdout.splitlines()[-1] == f"{group}: all 7 checks hold, 1 differences"
    said = json.loads(in_process("audit", "--deep", "--file", file, "--json").stdout)
    table, latest = said["tables"]
    assert (table["missing_keys_not_looked_for"], latest["missing_keys_not_looked_for"]) == (None, None)
    assert (said["ok"], table["partitions"][0]["applied"], table["partitions"][0]["missing"]) == (False, 4, 1)
    assert table["differences"] == [
        {"partition": {"topic": topic, "number": 0}, "offset": 3, "kind": "missing", "rows": 0, "wanted": 1}
    ]

    agreeing = in_process("audit", group, "--deep", "--file", file, "--store", url, "--brokers", brokers)
    assert agreeing.stdout.splitlines()[-1] == f"{group}: all 7 checks hold, 1 differences"
    other = in_process("audit", "another", "--deep", "--file", file)
    assert f"name one of its groups: {group}" in other.stderr
    elsewhere = in_process("audit", "--deep", "--file", file, "--store", "sqlite:///elsewhere.db")
    assert "compares with the store of the file, which is another; leave out --store" in elsewhere.stderr
    databases.execute(url, "DELETE FROM latest WHERE id = 3", "UPDATE latest SET tallymark_topic = 'x' WHERE id = 4")
    unsure = in_process("audit", "--deep", "--file", file).stdout
    why = "1 rows come from other partitions"
    assert f"table latest: missing keys were not looked for, since {why} and may hold them" in unsure
    app = tmp_path / "app.py"
    app.write_text(APP.format(group=group, brokers=brokers, topic=topic, store=url))
    assert "audit --deep needs a pipeline" in in_process("audit", "--deep", "--file", app).stderr
