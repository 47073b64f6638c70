"""Records arrive unchanged in the partitions that Java would choose; every failure is reported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tallymark as tm
from tallymark.errors import (
    AccessDenied,
    BadInput,
    BufferFull,
    CommitRefused,
    CommitUnknown,
    NotDelivered,
    ProducerStopped,
    RecordDropped,
    RecordTooLarge,
    StillWaiting,
    UnknownPartition,
    UnknownTopic,
)
from tallymark.kafka.brokers import Brokers, connect
from tallymark.kafka.cluster import Cluster
from tallymark.produce.pump import Pump
from tallymark.produce.settings import Outgoing, java_partition
from tallymark.produce.state import Reasons
from tests.support.background import Background, wait_for
from tests.support.databases import query
from tests.support.kafka import TIMEOUT, Topics

NOWHERE = "127.0.0.1:1"
LARGE = os.urandom(5000)
Heard = list[tuple[tm.Metadata | None, tm.TallymarkError | None]]
Intercept = Callable[[Callable[[Any, dict[str, Any]], Any]], None]


@pytest.fixture(scope="module")
def producer(brokers: str) -> Iterator[tm.Producer]:
    with tm.Producer(brokers) as made:
        yield made


@pytest.fixture
def limited(topics: Topics) -> str:
    """A topic with a lower size limit than the client."""
    return topics.create(1, max_message_bytes="2000")


def read(brokers: str, metadata: tm.Metadata) -> Any:
    """The record at this offset, read by a plain consumer."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(metadata.topic, metadata.partition, metadata.offset)])
    (message,) = consumer.consume(1, TIMEOUT)
    consumer.close()
    return message


def values(topics: Topics, topic: str) -> list[bytes | None]:
    return [value for _, value in sorted(topics.committed(topic).items())]


def test_a_record_arrives_as_it_was_written(producer: tm.Producer, topics: Topics, brokers: str) -> None:
    topic, when = topics.create(3), datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC)
    sent = producer.send(topic, b"\xff", key="é", headers={"a": "ü", "b": b"\xff"}, partition=2, timestamp=when)
    metadata = sent.result(TIMEOUT)
    assert tuple(metadata) == (topic, 2, 0, when)
    message = read(brokers, metadata)
    assert (message.key(), message.value()) == ("é".encode(), b"\xff")
    assert message.headers() == [("a", "ü".encode()), ("b", b"\xff")]
    assert message.timestamp()[1] == int(when.timestamp() * 1000)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (b"\x00\xff", b"\x00\xff"),
        ("grün", "grün".encode()),
        (None, None),
        ({"name": "grün", "tags": [1, None]}, '{"name":"grün","tags":[1,null]}'.encode()),
        ({"at": datetime(2026, 1, 31, 12, tzinfo=UTC)}, b'{"at":"2026-01-31T12:00:00+00:00"}'),
        ({"day": date(2026, 1, 31), "price": Decimal("1.10")}, b'{"day":"2026-01-31","price":"1.10"}'),
        (7, b"7"),
    ],
)
def test_a_value_is_written_by_its_type(
    producer: tm.Producer, topics: Topics, value: object, written: bytes | None
) -> None:
    topic = topics.create(1)
    producer.send(topic, value).result(TIMEOUT)
    assert values(topics, topic) == [written]


