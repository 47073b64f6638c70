"""One table lists the transient errors of Kafka for every client, and one those of Spark; these tests walk both."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

import tallymark
from tallymark.core.spans import Partition
from tallymark.errors import AccessDenied, Unreachable, Verdict
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.cluster import Cluster
from tallymark.kafka.diagnosis import BUSY, HANDOVER, KAFKA, MOVED, SILENT, UNAUTHENTICATED, Complaints, judged
from tallymark.spark.errors import AWAY, SPARK
from tests.support.spark_errors import explain as explain_spark

CLIENT = Cluster("127.0.0.1:1", tls=False)
KNOWN = {name: getattr(KafkaError, name) for name in dir(KafkaError) if name.lstrip("_").isupper()}
PASSES = (
    # Brokers that restart, pause, or lose their connections.
    "_TRANSPORT _ALL_BROKERS_DOWN _TIMED_OUT _RESOLVE _PARTIAL _NOENT REQUEST_TIMED_OUT NETWORK_EXCEPTION "
    # Leaders, controllers and coordinators that move.
    "LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH BROKER_NOT_AVAILABLE "
    "REPLICA_NOT_AVAILABLE KAFKA_STORAGE_ERROR OFFSET_NOT_AVAILABLE NOT_CONTROLLER NOT_COORDINATOR "
    "COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS NOT_ENOUGH_REPLICAS UNKNOWN_TOPIC_ID "
    # Groups between two generations, and limits that are exceeded for a moment.
    "REBALANCE_IN_PROGRESS ILLEGAL_GENERATION UNKNOWN_MEMBER_ID STALE_MEMBER_EPOCH THROTTLING_QUOTA_EXCEEDED"
)
STAYS = (
    "_AUTHENTICATION _SSL SASL_AUTHENTICATION_FAILED TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED "
    "CLUSTER_AUTHORIZATION_FAILED _INVALID_ARG _AUTO_OFFSET_RESET OFFSET_OUT_OF_RANGE _LOG_TRUNCATION "
    "UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC _UNKNOWN_PARTITION TOPIC_EXCEPTION INVALID_CONFIG UNSUPPORTED_VERSION "
    "INCONSISTENT_GROUP_PROTOCOL FENCED_INSTANCE_ID _FENCED _FATAL PRODUCER_FENCED MSG_SIZE_TOO_LARGE _BAD_MSG UNKNOWN"
)


@pytest.fixture(autouse=True)
def unknocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallymark.kafka.diagnosis.diagnosis", lambda _: "nothing listens there")


def test_every_code_that_the_client_knows_has_a_verdict() -> None:
    assert set(KNOWN) - set(KAFKA) == set()


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_code_of_the_table_becomes_the_error_that_it_says(name: str) -> None:
    error, verdict = KafkaError(KNOWN[name]), KAFKA[name]
    assert judged(error) is verdict
    ours = Complaints(CLIENT).explain(error, "orders")
    assert type(ours) is verdict.error
    # The reason for a refused client is often found only by a test connection.
    if verdict is not UNAUTHENTICATED:
        sentence = re.escape(verdict.sentence).replace(r"\{name\}", CLIENT.brokers).replace(r"\{words\}", ".*")
        assert re.match(sentence, str(ours)), str(ours)


def test_what_may_pass_is_transient_and_what_may_not_is_not() -> None:
    explain = Complaints(CLIENT).explain
    wrong = {name for name in PASSES.split() if not explain(KafkaError(KNOWN[name])).transient}
    assert not wrong, "these end a run, though they may pass"
    wrong = {name for name in STAYS.split() if explain(KafkaError(KNOWN[name])).transient}
    assert not wrong, "these are tried again, though they fail each time"


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("_NOENT", MOVED),
        ("FENCED_LEADER_EPOCH", MOVED),
        ("UNKNOWN_LEADER_EPOCH", MOVED),
        ("COORDINATOR_LOAD_IN_PROGRESS", BUSY),
        ("REBALANCE_IN_PROGRESS", HANDOVER),
        ("_TRANSPORT", SILENT),
    ],
)
def test_stale_metadata_is_told_from_what_passes_by_itself(name: str, verdict: Verdict) -> None:
    assert judged(KafkaError(KNOWN[name])) is verdict


def test_whoever_was_refused_does_not_wait() -> None:
    complaints = Complaints(CLIENT)
    complaints.on_error(KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error: wrong password"))
    with pytest.raises(AccessDenied, match="wrong password; check user and password"):
        complaints.explain(KafkaError(KafkaError._NOENT))
    complaints.clear()
    assert isinstance(complaints.explain(KafkaError(KafkaError._NOENT)), Unreachable)


def test_nothing_asks_by_the_call_that_aborts_the_process() -> None:
    """librdkafka fails an assertion if the answer names no broker, as after a pause: see docs/explanation/design.md."""
    sources = Path(tallymark.__file__).parent.rglob("*.py")
    assert [one for one in sources if ".describe_cluster(" in one.read_text()] == []


@pytest.mark.parametrize(("mark", "verdict"), [(mark, one) for one, marks in SPARK.items() for mark in marks])
@pytest.mark.parametrize("table", [None, "orders"])
def test_every_mark_of_spark_s_table_becomes_the_error_that_it_says(
    mark: str, verdict: Verdict, table: str | None
) -> None:
    ours = explain_spark(f"Job aborted due to stage failure: {mark}: words", table)
    assert type(ours) is verdict.error
    assert ours.transient == (verdict is AWAY)


def test_what_kafka_s_java_client_tries_again_may_pass_on_spark_too() -> None:
    for name in ("NotLeaderOrFollower", "FencedLeaderEpoch", "UnknownLeaderEpoch", "LeaderNotAvailable", "Network"):
        words = f"Job aborted: org.apache.kafka.common.errors.{name}Exception: words"
        assert explain_spark(words).transient, name


def test_an_answer_without_an_offset_may_pass_and_is_never_the_end_of_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    answer: Future[Any] = Future()
    answer.set_result(SimpleNamespace(offset=OFFSET_INVALID))

    class Leaderless:
        """A client that answers as if the leader was lost during the request."""

        def __init__(self, _: object) -> None:
            pass

        def list_offsets(self, request: Mapping[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
            return dict.fromkeys(request, answer)

        def list_topics(self, *_: Any, **__: Any) -> Any:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    monkeypatch.setattr("tallymark.kafka.brokers.AdminClient", Leaderless)
    with pytest.raises(Unreachable, match=r"orders\[0\]"):
        Brokers("127.0.0.1:1").offsets_at([Partition("orders", 0)], datetime.now(UTC))
