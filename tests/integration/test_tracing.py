"""Spans of batches and their stages, as OpenTelemetry's SDK gets them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tallymark import Consumer, Kafka, Standalone
from tallymark.core.progress import ignore
from tallymark.run.observe import observed
from tallymark.run.setup import Setup
from tallymark.stores.opening import open_sql
from tests.support.crash import Run, make_loop
from tests.support.kafka import Topics
from tests.support.reader import PlainReader

EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module")
def _sdk() -> None:
    """It can be set up only once in a process."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)


@pytest.fixture
def spans(_sdk: None) -> Callable[[], Sequence[ReadableSpan]]:
    EXPORTER.clear()
    return EXPORTER.get_finished_spans


def batches(spans: Sequence[ReadableSpan]) -> list[ReadableSpan]:
    return [span for span in spans if span.name == "tallymark.batch"]


def _id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def stages(spans: Sequence[ReadableSpan], batch: ReadableSpan) -> list[str]:
    own = [one for one in spans if one.parent is not None and one.parent.span_id == _id(batch)]
    for one in own:
        assert _start(batch) <= _start(one) <= _end(one) <= _end(batch)
    return [one.name.removeprefix("tallymark.") for one in sorted(own, key=_start)]


def _start(span: ReadableSpan) -> int:
    # The two clocks that it uses are read one after the other.
    return (span.start_time or 0) // 1_000_000


def _end(span: ReadableSpan) -> int:
    return (span.end_time or 0) // 1_000_000 + 1


def attributes(span: ReadableSpan) -> Mapping[str, object]:
    return {name.removeprefix("tallymark."): value for name, value in (span.attributes or {}).items()}


def test_a_batch_is_a_span_with_one_for_each_stage(
    brokers: str,
    topics: Topics,
    group: str,
    database: Callable[[str], str],
    spans: Callable[[], Sequence[ReadableSpan]],
) -> None:
    topic, url = topics.create(1), database("sqlite")
    topics.send(topic, [{"id": 1}, {"id": 2}, "no JSON"], partitions=1)
    store, reader = open_sql(url), PlainReader(brokers)
    with observed(Setup(group, Kafka(brokers, topic), url, tracing=True), "run", ignore) as watch:
        make_loop(Run(brokers, url, group, topic), store, reader, watch).run("caught-up")
    (batch,) = batches(spans())
    assert stages(spans(), batch) == ["plan", "read", "stage", "write", "commit"]
    found = attributes(batch)
    assert (found["group"], found["records"]) == (group, 3)
    assert (found["applied"], found["dead"], found["lost"]) == (2, 1, 0)
    reader.close()
    store.close()


def test_an_attempt_that_fails_is_a_span_with_its_error(
    brokers: str,
    topics: Topics,
    group: str,
    database: Callable[[str], str],
    spans: Callable[[], Sequence[ReadableSpan]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, url = topics.create(1), database("sqlite")
    topics.send(topic, ["x"], partitions=1)
    monkeypatch.setenv("TALLYMARK_TRACING", "1")
    consumer = Consumer(group=group, source=Kafka(brokers, topic), store=url, membership=Standalone())
    for batch in consumer.batches(until="caught-up"):
        with pytest.raises(ZeroDivisionError), batch.transaction():
            raise ZeroDivisionError("not today")
        with batch.transaction():
            pass
    failed, committed = batches(spans())
    assert (failed.status.status_code, failed.status.description) == (
        trace.StatusCode.ERROR,
        "ZeroDivisionError: not today",
    )
    assert [event.name for event in failed.events] == ["exception"]
    assert (stages(spans(), failed), stages(spans(), committed)) == (["read"], ["write", "commit"])
    assert attributes(committed)["applied"] == 1


def test_what_is_not_asked_for_is_not_imported() -> None:
    code = "import sys, tallymark; print([n for n in ('opentelemetry', 'prometheus_client') if n in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