def test_a_function_encodes_all_values_but_tombstones(topics: Topics, brokers: str) -> None:
    topic = topics.create(1)
    with tm.Producer(brokers, value=lambda value: f"<{value}>") as producer:
        for value in ("a", 7, None):
            producer.send(topic, value)
    assert values(topics, topic) == [b"<a>", b"<7>", None]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"key": 42}, "key=42 must be str, bytes or None"),
        ({"value": {"n": float("nan")}}, "can't be written as JSON"),
        ({"value": object()}, "object can't be written as JSON"),
        ({"value": "\ud800"}, "can't be sent"),
        ({"headers": {"a": 1}}, "can't be sent: .*header value"),
        ({"timestamp": datetime(2026, 1, 31)}, "no time zone"),
        ({"timestamp": -5}, "milliseconds after 1970"),
        ({"timestamp": 1_700_000_000_000_000}, "later than the year 9999; give milliseconds, not microseconds"),
        ({"topic": ""}, "topic='' is not a topic name"),
        ({"topic": "two words"}, "is not a topic name"),
    ],
)
def test_what_can_t_be_sent_is_refused_at_once(
    producer: tm.Producer, topics: Topics, record: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        producer.send(**{"topic": "orders", **record})


def test_settings_that_the_client_refuses_are_one_sentence(brokers: str) -> None:
    with pytest.raises(BadInput, match=r"client refused its settings: .*no.such.setting"):
        tm.Producer(brokers, settings={"no.such.setting": 1})


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=100))
def test_keys_go_where_java_puts_them(producer: tm.Producer, seven: str, keys: list[bytes]) -> None:
    sent = [producer.send(seven, key=key) for key in keys]
    assert [one.result(TIMEOUT).partition for one in sent] == [java_partition(key, 7) for key in keys]


@pytest.fixture(scope="module")
def seven(topics: Topics) -> str:
    return topics.create(7)


def test_a_partitioner_of_one_s_own_decides_unless_the_partition_is_given(brokers: str, seven: str) -> None:
    def last(_topic: str, key: bytes | None, partitions: int) -> int:
        return partitions - 1 if key else partitions

    with tm.Producer(brokers, partitioner=last) as producer:
        assert producer.send(seven, key="a").result(TIMEOUT).partition == 6
        assert producer.send(seven, key="a", partition=0).result(TIMEOUT).partition == 0
        with pytest.raises(BadInput, match="the partitioner returned 7"):
            producer.send(seven)
        with pytest.raises(UnknownTopic):
            producer.send(f"none-{uuid.uuid4().hex}", key="a")


def test_callbacks_and_listeners_hear_of_deliveries_and_one_that_raises_hinders_nobody(
    topics: Topics, brokers: str
) -> None:
    heard: Heard = []
    listened: list[tm.Metadata] = []

    def broken(*_: object) -> None:
        raise RuntimeError("nobody expected this")

    def listen(metadata: tm.Metadata) -> None:
        listened.append(metadata)
        broken()

    topic = topics.create(1)
    with tm.Producer(brokers, on_success=listen) as producer:
        producer.send(topic, "a", on_delivery=broken)
        producer.send(topic, "b", on_delivery=lambda *report: heard.append(report))
    assert [metadata.offset for metadata in listened] == [0, 1]
    assert [(metadata and metadata.offset, error) for metadata, error in heard] == [(1, None)]


def test_a_callback_is_called_without_anybody_waiting_or_sending(producer: tm.Producer, topics: Topics) -> None:
    called = threading.Event()
    producer.send(topics.create(1), "a", on_delivery=lambda *_: called.set())
    assert called.wait(TIMEOUT)


def test_a_callback_can_send_but_not_wait(topics: Topics, brokers: str) -> None:
    topic, refused = topics.create(1), []
    own = tm.Producer(brokers)

    def answer(*_: object) -> None:
        second = own.send(topic, "answer")
        for wait in (second.result, own.flush, own.close, own.transaction().__enter__):
            with pytest.raises(BadInput, match=r"a delivery callback, or a signal handler .*, can't wait"):
                wait()
            refused.append(wait)

    own.send(topic, "question", on_delivery=answer).result(TIMEOUT)
    own.close()
    assert len(refused) == 4
    assert values(topics, topic) == [b"question", b"answer"]


