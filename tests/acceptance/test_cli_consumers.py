"""The command line for groups of several members: services, members of a group, skips and backfills."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.background import wait_for
from tests.support.command import DEADLINE, in_process, started
from tests.support.databases import execute, query
from tests.support.kafka import Topics

pytestmark = pytest.mark.xdist_group("processes")

SERVICE = """
import tallymark as tm

app = tm.App(brokers={brokers!r}, store={store!r}, kafka={{"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}})

@app.listen({topic!r}, group={group!r}, value=tm.Json("id BIGINT"), catch_up={catch_up})
def receive(record, db):
    db.write("seen", {{"id": record.value["id"], "part": record.partition}})
"""


@pytest.fixture
def service(tmp_path: Path, brokers: str, group: str) -> Callable[..., Path]:
    def write(topic: str, store: str, catch_up: str = "None") -> Path:
        file = tmp_path / "service.py"
        settings = {"brokers": brokers, "topic": topic, "store": store, "group": group, "catch_up": catch_up}
        file.write_text(SERVICE.format(**settings))
        return file

    return write


def test_two_services_share_a_group_and_leave_at_once(
    topics: Topics, group: str, database: Callable[[str], str], service: Callable[..., Path]
) -> None:
    store, topic = database("sqlite"), topics.create(2)
    execute(store, "CREATE TABLE seen (id BIGINT, part INT)")
    file = service(topic, store)
    running = [started("run", file), started("run", file)]
    try:

        def shared() -> bool:
            said = in_process("members", "--file", file, "--json")
            held = [one["partitions"] for one in json.loads(said.stdout or "{}").get("members") or []]
            return sorted(map(len, held)) == [1, 1]

        wait_for(shared, DEADLINE, "both have a partition")
        topics.send(topic, ({"id": n} for n in range(100)), partitions=2)
        wait_for(lambda: len(query(store, "SELECT id FROM seen")) == 100, DEADLINE, "all is there")
        shown = in_process("members", group, "--file", file)
        assert shown.returncode == 0
        assert f"{topic}[0]" in shown.stdout
        assert "assigned" in shown.stdout
        running[0].send_signal(signal.SIGTERM)
        assert running[0].wait(20) == 0
        # Well within the session timeout: it has left, and did not time out.
        owned = "SELECT owner FROM tallymark_positions WHERE owner IS NOT NULL"
        wait_for(lambda: len(query(store, owned)) == 2, DEADLINE, "the other one has both partitions")
    finally:
        for process in running:
            process.send_signal(signal.SIGINT)
        ends = [process.communicate(timeout=30) for process in running]
    assert [process.returncode for process in running] == [0, 0], ends
    assert sorted(int(str(found)) for (found,) in query(store, "SELECT id FROM seen")) == list(range(100))


def test_a_run_counts_its_dead_and_its_exit_code_can_tell(
    topics: Topics, group: str, database: Callable[[str], str], service: Callable[..., Path]
) -> None:
    store, topic = database("sqlite"), topics.create(1)
    execute(store, "CREATE TABLE seen (id BIGINT, part INT)")
    topics.send(topic, [{"id": 1}, {"id": "x"}, {"id": 2}], partitions=1)
    file = service(topic, store)
    said = in_process("run", file, "--until", "caught-up", "--fail-on-dead")
    assert said.returncode == 1
    assert f"{group}: 2 applied, 1 dead in " in said.stdout
    assert f"dead letters of this run: 1; why: tallymark dead-letters list --summary --file {file}" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.faults
def test_what_a_service_has_skipped_is_filled_in_later(
    topics: Topics, group: str, database: Callable[[str], str], service: Callable[..., Path]
) -> None:
    store, topic = database("postgresql"), topics.create(2)
    topics.send(topic, ({"id": n} for n in range(1000)), partitions=2)
    file = service(topic, store, "tm.SkipAhead(when_behind=100, keep=10)")
    run = in_process("run", file, "--until", "caught-up", "--json")
    assert {name: json.loads(run.stdout)[name] for name in ("applied", "skipped")} == {"applied": 20, "skipped": 980}
    assert "skipped" in run.stderr
    assert len(query(store, "SELECT * FROM tallymark_exceptions WHERE kind = 'skip'")) == 2
    fill = in_process("backfill", file, "--json")
    assert json.loads(fill.stdout)["applied"] == 980, fill.stderr
    assert sorted(int(str(found)) for (found,) in query(store, "SELECT id FROM seen")) == list(range(1000))
    assert query(store, "SELECT sum(skipped), sum(applied) FROM tallymark_positions") == [(0, 1000)]
    again = in_process("backfill", file, "--json")
    assert json.loads(again.stdout)["applied"] == 0


@pytest.mark.parametrize("given", ["argument", "option", "variable"])
def test_a_file_is_an_argument_an_option_or_a_variable_and_v_may_follow_the_command(
    topics: Topics, group: str, database: Callable[[str], str], service: Callable[..., Path], given: str
) -> None:
    store, topic = database("sqlite"), topics.create(1)
    execute(store, "CREATE TABLE seen (id BIGINT, part INT)")
    topics.send(topic, [{"id": 1}], partitions=1)
    file = service(topic, store)
    named = {"argument": [str(file)], "option": ["-f", str(file)], "variable": []}[given]
    variables = {"TALLYMARK_FILE": str(file)} if given == "variable" else {}
    run = in_process("run", *named, "--until", "caught-up", "-v", **variables)
    assert f"{group}: 1 applied in " in run.stdout, run.stderr
    assert " INFO tallymark." in run.stderr
    assert " INFO tallymark." in in_process("-v", "run", *named, "--until", "caught-up", **variables).stderr
    assert " INFO tallymark." not in in_process("run", *named, "--until", "caught-up", **variables).stderr
    shown = in_process("consume", topic, *(["-f", str(file)] if given == "option" else []), TALLYMARK_FILE=str(file))
    assert shown.stdout.endswith(' {"id": 1}\n'), shown.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["members", "g"], "members needs --brokers, --store or both"),
        (["members", "g", "--store", "sqlite:///empty.db"], "has no ledger"),
        (["backfill", "nothing.py"], "there is no such file"),
    ],
)
def test_mistakes_get_one_sentence(arguments: list[str], words: str, tmp_path: Path) -> None:
    arguments = [one.replace("empty.db", f"/{tmp_path}/empty.db") for one in arguments]
    done = in_process(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert words in done.stderr
