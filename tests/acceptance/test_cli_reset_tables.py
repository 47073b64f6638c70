"""``tallymark reset`` back: what it does to the tables, what has to be accepted, and the start with empty tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tallymark.core.spans import Partition
from tallymark.core.tables import WrittenTable
from tallymark.kafka.source import Kafka
from tallymark.service.consumer import Consumer
from tallymark.stores.opening import open_store
from tests.support.background import wait_for
from tests.support.command import in_process
from tests.support.commits import moving, take
from tests.support.databases import execute, query
from tests.support.kafka import Topics
from tests.support.standing import QUICK, Service, journal, make_table, numbers, offsets, seen, standing

RECORDS = 40
Reset = Callable[..., Any]


@pytest.fixture
def store(database: Callable[[str], str]) -> str:
    return database("sqlite")


@pytest.fixture
def topic(topics: Topics) -> str:
    made = topics.create(2)
    for partition in (0, 1):
        topics.send_to(made, partition, numbers(RECORDS))
    return made


@pytest.fixture
def reset(group: str, brokers: str, store: str) -> Reset:
    def run(*arguments: str, scope: tuple[str, ...] = ("--all-topics",)) -> Any:
        return in_process("reset", group, *scope, *arguments, "--store", store, "--brokers", brokers)

    return run


def catch_up(brokers: str, store: str, group: str, topic: str, tables: str = "seen totals latest kept") -> None:
    """Apply all records in batches of 10: appended, counted in two totals, upserted and ignored."""
    consumer = Consumer(group=group, source=Kafka(brokers, topic, settings=QUICK), store=store)
    for batch in consumer.batches(10, until="caught-up"):
        with batch.transaction() as db:
            rows = [{"part": one.partition, "off": one.offset} for one in batch.records]
            if "seen" in tables:
                db.write("seen", rows)
            if "totals" in tables:
                totals = [{"part": row["part"], "n": 1} for row in rows]
                db.write("totals", totals, key="part", write="merge", merge={"n": "count"})
            if "latest" in tables:
                db.write("latest", rows, key=("part", "off"), write="upsert")
            if "kept" in tables:
                db.write("kept", rows, key=("part", "off"), write="ignore")


def totals(store: str) -> dict[int, int]:
    return {int(str(part)): int(str(n)) for part, n in query(store, "SELECT part, n FROM totals")}


def audited(store: str, group: str, brokers: str) -> None:
    done = in_process("audit", group, "--store", store, "--brokers", brokers)
    assert done.returncode == 0, done.stdout


ONCE = Counter({(part, offset): 1 for part in (0, 1) for offset in range(RECORDS)})


def test_a_preview_says_what_happens_to_each_table(
    brokers: str, store: str, group: str, topic: str, reset: Reset
) -> None:
    catch_up(brokers, store, group, topic)
    shown = reset("--shift-by", "-20").stdout
    assert "repeats 20 offsets" in shown
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in shown.splitlines()}
    assert lines["TABLE"] == "WRITE MEANING"
    assert lines["seen"] == "append about 40 rows will be there twice"
    assert lines["totals"].startswith("merge about ")
    assert lines["totals"].endswith(" rows will be added again")
    assert lines["latest"].startswith("upsert no row twice; without a newer version, rows have older values until")
    assert lines["kept"] == "ignore no row twice: existing rows stay"
    assert shown.splitlines()[-1] == (
        "--execute would be refused: the reset repeats 40 offsets, whose rows would be there twice in table seen and "
        "be added again in table totals; add --repeat if that is meant, or --truncate to empty the tables and start "
        "over"
    )
    found = json.loads(reset("--shift-by", "-20", "--json").stdout)
    (appended,) = (table for table in found["tables"] if table["table"] == "seen")
    assert (appended["rows_repeated"], appended["offsets_not_in_history"]) == (40, 0)
    assert found["refused"].startswith("the reset repeats 40 offsets")
    assert offsets(store, group) == {0: RECORDS, 1: RECORDS}


def test_rows_are_repeated_only_if_that_is_accepted(
    brokers: str, store: str, group: str, topic: str, reset: Reset
) -> None:
    catch_up(brokers, store, group, topic)
    refused = reset("--to-offset", "30", "--execute")
    assert refused.returncode == 2
    assert "add --repeat if that is meant, or --truncate to empty the tables" in refused.stderr
    assert offsets(store, group) == {0: RECORDS, 1: RECORDS}
    assert journal(store, group, "reset") == []
    done = reset("--to-offset", "30", "--repeat", "--execute")
    assert done.returncode == 0, done.stderr
    catch_up(brokers, store, group, topic)
    assert seen(store) == ONCE + Counter({(part, offset): 1 for part in (0, 1) for offset in range(30, RECORDS)})
    assert totals(store) == {0: RECORDS + 10, 1: RECORDS + 10}


def test_upserts_need_no_consent(brokers: str, store: str, group: str, topic: str, reset: Reset) -> None:
    catch_up(brokers, store, group, topic, "latest kept")
    assert reset("--to-offset", "0").stdout.splitlines()[-1] == "nothing was changed: --execute does it"
    assert reset("--to-offset", "0", "--execute").returncode == 0
    assert offsets(store, group) == {0: 0, 1: 0}


def test_a_move_ahead_needs_no_consent(brokers: str, store: str, group: str, topic: str, reset: Reset) -> None:
    catch_up(brokers, store, group, topic)
    assert reset("--to-offset", "0", "--repeat", "--execute").returncode == 0
    shown = reset("--to-latest", "--execute")
    assert shown.returncode == 0, shown.stderr
    assert "TABLE" not in shown.stdout


def test_offsets_that_the_history_has_no_more_are_named(
    brokers: str, store: str, group: str, topic: str, reset: Reset
) -> None:
    catch_up(brokers, store, group, topic)
    opened = open_store(store)
    opened.prune(group, {"batches": datetime.now(UTC) + timedelta(days=1)})
    opened.close()
    shown = reset("--to-offset", "0").stdout
    assert " offsets that the history no longer has will be there twice" in shown
    found = json.loads(reset("--to-offset", "0", "--json").stdout)["tables"][-2]
    assert found["table"] == "seen"
    assert found["rows_repeated"] + found["offsets_not_in_history"] == 2 * RECORDS
    assert found["offsets_not_in_history"] > RECORDS


def test_an_empty_start_leaves_every_row_once(brokers: str, store: str, group: str, topic: str, reset: Reset) -> None:
    catch_up(brokers, store, group, topic)
    assert reset("--to-offset", "20", "--repeat", "--execute").returncode == 0
    catch_up(brokers, store, group, topic)
    assert totals(store) == {0: RECORDS + 20, 1: RECORDS + 20}
    shown = reset("--to-earliest", "--truncate").stdout
    lines = [line.split() for line in shown.splitlines()]
    assert ["TABLE", "WRITE", "ROWS", "MEANING"] in lines
    assert ["seen", "append", str(2 * RECORDS + 40), "deleted"] in lines
    assert ["totals", "merge", "2", "deleted"] in lines
    assert lines[-1] == ["nothing", "was", "changed:", "--execute", "does", "it"]
    assert totals(store) == {0: RECORDS + 20, 1: RECORDS + 20}
    done = reset("--to-earliest", "--truncate", "--execute", "--reason", "wrong")
    assert done.returncode == 0, done.stderr
    assert "2 of 2 partitions moved, 4 tables emptied" in done.stdout
    assert seen(store) == Counter()
    assert offsets(store, group) == {0: 0, 1: 0}
    catch_up(brokers, store, group, topic)
    assert seen(store) == ONCE
    assert totals(store) == {0: RECORDS, 1: RECORDS}
    audited(store, group, brokers)
    (note, _) = journal(store, group, "emptying")
    assert note.note.reason.startswith("--to-earliest --truncate by ")
    assert note.note.reason.endswith(": wrong; emptied kept, latest, seen, totals")
    noted = in_process("journal", group, "--store", store).stdout
    assert noted.count("emptying") == 2
    # The tables are known to be complete from offset 0 on: the next empty start is as good.
    assert reset("--to-earliest", "--truncate", "--execute").returncode == 0


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "redis"])
def test_an_empty_start_on_other_stores(
    kind: str, database: Callable[[str], str], brokers: str, group: str, topic: str
) -> None:
    store = database(kind)
    place = ("--store", store, "--brokers", brokers)
    catch_up(brokers, store, group, topic)
    assert (
        in_process("reset", group, "--all-topics", "--to-offset", "20", "--repeat", "--execute", *place).returncode == 0
    )
    catch_up(brokers, store, group, topic)
    shown = in_process("reset", group, "--all-topics", "--to-earliest", "--truncate", "--execute", *place)
    assert shown.returncode == 0, shown.stderr
    assert ["totals", "merge", "2", "deleted"] in [line.split() for line in shown.stdout.splitlines()]
    opened = open_store(store)
    assert sum(opened.journal().row_counts(["seen", "totals", "latest", "kept"]).values()) == 0
    catch_up(brokers, store, group, topic)
    counted = opened.journal().row_counts(["seen", "totals", "latest", "kept"])
    opened.close()
    assert counted == {"kept": 2 * RECORDS, "latest": 2 * RECORDS, "seen": 2 * RECORDS, "totals": 2}
    if kind != "redis":
        assert totals(store) == {0: RECORDS, 1: RECORDS}
    audited(store, group, brokers)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--to-offset", "0", "--repeat", "--truncate"],
            "--repeat keeps the rows, and --truncate deletes them",
        ),
        (["--to-latest", "--repeat"], "no partition goes back; leave it out"),
        (["--to-earliest", "--lose", "3"], "leave it out, or add --truncate"),
        (["--to-offset", "20", "--truncate"], "may have rows from offset 0 on, which would be lost; use --to-earliest"),
        (["--to-current", "--truncate"], "may have rows from offset 0 on, which would be lost; use --to-earliest"),
    ],
)
def test_consents_that_make_no_sense_get_one_sentence(
    brokers: str, store: str, group: str, topic: str, reset: Reset, arguments: list[str], words: str
) -> None:
    catch_up(brokers, store, group, topic)
    refused = reset(*arguments, "--execute")
    assert refused.returncode == 2
    assert words in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert (seen(store), offsets(store, group)) == (ONCE, {0: RECORDS, 1: RECORDS})


def test_no_row_goes_that_the_reset_does_not_bring_back(
    brokers: str, topics: Topics, store: str, group: str, topic: str, reset: Reset
) -> None:
    catch_up(brokers, store, group, topic)
    some = reset("--to-earliest", "--truncate", "--execute", scope=("--topic", f"{topic}:0"))
    assert f"{topic}[1] is not in the reset, and rows of its records would be lost; use --all-topics" in some.stderr

    topics.delete_records(topic, {0: 10})
    gone = reset("--to-earliest", "--truncate", "--execute")
    assert f"Kafka has deleted up to 10 offsets of which the tables may have rows, those of {topic}[0]" in gone.stderr
    assert "add --lose 10 if that is meant" in gone.stderr
    assert reset("--to-earliest", "--truncate", "--lose", "9", "--execute").returncode == 2
    assert seen(store) == ONCE
    done = reset("--to-earliest", "--truncate", "--lose", "10", "--execute")
    assert done.returncode == 0, done.stderr
    catch_up(brokers, store, group, topic)
    assert seen(store) == Counter({record: 1 for record in ONCE if record[0] == 1 or record[1] >= 10})
    audited(store, group, brokers)


def test_a_group_that_was_moved_back_may_have_begun_anywhere(
    brokers: str, topics: Topics, store: str, group: str, topic: str, reset: Reset
) -> None:
    catch_up(brokers, store, group, topic)
    assert reset("--to-offset", "20", "--repeat", "--execute").returncode == 0
    refused = reset("--to-offset", "20", "--truncate", "--execute")
    assert "may have rows from offset 0 on, because it was moved or placed by hand before" in refused.stderr
    assert seen(store) == ONCE


def test_a_table_of_another_group_or_store_is_not_emptied(
    brokers: str, store: str, group: str, topic: str, reset: Reset
) -> None:
    catch_up(brokers, store, group, topic)
    known(store, f"{group}-other", WrittenTable("SEEN", "append"))
    shared = reset("--to-earliest", "--truncate", "--execute")
    assert f"group {group}-other writes to table seen, too, and its rows would be lost" in shared.stderr
    assert in_process("delete-group", f"{group}-other", "--store", store, "--execute", "--take-over").returncode == 0
    known(store, group, WrittenTable("far", "append", "redis://elsewhere"))
    apart = reset("--to-earliest", "--truncate", "--execute")
    assert "table far is in redis://elsewhere, and the ledger is not" in apart.stderr
    assert (seen(store), offsets(store, group)[0]) == (ONCE, RECORDS)


def known(store: str, group: str, *tables: WrittenTable) -> None:
    """Let the ledger know tables of a group."""
    opened = open_store(store)
    if group not in opened.journal().groups():
        take(opened, group, "first", [Partition("orders", 0)])
    opened.apply((), replace(moving(group).entry, tables=tables))
    opened.close()


def test_a_group_of_unknown_tables_is_told_so(brokers: str, store: str, group: str, topic: str, reset: Reset) -> None:
    """As after an upgrade of the ledger, or for a handler with SQL of its own."""
    catch_up(brokers, store, group, topic)
    execute(store, "DELETE FROM tallymark_tables")
    shown = reset("--to-earliest", "--execute")
    assert shown.returncode == 0
    assert "the ledger knows no table of this group: what a handler writes by SQL of its own" in shown.stdout
    refused = reset("--to-earliest", "--truncate", "--execute")
    assert f"--truncate: the ledger knows no table of group {group}" in refused.stderr


def test_a_running_group_is_emptied_only_by_a_takeover_and_counts_right(
    brokers: str, store: str, group: str, topic: str, topics: Topics, reset: Reset
) -> None:
    make_table(store)
    with Service(brokers, store, group, topic) as service:
        wait_for(lambda: offsets(store, group) == {0: RECORDS, 1: RECORDS})
        refused = reset("--to-earliest", "--truncate", "--execute")
        assert refused.returncode == 2
        assert "which may be running; nothing was changed: stop it" in refused.stderr
        assert seen(store) == ONCE
        done = reset("--to-earliest", "--truncate", "--execute", "--take-over")
        assert done.returncode == 0, done.stderr
        topics.send_to(topic, 0, numbers(5))
        wait_for(lambda: offsets(store, group) == {0: RECORDS + 5, 1: RECORDS})
        assert service.error is None
    assert set(seen(store).values()) == {1}
    assert len(seen(store)) == 2 * RECORDS + 5
    assert all(position.balanced for position in standing(store, group).values())


def test_deleting_a_group_names_the_tables_that_a_new_start_would_repeat(
    brokers: str, store: str, group: str, topic: str
) -> None:
    catch_up(brokers, store, group, topic)
    shown = in_process("delete-group", group, "--store", store, "--take-over").stdout
    assert "a run that starts again would add rows once more to tables seen (append), totals (merge), unless" in shown
    found = json.loads(in_process("delete-group", group, "--store", store, "--json").stdout)
    assert {(table["name"], table["write"]) for table in found["tables"]} >= {("seen", "append"), ("totals", "merge")}