def test_a_callback_that_finds_no_room_is_told_that_it_can_t_wait_for_it(topics: Topics, brokers: str) -> None:
    topic, refused = topics.create(1), threading.Event()
    own = tm.Producer(brokers, settings={"queue.buffering.max.messages": 1})

    def answer(*_: object) -> None:
        with pytest.raises(BufferFull, match="a callback can't wait for space"):
            [own.send(topic, "answer") for _ in range(3)]
        refused.set()

    own.send(topic, "question", on_delivery=answer).result(TIMEOUT)
    own.close()
    assert refused.is_set()


def test_a_callback_that_wants_to_end_the_process_ends_no_reports(topics: Topics, brokers: str) -> None:
    def leave(*_: object) -> None:
        sys.exit()

    topic, called = topics.create(1), threading.Event()
    with tm.Producer(brokers) as own:
        own.send(topic, "a", on_delivery=leave)
        wait_for(lambda: own.statistics().delivered > 0)
        own.send(topic, "b", on_delivery=lambda *_: called.set())
        assert called.wait(TIMEOUT)


def test_interceptors_see_records_and_what_became_of_them_in_their_order(topics: Topics, brokers: str) -> None:
    class Stamp:
        def __init__(self, mark: str) -> None:
            self.mark, self.acknowledged, self.closed = mark, 0, 0

        def on_send(self, record: Outgoing) -> Outgoing:
            return record._replace(value=record.value + self.mark)

        def on_acknowledgement(self, metadata: tm.Metadata | None, error: tm.TallymarkError | None) -> None:
            assert (metadata is None) != (error is None)
            self.acknowledged += 1

        def close(self) -> None:
            self.closed += 1

    class Broken:
        def on_send(self, record: Outgoing) -> Outgoing:
            raise RuntimeError("passed over")

        on_acknowledgement = close = on_send

    class Silent:
        pass

    topic, first, second = topics.create(1), Stamp("1"), Stamp("2")
    with tm.Producer(brokers, interceptors=(first, Broken(), Silent(), second)) as producer:
        producer.send(topic, "value-")
    assert values(topics, topic) == [b"value-12"]
    assert (first.acknowledged, second.acknowledged, first.closed, second.closed) == (1, 1, 1, 1)


def test_threads_share_a_producer_and_each_keeps_its_order(topics: Topics, brokers: str) -> None:
    topic, each = topics.create(3), 2000
    with tm.Producer(brokers, settings={"queue.buffering.max.messages": 500}) as producer:

        def work(name: str) -> None:
            for number in range(each):
                producer.send(topic, f"{name}-{number}", key=name)

        working = [Background(partial(work, name)).start() for name in "abcd"]
        for one in working:
            one.result()
        producer.flush()
        assert producer.statistics() == (4 * each, 4 * each, 0, 0)
    found = [str(value, "ascii").split("-") for value in values(topics, topic) if value]
    for name in "abcd":
        assert [int(number) for one, number in found if one == name] == list(range(each))


def test_a_record_that_is_too_large_fails_alone(producer: tm.Producer, topics: Topics) -> None:
    topic = topics.create(1)
    with pytest.raises(RecordTooLarge, match=r"a record of 1,100,001 bytes exceeds message.max.bytes=1000000"):
        producer.send(topic, "x" * 1_100_000, key="k")
    producer.send(topic, "next").result(TIMEOUT)
    assert values(topics, topic) == [b"next"]


