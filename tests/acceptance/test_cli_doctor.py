"""``tallymark doctor`` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.support.command import in_process
from tests.support.databases import execute
from tests.support.kafka import Topics

FILE = """
import tallymark as tm

app = tm.App(brokers={brokers!r}, store={store!r})

@app.listen({topic!r}, group={group!r})
def orders(record, db):
    pass
"""


def test_the_doctor_prints_a_table_and_ends_well_on_a_sandbox(
    brokers: str, topics: Topics, database: Callable[[str], str]
) -> None:
    topic, store = topics.create(1), database("sqlite")
    execute(store, "CREATE TABLE orders (id BIGINT)")
    done = in_process("doctor", "--topic", topic, "--brokers", brokers, "--store", store)
    assert done.returncode == 0, done.stderr
    head, *lines, last = done.stdout.splitlines()
    assert head.split() == ["CHECK", "FOUND", "WANTED", "VERDICT", "WHAT", "TO", "DO"]
    replicas = next(line for line in lines if line.startswith(f"topic {topic}: replication factor"))
    assert replicas.split()[4:8] == ["1", ">=", "3", "warn"]
    assert "for development only" in replicas
    assert last.endswith(" ok, 3 warn, 0 fail")


def test_what_fails_is_in_the_json_and_in_the_exit_code(
    brokers: str, topics: Topics, group: str, tmp_path: Path
) -> None:
    topic = topics.create(1, unclean_leader_election_enable="true")
    file = tmp_path / "orders.py"
    store = f"sqlite:///{tmp_path / 'shop.db'}"
    execute(store, "CREATE TABLE orders (id BIGINT)")
    file.write_text(FILE.format(brokers=brokers, store=store, topic=topic, group=group))
    done = in_process("doctor", "--file", file, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    (failed,) = [one for one in json.loads(done.stdout) if one["verdict"] == "fail"]
    assert failed == {
        "about": f"topic {topic}",
        "check": "unclean.leader.election.enable",
        "found": "true",
        "wanted": "false",
        "verdict": "fail",
        "advice": failed["advice"],
    }
    assert f"kafka-configs.sh --bootstrap-server {brokers} --alter --entity-type topics" in failed["advice"]
    assert any(one["about"] == f"group {group}" and one["check"] == "positions" for one in json.loads(done.stdout))
