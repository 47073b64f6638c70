"""The dashboard and the rules in ops/ use existing metrics, and Prometheus accepts them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tallymark import Consumer, Kafka, Standalone
from tallymark.core.progress import Progress, Step
from tests.support.kafka import Topics
from tests.support.metrics import Scrape, free_port

OPS = Path(__file__).parents[2] / "ops"
PROMTOOL = os.environ.get("TALLYMARK_PROMTOOL") or shutil.which("promtool")


@pytest.fixture
def scrape(brokers: str, topics: Topics, group: str, database: Callable[[str], str]) -> Scrape:
    """The metrics of a run after it has committed a batch."""
    topic, port, seen = topics.create(1), free_port(), []
    topics.send(topic, ["x"], partitions=1)

    def look(step: Step, _: Progress) -> None:
        if step is Step.DONE:
            seen.append(Scrape(port))

    source, store = Kafka(brokers, topic), database("sqlite")
    consumer = Consumer(group=group, source=source, store=store, membership=Standalone(), metrics_port=port)
    for batch in consumer.batches(until="caught-up", on_step=look):
        with batch.transaction():
            pass
    assert seen[-1].total("tallymark_records_total", group=group, outcome="applied") == 1
    return seen[-1]


def test_the_dashboard_and_the_rules_speak_of_metrics_that_there_are(scrape: Scrape) -> None:
    for name in ("grafana-dashboard.json", "alerts.yml", "alerts.test.yml"):
        named = set(re.findall(r"\btallymark_\w+", (OPS / name).read_text()))
        # Texts use the histogram's base name.
        assert named - scrape.names <= {"tallymark_batch_seconds"}, name


def test_every_metric_is_explained_and_every_one_that_is_explained_is_there(scrape: Scrape) -> None:
    words = (OPS.parent / "docs" / "reference" / "metrics.md").read_text()
    explained = set(re.findall(r"^\| `(tallymark_\w+)", words, re.M))
    ours = {re.sub(r"_(bucket|sum|count)$", "", name) for name in scrape.names if name.startswith("tallymark_")}
    assert {name for name in ours if not name.endswith("_created")} == explained


def test_the_dashboard_is_json_with_a_query_in_every_panel() -> None:
    panels = json.loads((OPS / "grafana-dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    assert all(target["expr"] for panel in panels for target in panel["targets"])


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed; TALLYMARK_PROMTOOL may name it")
def test_promtool_takes_the_rules_their_tests_and_the_scrape(scrape: Scrape) -> None:
    assert PROMTOOL is not None
    for what in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"], ["check", "metrics"]):
        run = subprocess.run([PROMTOOL, *what], cwd=OPS, input=scrape.text, text=True, capture_output=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