@pytest.mark.parametrize("batch", [1, 5])
def test_a_final_failure_stops_the_producer_and_every_record_behind_it_is_dropped_and_reported(
    topics: Topics, brokers: str, limited: str, batch: int
) -> None:
    """The broker refuses one record: of all that came after it, none may be in the log."""
    heard: dict[int, tuple[tm.Metadata | None, tm.TallymarkError | None]] = {}
    listened: list[Outgoing] = []
    small = {"linger.ms": 0, "batch.num.messages": batch}
    producer = tm.Producer(brokers, settings=small, on_error=lambda record, _: listened.append(record))
    producer.send(limited, "0").result(TIMEOUT)
    for number in range(1, 500):
        value = "x" * 5000 if number == 50 else str(number)
        try:
            producer.send(
                limited,
                value,
                headers={"n": str(number)},
                on_delivery=lambda *report, number=number: heard.update({number: report}),
            )
        except ProducerStopped:
            break
    producer.flush()
    assert sorted(heard) == list(range(1, len(heard) + 1))
    errors = {number: error for number, (_, error) in heard.items() if error}
    assert 50 in errors
    assert set(errors) == set(range(min(errors), len(heard) + 1))
    assert isinstance(errors[50], RecordTooLarge)
    assert isinstance(errors[len(heard)], RecordDropped)
    assert "queued after a failed record" in str(errors[len(heard)])
    assert [record.headers for record in listened] == [{"n": str(number)} for number in errors]
    assert producer.statistics() == (len(heard) + 1, min(errors), len(errors), 0)
    assert values(topics, limited) == [str(number).encode() for number in range(min(errors))]
    with pytest.raises(ProducerStopped, match=rf"topic {limited}: the broker refused a batch .*; create a new one"):
        producer.send(limited, "later")
    producer.close()


def test_failures_that_nobody_has_heard_of_are_raised_by_flush_and_close(
    topics: Topics, brokers: str, limited: str
) -> None:
    producer = tm.Producer(brokers, profile="fast", settings={"linger.ms": 0})
    heard: Heard = []
    for _ in range(2):
        producer.send(limited, LARGE)
    producer.send(limited, LARGE, on_delivery=lambda *report: heard.append(report))
    with pytest.raises(RecordTooLarge):
        producer.send(limited, LARGE).result(TIMEOUT)
    producer.send(limited, "fine").result(TIMEOUT)
    with pytest.raises(NotDelivered, match=r"^2 records were not delivered; the first: topic .* max.message.bytes"):
        producer.flush()
    producer.flush()
    other = topics.create(1, max_message_bytes="2000")
    assert isinstance(producer.send(limited, LARGE).exception(TIMEOUT), RecordTooLarge)
    producer.send(other, LARGE)
    with pytest.raises(NotDelivered, match=rf"^1 record was not delivered; the first: topic {other}"):
        producer.close()
    producer.close()
    assert len(heard) == 1
    with pytest.raises(ProducerStopped, match="closed"):
        producer.send(limited, "later")


def test_a_topic_that_is_not_there_is_named(brokers: str) -> None:
    topic = f"none-{uuid.uuid4().hex[:6]}"
    producer = tm.Producer(brokers, settings={"topic.metadata.propagation.max.ms": 500})
    with pytest.raises(UnknownTopic, match=f"topic {topic} does not exist"):
        producer.send(topic, "value").result(TIMEOUT)
    with pytest.raises(ProducerStopped, match=f"topic {topic} does not exist"):
        producer.send(topic, "value")
    producer.close()


def test_a_partition_that_is_not_there_is_named_and_stops_nothing(topics: Topics, brokers: str) -> None:
    topic = topics.create(1)
    with tm.Producer(brokers) as producer:
        for _ in range(2):  # before the client knows the partitions, and after
            with pytest.raises(UnknownPartition, match=f"topic {topic} has no partition 7"):
                producer.send(topic, "nowhere", partition=7).result(TIMEOUT)
            producer.send(topic, "fine").result(TIMEOUT)
    assert values(topics, topic) == [b"fine"] * 2


