"""``tallymark run --metrics-port`` and ``--log-format json``."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.support.background import wait_for
from tests.support.command import DEADLINE, in_process, started
from tests.support.kafka import Topics
from tests.support.metrics import Scrape

APP = """
import tallymark as tm
app = tm.App(brokers="{brokers}", store="{store}")

@app.listen("{topic}", group="{group}-a", threads=2)
def one(record, db):
    pass

@app.listen("{topic}", group="{group}-b")
def other(record, db):
    pass
"""


def test_an_app_serves_all_its_listeners_on_one_port_and_logs_json(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str], tmp_path: Path
) -> None:
    topic, file = topics.create(2), tmp_path / "app.py"
    topics.send(topic, ["x"] * 10, partitions=2)
    file.write_text(APP.format(brokers=brokers, store=database("postgresql"), topic=topic, group=group))
    running = started("-v", "--log-format", "json", "run", file, "--metrics-port", "0")
    try:
        assert running.stderr is not None
        said = json.loads(running.stderr.readline())
        assert said["message"] == f"serving metrics url={said['url']}"
        for name in (f"{group}-a", f"{group}-b"):
            wait_for(partial(_has_read, said["url"], name), DEADLINE, f"{name} has read all")
    finally:
        running.send_signal(signal.SIGINT)
        _, rest = running.communicate(timeout=60)
    lines = [json.loads(text) for text in rest.splitlines() if not text.startswith("%")]
    assert {line["group"] for line in lines if line["message"].startswith("committed ")} == {f"{group}-a", f"{group}-b"}
    assert running.returncode == 0


def _has_read(url: str, group: str) -> bool:
    return Scrape(url=url).total("tallymark_records_total", group=group) == 10


def test_the_error_of_a_command_is_a_line_of_json(tmp_path: Path) -> None:
    failed = in_process("run", tmp_path / "none.py", TALLYMARK_LOG_FORMAT="json")
    found = json.loads(failed.stderr)
    assert (failed.returncode, found["level"]) == (2, "error")
    assert found["message"] == f"{tmp_path}/none.py: there is no such file"


def test_a_port_that_is_none_is_refused(tmp_path: Path) -> None:
    refused = in_process("run", tmp_path / "app.py", "--metrics-port", "70000")
    assert refused.returncode == 2
    assert "--metrics-port" in refused.stderr
