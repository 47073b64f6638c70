"""The command line in daily use: run, status, stop, and every mistake once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.background import wait_for
from tests.support.command import DEADLINE, REPOSITORY, in_process, started, tallymark
from tests.support.databases import query
from tests.support.kafka import Topics

pytestmark = pytest.mark.xdist_group("processes")

PIPELINE = """
import threading
import tallymark as tm

pipeline = tm.Pipeline(
    group={group!r},
    source=tm.Kafka({brokers!r}, {topic!r}, value=tm.Json({schema!r})),
    store={store!r},
    limits=tm.Limits(records={limit}),
    patience={patience},
)

@pipeline.table("orders")
def orders(records):
    if {blocks_from} is not None and not records.where("offset >= {blocks_from}").isEmpty():
        threading.Event().wait()
    return records.selectExpr({column!r})
"""


@pytest.fixture
def pipeline_file(tmp_path: Path, brokers: str, group: str) -> Callable[..., Path]:
    def write(**changes: object) -> Path:
        settings = {
            "brokers": brokers,
            "group": group,
            "topic": "no-topic",
            "store": f"sqlite:///{tmp_path / 'shop.db'}",
            "schema": "id BIGINT",
            "limit": 1000,
            "column": "value.*",
            "blocks_from": None,
            "patience": 60,
        }
        file = tmp_path / "pipeline.py"
        file.write_text(PIPELINE.format(**(settings | changes)))
        return file

    return write


def said(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence on stderr of a command that failed."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_the_example_runs_and_status_shows_what_it_did(topics: Topics, brokers: str, tmp_path: Path) -> None:
    topics.create(2, name="orders")
    orders = [{"id": n, "customer": f"c{n % 3}", "amount": 1.5, "at": "2026-01-31T10:00:00Z"} for n in range(20)]
    began = int(time.time() * 1000) - 1000
    for number, order in enumerate([*orders, b"broken"]):
        # The latest order of a customer is the one with the latest timestamp, in any partition.
        topics.send_to("orders", number % 2, [order], timestamp=began + number)
    store = f"sqlite:///{tmp_path / 'shop.db'}"
    place = {"TALLYMARK_BROKERS": brokers, "TALLYMARK_STORE": store}
    example = REPOSITORY / "examples" / "orders.py"

    run = tallymark("run", example, "--until", "caught-up", "--json", **place)

    assert (run.returncode, run.stderr) == (0, "")
    tally = json.loads(run.stdout)
    assert (tally["group"], tally["applied"], tally["dead"]) == ("orders-to-shop", 20, 1)
    assert query(store, "SELECT count(*), count(DISTINCT id) FROM orders") == [(20, 20)]
    assert query(store, "SELECT customer, last_order FROM customers ORDER BY 1") == [("c0", 18), ("c1", 19), ("c2", 17)]

    topics.send_to("orders", 0, [{"id": 20}])
    status = in_process("status", "--file", example, "--json", **place)
    (found,) = json.loads(status.stdout)["groups"]
    first, second = found["partitions"]
    assert (first["partition"], first["lag"], second["lag"], second["lag_seconds"]) == (0, 1, 0, 0.0)
    assert first["lag_seconds"] > 0
    assert first["applied"] + first["dead"] + second["applied"] + second["dead"] == 21
    assert (first["balanced"], first["owner"]) == (True, None)

    table = in_process("status", **place).stdout.splitlines()
    assert table[0].startswith("orders-to-shop is stopped: run ")
    assert table[2].split()[:5] == ["TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    assert table[3].split()[:5] == ["orders", "0", "11", "12", "1"]
    assert "lag needs Kafka" in in_process("status", "--store", store).stdout


@pytest.mark.faults
def test_ctrl_c_leaves_cleanly_and_does_not_wait_for_a_read_that_hangs(
    topics: Topics, pipeline_file: Callable[..., Path], tmp_path: Path
) -> None:
    topic = topics.create(1)
    topics.send_to(topic, 0, [{"id": n} for n in range(50)])
    # A function that only picks columns is not called per batch: this one computes, and blocks in the second batch.
    run = started("run", pipeline_file(topic=topic, limit=10, blocks_from=10, column="value.id + 0 AS id"))
    wait_for(lambda: _rows(tmp_path) == 10, DEADLINE, "the first batch is there")
    assert query(_store(tmp_path), "SELECT owner FROM tallymark_status")[0][0] is not None

    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)

    assert run.returncode == 0, err
    assert "10 applied" in out
    assert "Traceback" not in err
    state = query(_store(tmp_path), "SELECT next_offset, applied, owner, balanced FROM tallymark_status")
    assert state == [(10, 10, None, 1)]


@pytest.mark.faults
def test_a_second_ctrl_c_leaves_at_once_and_nothing_is_half_done(
    topics: Topics, pipeline_file: Callable[..., Path], tmp_path: Path
) -> None:
    topic = topics.create(1)
    topics.send_to(topic, 0, [{"id": n} for n in range(10)])
    run = started("-v", "run", pipeline_file(topic=topic))
    wait_for(lambda: _rows(tmp_path) == 10, DEADLINE, "the first batch is there")
    blocker = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    topics.send_to(topic, 0, [{"id": n} for n in range(10)])

    # When leaving, it waits for a lock to release its claim; the second Ctrl-C arrives there.
    run.send_signal(signal.SIGINT)
    lines = iter(run.stderr or ())
    assert any("stopping after the current batch" in line for line in lines)
    run.send_signal(signal.SIGINT)

    assert run.wait(timeout=10) == -signal.SIGINT
    blocker.execute("ROLLBACK")
    blocker.close()
    assert query(_store(tmp_path), "SELECT next_offset, applied, balanced FROM tallymark_status") == [(10, 10, 1)]


@pytest.mark.faults
def test_ctrl_c_while_spark_starts_is_one_line_and_leaves_no_java(
    topics: Topics, pipeline_file: Callable[..., Path]
) -> None:
    run = started("run", pipeline_file(topic=topics.create(1)))
    wait_for(lambda: any("SparkSubmit" in words for words in _of_session(run.pid)), DEADLINE, "Java has been started")

    os.killpg(run.pid, signal.SIGINT)

    _, err = run.communicate(timeout=60)
    assert (run.returncode, err) == (130, "interrupted\n")
    # A Java process that had already started ends by itself.
    wait_for(lambda: _of_session(run.pid) == [], DEADLINE, "Java has ended")


def _of_session(leader: int) -> list[str]:
    """The command lines of all descendants of this process."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            after_name = (one / "stat").read_text().rpartition(")")[2].split()
            if int(after_name[3]) == leader and after_name[0] != "Z":
                found.append((one / "cmdline").read_text())
    return found