@pytest.mark.parametrize("code", [KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_no_sentence_names_none(code: int) -> None:
    said = Reasons(Cluster(NOWHERE), None).of_failure(KafkaError(code))
    assert "None" not in str(said)
    assert not isinstance(said, (tm.Fenced, UnknownTopic))


@pytest.fixture
def intercept(monkeypatch: pytest.MonkeyPatch) -> Intercept:
    """``intercept(wrap)``: the next producer uses ``wrap(client, settings)`` instead of its client."""

    def replace_client(wrap: Callable[[Any, dict[str, Any]], Any]) -> None:
        def wrapped(make: Any, settings: dict[str, Any]) -> Any:
            return wrap(connect(make, settings), settings)

        monkeypatch.setattr("tallymark.produce.producer.connect", wrapped)

    return replace_client


def test_a_complaint_is_forgotten_once_something_was_delivered(
    topics: Topics, brokers: str, intercept: Intercept
) -> None:
    topic, complain = topics.create(1), list[Callable[[KafkaError], None]]()

    def listening(client: Any, settings: dict[str, Any]) -> Any:
        complain.append(settings["error_cb"])
        return client

    intercept(listening)
    with tm.Producer(brokers, settings={"linger.ms": 200}) as producer:
        complain[0](KafkaError(KafkaError._AUTHENTICATION, "SASL: no entry"))
        producer.flush()  # nothing waits
        first = producer.send(topic, "a")
        with pytest.raises(AccessDenied, match="no entry"):
            first.result(TIMEOUT)
        wait_for(first.done)
        for value in ("b", "c"):
            producer.send(topic, value).result(TIMEOUT)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the search for the cause of a delay to a short time."""
    monkeypatch.setattr("tallymark.produce.state.ASK_SECONDS", 0.2)


def test_a_full_buffer_blocks_and_then_errors_within_its_bound(impatient: None) -> None:
    producer = tm.Producer(NOWHERE, settings={"queue.buffering.max.messages": 10}, buffer_seconds=0.5)
    heard: Heard = []
    for _ in range(10):
        producer.send("orders", "value", on_delivery=lambda *report: heard.append(report))
    began = time.monotonic()
    with pytest.raises(BufferFull, match=rf"full for 0.5 s: the brokers at {NOWHERE} can't be reached"):
        producer.send("orders", "value")
    assert 0.5 < time.monotonic() - began < 5
    with pytest.raises(
        StillWaiting, match=r"10 records are not delivered after 0.1 s: the brokers at .* can't be reached"
    ):
        producer.flush(timeout=0.1)
    producer.close(timeout=0)
    assert [(metadata, type(error)) for metadata, error in heard] == [(None, RecordDropped)] * 10
    assert "the producer was closed: 10 records are not delivered" in str(heard[0][1])


def test_who_finds_no_room_hears_of_the_first_holdup_and_of_its_own_topic_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def ask(_brokers: Brokers, _question: object, topic: str) -> dict[str, Any]:
        """Topic b has no leader; nothing is known about settings."""
        if topic in asked[-1:]:
            raise tm.TallymarkError("not authorized")
        asked.append(topic)
        leader = None if topic == "b" else SimpleNamespace(id=1)
        return {topic: SimpleNamespace(partitions=[SimpleNamespace(id=0, leader=leader, isr=[], replicas=[])])}

    monkeypatch.setattr(Brokers, "ask", ask)
    producer = tm.Producer(NOWHERE, settings={"queue.buffering.max.messages": 3}, buffer_seconds=0.1)
    for topic in ("a", "b", "c"):
        producer.send(topic, "value", on_delivery=lambda *_: None)
    with pytest.raises(BufferFull, match="topic b partition 0 has no leader"):
        producer.send("z", "value")
    assert asked == ["z", "a", "b"]
    producer.close(0)


class Interrupted:
    """A client with a hook before or after it accepts a record."""

    def __init__(self, client: Any, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._client, self._before, self._after = client, before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def __len__(self) -> int:
        return len(self._client)

    def produce(self, *record: Any) -> None:
        self._before()
        self._client.produce(*record)
        self._after()


@pytest.mark.parametrize("closed_first", [True, False])
def test_a_record_sent_while_another_thread_closes_is_delivered_or_refused(
    topics: Topics, brokers: str, closed_first: bool, intercept: Intercept
) -> None:
    topic = topics.create(1)
    heard: Heard = []

    def close() -> None:
        Background(own.close).start().result()

    before, after = (close, lambda: None) if closed_first else (lambda: None, close)
    intercept(lambda client, _: Interrupted(client, before, after))
    own = tm.Producer(brokers, settings={"linger.ms": 60_000})
    if closed_first:
        with pytest.raises(ProducerStopped, match="closed"):
            own.send(topic, "late", on_delivery=lambda *report: heard.append(report))
        assert [type(error) for _, error in heard] == [RecordDropped]
        assert "the producer was closed" in str(heard[0][1])
    else:
        assert own.send(topic, "in time").result(0).offset == 0
    assert values(topics, topic) == ([] if closed_first else [b"in time"])


def test_ctrl_c_while_closing_drops_nothing_unheard(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    own = tm.Producer(NOWHERE)
    sent = own.send("orders", "value")
    monkeypatch.setattr(Pump, "wait_until", interrupted)
    with pytest.raises(KeyboardInterrupt):
        own.close()
    assert "1 record was not delivered" in caplog.text
    assert re.search("closed: KeyboardInterrupt .*it may be in the log", str(sent.exception()))


def test_a_second_close_waits_for_the_first(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    closing, wait = threading.Event(), Pump.wait_until

    def waiting(*given: Any) -> bool:
        closing.set()
        return wait(*given)

    monkeypatch.setattr(Pump, "wait_until", waiting)
    own = tm.Producer(NOWHERE)
    own.send("orders", "value", on_delivery=lambda *_: None)
    with Background(lambda: own.close(0.5)):
        assert closing.wait(TIMEOUT)
        own.close()
        assert own.statistics().failed == 1


def test_close_does_not_wait_for_a_callback_without_end(
    impatient: None, topics: Topics, brokers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallymark.produce.pump.JOIN_SECONDS", 0.1)
    called, leave = threading.Event(), threading.Event()

    def stay(*_: object) -> None:
        called.set()
        leave.wait(TIMEOUT)

    own = tm.Producer(brokers)
    own.send(topics.create(1), "a", on_delivery=stay)
    assert called.wait(TIMEOUT)
    began = time.monotonic()
    own.close(0.1)
    assert time.monotonic() - began < 5
    leave.set()


def test_a_producer_from_before_a_fork_refuses_in_the_child_and_goes_on_in_the_parent(
    topics: Topics, brokers: str
) -> None:
    topic = topics.create(1)
    script = f"""
import os, sys
import tallymark as tm
with tm.Producer({brokers!r}, settings={{"linger.ms": 500}}) as producer:
    sent = [producer.send({topic!r}, str(number)) for number in range(5)]
    child = os.fork()
    if not child:
        for call in (lambda: producer.send({topic!r}, "child"), producer.flush, sent[0].result):
            try:
                call()
            except tm.TallymarkError as error:
                print(error)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines() == ["this producer was created before a fork; create one in each process"] * 3
    assert done.stderr == ""
    assert values(topics, topic) == [str(number).encode() for number in range(5)]


def test_what_a_block_raises_comes_before_what_close_has_to_say(
    impatient: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = tm.Producer(NOWHERE)
    own.send("orders", "value")
    monkeypatch.setattr(own, "close", partial(own.close, 0.1))
    with pytest.raises(ZeroDivisionError), own:
        raise ZeroDivisionError
    assert "1 record was not delivered" in caplog.text


def test_a_transaction_is_visible_whole_or_not_at_all(topics: Topics, brokers: str) -> None:
    topic = topics.create(2)
    settings = {"linger.ms": 300}
    with tm.Producer(brokers, transactional_id=f"tx-{uuid.uuid4().hex}", settings=settings) as producer:
        with pytest.raises(BadInput, match="inside `with producer"):
            producer.send(topic, "outside")
        with producer.transaction():
            for partition in (0, 1):
                producer.send(topic, "committed", partition=partition)
            with pytest.raises(BadInput, match="already in a transaction"), producer.transaction():
                pass
            producer.send(topic, "committed", partition=0)
        assert values(topics, topic) == [b"committed"] * 3
        sent = []

        def send_and_fail() -> None:
            with producer.transaction():
                producer.send(topic, "aborted", partition=0).result(TIMEOUT)
                sent.append(producer.send(topic, "aborted", partition=0))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            send_and_fail()
        assert isinstance(sent[0].exception(TIMEOUT), RecordDropped)
        assert "aborted: the block raised ZeroDivisionError" in str(sent[0].exception())
        with producer.transaction():
            producer.send(topic, "again", partition=0)
        assert sorted(map(str, values(topics, topic))) == ["b'again'", *["b'committed'"] * 3]


def test_a_transaction_with_a_record_that_failed_is_aborted(topics: Topics, brokers: str, limited: str) -> None:
    topic = topics.create(1)
    with tm.Producer(brokers, transactional_id=f"tx-{uuid.uuid4().hex}") as producer:
        with (
            pytest.raises(CommitRefused, match=f"none of its records is visible: topic {limited}: the broker refused"),
            producer.transaction(),
        ):
            [producer.send(topic, "in vain"), producer.send(limited, "x" * 5000)]
        with (
            pytest.raises(NotDelivered, match=f"has failed or ended: topic {limited}: the broker refused a batch"),
            producer.transaction(),
        ):
            [producer.send(limited, "x" * 5000).exception(TIMEOUT), producer.send(topic, "too late")]
        with producer.transaction():
            producer.send(topic, "again")
    assert (values(topics, topic), values(topics, limited)) == ([b"again"], [])


@pytest.mark.parametrize("what", ["commit", "abort"])
def test_a_transaction_that_nobody_confirms_is_not_called_aborted_and_ends_the_producer(
    topics: Topics, brokers: str, what: str, impatient: None, intercept: Intercept
) -> None:
    tries: list[float] = []

    def unanswered(_timeout: float) -> None:
        tries.append(time.monotonic())
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "timed out", False, True))

    def send() -> None:
        with producer.transaction():
            producer.send(topic, "value").result(TIMEOUT)
            if what == "abort":
                raise ZeroDivisionError

    def deaf(client: Any, _: object) -> Interrupted:
        made = Interrupted(client, lambda: None, lambda: None)
        setattr(made, f"{what}_transaction", unanswered)
        return made

    topic, name = topics.create(1), f"tx-{uuid.uuid4().hex}"
    # The first transaction of an id takes the brokers longer.
    with tm.Producer(brokers, transactional_id=name) as first, first.transaction():
        pass
    intercept(deaf)
    producer = tm.Producer(brokers, transactional_id=name, buffer_seconds=2)
    unsure = pytest.raises(CommitUnknown, match="may or may not be visible: check the topic")
    with unsure if what == "commit" else pytest.raises(ZeroDivisionError):
        send()
    assert 2 <= len(tries) <= 41
    with pytest.raises(ProducerStopped, match=f"the {what} of the transaction of tx-"):
        send()
    producer.close()


def test_a_zombie_is_shut_out_and_told_why(topics: Topics, brokers: str) -> None:
    topic, name = topics.create(1), f"tx-{uuid.uuid4().hex}"
    zombie, owner = (tm.Producer(brokers, transactional_id=name) for _ in range(2))

    def take_over() -> None:
        with zombie.transaction():
            zombie.send(topic, "zombie").result(TIMEOUT)
            with owner.transaction():
                owner.send(topic, "owner")

    said = f"another producer uses transactional_id {name}, or its transaction took longer"
    with pytest.raises(tm.Fenced, match=said):
        take_over()
    with pytest.raises(tm.Fenced, match=name), zombie.transaction():
        pass
    zombie.close()
    owner.close()
    assert values(topics, topic) == [b"owner"]


def test_a_producer_without_an_id_has_no_transactions(producer: tm.Producer) -> None:
    with pytest.raises(BadInput, match="transactional_id="), producer.transaction():
        pass


def test_the_end_of_the_process_delivers_what_is_left_and_says_what_it_could_not(
    topics: Topics, brokers: str, tmp_path: Path
) -> None:
    topic = topics.create(1)
    script = f"""
import tallymark as tm, tallymark.produce.pump, tallymark.produce.state
tallymark.produce.state.ASK_SECONDS = 0.2
tallymark.produce.pump.EXIT_SECONDS = 5
kept, lost = tm.Producer({brokers!r}, settings={{"linger.ms": 500}}), tm.Producer({NOWHERE!r})
for number in range(100):
    kept.send({topic!r}, str(number))
    lost.send("orders", "value")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert values(topics, topic) == [str(number).encode() for number in range(100)]
    (line,) = done.stderr.splitlines()
    assert "not closed before the process ended error=100 records were not delivered; the first: topic orders" in line


def test_a_template_sends_from_handlers_and_is_flushed_when_the_app_ends(
    topics: Topics, brokers: str, database: Callable[[str], str], group: str
) -> None:
    topic, answers, quick = topics.create(1), topics.create(1), topics.create(1)
    topics.send(topic, [{"id": number} for number in range(20)])
    app = tm.App(brokers=brokers, store=database("sqlite"))
    template = app.template(answers)
    fast = app.template(quick, profile="fast", settings={"linger.ms": 60_000})

    @app.listen(topic, group=group, value=tm.Json("id BIGINT"))
    def answer(record: tm.Record, db: Any) -> None:
        template.send({"answer": record.value["id"]}, key=str(record.value["id"]))
        fast.send(str(record.value["id"]))

    template.send("before").result(TIMEOUT)
    assert app.run(until="caught-up").applied == 20
    written = [value for value in values(topics, answers) if value is not None]
    assert [json.loads(value)["answer"] for value in written[1:]] == list(range(20))
    assert len(values(topics, quick)) == 20
    template.send("after").result(TIMEOUT)


def test_a_template_whose_producer_has_stopped_makes_no_dead_letters(
    topics: Topics, brokers: str, limited: str, database: Callable[[str], str], group: str
) -> None:
    topic, url = topics.create(1), database("sqlite")
    topics.send(topic, [{"id": number} for number in range(3)])
    app = tm.App(brokers=brokers, store=url, patience=0.2)
    template = app.template(limited)
    assert template.send("x" * 5000).exception(TIMEOUT)

    @app.listen(topic, group=group, value=tm.Json("id BIGINT"))
    def answer(record: tm.Record, db: Any) -> None:
        template.send(str(record.value["id"]))

    with pytest.raises(tm.Retry, match="this producer stopped at its first failure"):
        app.run(until="caught-up")
    assert query(url, "SELECT count(*) FROM tallymark_dead_letters") == [(0,)]


def test_what_a_template_can_never_send_makes_a_dead_letter_and_the_app_goes_on(
    topics: Topics, brokers: str, database: Callable[[str], str], group: str
) -> None:
    topic, answers, url = topics.create(1), topics.create(1), database("sqlite")
    topics.send(topic, [{"id": number} for number in range(4)])
    app = tm.App(brokers=brokers, store=url)
    template = app.template(answers)

    @app.listen(topic, group=group, value=tm.Json("id BIGINT"))
    def answer(record: tm.Record, db: Any) -> None:
        template.send("x" * 2_000_000 if record.offset == 1 else "fits", key=7 if record.offset == 2 else None)

    assert app.run(until="caught-up") == tm.Tally(applied=2, dead=2)
    errors = query(url, "SELECT error FROM tallymark_dead_letters ORDER BY record_offset")
    assert "exceeds message.max.bytes" in str(errors[0])
    assert "must be str, bytes or None" in str(errors[1])
