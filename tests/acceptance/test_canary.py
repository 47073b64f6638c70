"""Canary passwords appear nowhere in the output, logs, stored data and process list of tallymark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy.engine import make_url

from tallymark.local.sandbox import SecureKafka
from tests.support import databases
from tests.support.background import Background, wait_for
from tests.support.command import DEADLINE, in_process
from tests.support.secure import as_client, secure_kafka

pytestmark = pytest.mark.xdist_group("processes")

DATABASE_CANARY, WRONG_CANARY = "canary-of-the-database", "canary-that-is-wrong"
STORED = "SELECT query_to_xml('TABLE ' || tablename, true, false, '') FROM pg_tables WHERE schemaname = 'public'"
PIPELINE = """
import logging
import urllib.request
import tallymark as tm

pipeline = tm.Pipeline(
    group="canaries",
    source=tm.Kafka(
        {brokers!r}, "orders", value=tm.Json("id BIGINT"),
        security=tm.Sasl("SCRAM-SHA-512", "admin", password_file={password_file!r}),
        tls=tm.Tls({ca!r}, {cert!r}, {key!r}),
    ),
    store={store!r},
    road="executors",
    spark={{
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": {events!r},
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }},
)

@pipeline.table("orders")
def orders(records):
    records.explain("extended")
    print(pipeline, pipeline.setup, pipeline.setup.source.cluster)
    context = records.sparkSession.sparkContext
    interface = f"{{context.uiWebUrl}}/api/v1/applications/{{context.applicationId}}"
    for page in ("sql?details=true", "environment", "jobs"):
        print(urllib.request.urlopen(f"{{interface}}/{{page}}").read().decode())
    return records.select("value.id")

if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG)
    pipeline.run("caught-up")
"""


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[SecureKafka]:
    with secure_kafka(tmp_path / "server") as kafka:
        admin = AdminClient(as_client(kafka))
        admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(30)
        producer = Producer(as_client(kafka))
        for number in range(1000):
            producer.produce("orders", b'{"id": %d}' % number if number else b"no json")
        producer.flush(30)
        yield kafka


@pytest.mark.faults
def test_no_password_is_shown_anywhere(
    kafka: SecureKafka,
    database: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    events, file = tmp_path / "events", tmp_path / "pipeline.py"
    events.mkdir()
    store = make_url(database("postgresql")).set(password=DATABASE_CANARY).render_as_string(hide_password=False)
    paths = {"ca": kafka.ca, "cert": kafka.client_cert, "key": kafka.client_key, "password_file": kafka.password_file}
    given = {name: str(path) for name, path in {**paths, "events": events}.items()}
    file.write_text(PIPELINE.format(brokers=kafka.brokers, store=store, **given))
    key = kafka.client_key.read_text().splitlines()[1]
    canaries = [kafka.password_file.read_text(), key, DATABASE_CANARY, WRONG_CANARY]

    # A separate program that logs everything at DEBUG: the command line would suppress some of it.
    running = subprocess.Popen(
        [sys.executable, file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with Background(running.communicate) as talking:
        listed = _process_list_while(talking)
    printed = "".join(talking.result())
    assert running.returncode == 0, printed
    assert "path=executors" in printed, "the URL of the database went to the executors, too"
    assert "Parsed Logical Plan" in printed
    logged = _everything_in(events)
    assert "SparkListenerSQLExecutionStart" in logged

    wrong = {**kafka.variables, "TALLYMARK_SASL_PASSWORD_FILE": "", "TALLYMARK_SASL_PASSWORD": WRONG_CANARY}
    for arguments, environment in (
        (["status", "--file", file, "--json"], kafka.variables),
        (["doctor", "--file", file, "--json"], kafka.variables),
        (["doctor", "--file", file], wrong),
        (["consume", "orders"], wrong),
    ):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        done = in_process("-vv", *arguments)
        assert done.returncode in (0, 1, 2)
        printed += done.stdout + done.stderr
    printed += caplog.text

    stored = databases.query(store, STORED)
    assert len(stored) >= 5
    for canary in canaries:
        for name, shown in {"printed": printed, "event log": logged, "ps": listed, "stored": str(stored)}.items():
            assert canary not in shown, f"{canary} is in what was {name}"
        assert canary not in kafka.log.read_text()


def _process_list_while(running: Background[tuple[str, str]]) -> str:
    """The command lines of all processes, collected until this one has ended."""
    listed: set[str] = set()

    def collected() -> bool:
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                listed.add(process.read_text(errors="replace"))
        return not running.alive

    wait_for(collected, DEADLINE)
    assert any("org.apache.spark.deploy.SparkSubmit" in one for one in listed)
    return "".join(listed)


def _everything_in(directory: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in directory.rglob("*") if path.is_file())