@pytest.mark.faults
def test_where_java_ends_the_run_ends_with_a_sentence_and_the_next_one_goes_on(
    topics: Topics, pipeline_file: Callable[..., Path], tmp_path: Path
) -> None:
    topic = topics.create(1)
    topics.send_to(topic, 0, [{"id": n} for n in range(10)])
    file = pipeline_file(topic=topic, column="value.id + 1 AS id")
    run = started("run", file)
    wait_for(lambda: _rows(tmp_path) == 10, DEADLINE, "the first batch is there")

    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    (java,) = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "java\n"]
    os.kill(java, signal.SIGKILL)
    topics.send_to(topic, 0, [{"id": n} for n in range(10, 20)])

    _, err = run.communicate(timeout=60)
    assert run.returncode == 2
    assert "Traceback" not in err, err
    sentence = "error: Spark's JVM has ended, perhaps because it ran out of memory; no record is lost: run again"
    assert err.splitlines()[-1].startswith(sentence)
    assert in_process("run", file, "--until", "caught-up").returncode == 0
    assert query(_store(tmp_path), "SELECT sum(id), count(*) FROM orders") == [(210, 20)]


def _store(directory: Path) -> str:
    return f"sqlite:///{directory / 'shop.db'}"


def _rows(directory: Path) -> int:
    """The number of rows, once there is a table."""
    if not (directory / "shop.db").exists():
        return 0
    made = query(_store(directory), "SELECT count(*) FROM sqlite_master WHERE name = 'orders'")
    return int(str(query(_store(directory), "SELECT count(*) FROM orders")[0][0])) if made[0][0] else 0


def test_mistakes_that_need_no_server_are_told_at_once(tmp_path: Path) -> None:
    broken, empty = tmp_path / "broken.py", tmp_path / "empty.py"
    broken.write_text("import tallymark\n\nnonsense(\n")
    empty.write_text("x = 1\n")
    assert "no such file" in said(tallymark("run", tmp_path / "absent.py"))
    assert "broken.py line 3: SyntaxError" in said(in_process("run", broken))
    assert "defines no Pipeline" in said(in_process("run", empty))
    assert "status needs --store" in said(in_process("status"))
    assert "no ledger" in said(in_process("status", "--store", f"sqlite:///{tmp_path / 'new.db'}"))
    assert "no store for oracle://" in said(in_process("status", "--store", "oracle://u:geheim@h/x"))


def test_an_unknown_topic_is_named_with_a_similar_one(topics: Topics, pipeline_file: Callable[..., Path]) -> None:
    topic = topics.create(1)
    sentence = said(in_process("run", pipeline_file(topic=topic + "x")))
    assert f"topic {topic}x does not exist" in sentence
    assert f"did you mean {topic}" in sentence


def test_brokers_and_databases_that_are_not_there_are_named_without_their_passwords(
    topics: Topics, pipeline_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallymark.kafka.brokers.TIMEOUT", 2.0)
    nowhere = said(in_process("run", pipeline_file(brokers="127.0.0.1:1", patience=0)))
    assert "the brokers at 127.0.0.1:1 can't be reached" in nowhere
    topic = topics.create(1)
    for url in ("postgresql://me:geheim@127.0.0.1:1/shop", "mysql://me:geheim@127.0.0.1:1/shop"):
        sentence = said(in_process("run", pipeline_file(topic=topic, store=url, patience=0)))
        assert "127.0.0.1:1/shop can't be reached" in sentence
        assert "geheim" not in sentence
