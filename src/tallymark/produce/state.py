"""Why a record failed, and what records wait for, in a sentence that says what to do."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource

from tallymark.brokers import Brokers, missing_topic
from tallymark.cluster import Cluster
from tallymark.complaints import Complaints
from tallymark.errors import (
    BadInput,
    Fenced,
    NotDelivered,
    RecordDropped,
    RecordTooLarge,
    TallymarkError,
    UnknownPartition,
    UnknownTopic,
)

ASK_SECONDS = 2.0
"""How long the cluster may take to answer why records wait."""
DROPPED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_UNKNOWN = (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)


class Reasons:
    """Of one producer. ``dropping`` says why records are dropped, from when they are."""

    def __init__(self, cluster: Cluster, transactional_id: str | None) -> None:
        self.complaints = Complaints(cluster)
        self.dropping = ""
        self._cluster = cluster
        self._transactional_id = transactional_id

    def of_failure(self, error: Any, topic: str | None = None, partition: int = -1) -> TallymarkError:
        """An error of the client as one of ours."""
        code, where = error.code(), f"topic {topic}: " if topic else ""
        if code in DROPPED:
            unsure = "it may be in the log, if it was under way before"
            return RecordDropped(f"{where}the record was dropped, because {self.dropping}; {unsure}")
        if code in FENCED and self._transactional_id:
            return Fenced(
                f"another producer came with transactional_id {self._transactional_id}, or its transaction took longer "
                "than transaction.timeout.ms, and this one is shut out: close it, make a new one, and give every "
                "producer that runs at the same time an id of its own"
            )
        if code in _UNKNOWN and topic:
            return UnknownTopic(f"topic {topic} does not exist on {self._cluster.brokers}; {missing_topic(topic)}")
        if code == KafkaError._UNKNOWN_PARTITION:
            return UnknownPartition(f"topic {topic} has no partition {partition}; send to one that it has, or add it")
        if code == KafkaError.MSG_SIZE_TOO_LARGE and topic:
            return RecordTooLarge(
                f"{where}the broker refused a batch that is larger than the topic's max.message.bytes"
            )
        if code == KafkaError._MSG_TIMED_OUT:
            return NotDelivered(f"{where}the record was given up after message.timeout.ms")
        return self._explained(error, topic)

    def of_refusal(self, error: Exception, record: Sequence[Any], most: int) -> TallymarkError:
        """Why the client did not even take a record; ``most`` is its message.max.bytes."""
        topic, value, key, partition = record[:4]
        if not isinstance(error, KafkaException):
            return BadInput(f"topic {topic}: the record can't be sent: {error}")
        if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
            size = sum(len(part.encode() if isinstance(part, str) else part or b"") for part in (key, value))
            return RecordTooLarge(f"topic {topic}: a record of {size:,} bytes is above message.max.bytes={most}")
        return self.of_failure(error.args[0], topic, partition)

    def of_waiting(self, topics: Sequence[str]) -> str:
        """Asks the cluster what keeps these topics from taking records, until something is found.

        On a connection of its own: behind a record that waits for its replicas, no question is answered.
        """
        brokers = Brokers(self._cluster)
        try:
            for topic in topics:
                if found := _holdup(brokers, topic):
                    return found
            if not topics:
                brokers.nodes(ASK_SECONDS)
        except TallymarkError as error:
            return str(error)
        return "the brokers answer, but have not acknowledged yet; look at their logs"

    def _explained(self, error: Any, topic: str | None) -> TallymarkError:
        try:
            return self.complaints.explain(error, topic)
        except TallymarkError as refused:
            return refused


def _holdup(brokers: Brokers, topic: str) -> str:
    """What is wrong with the worst partition of a topic."""
    asked = TopicCollection([topic])
    answer = brokers.ask(lambda admin: admin.describe_topics(asked, request_timeout=ASK_SECONDS), topic)
    partitions = answer[topic].partitions
    nodes = {node.id: node for one in partitions for node in one.isr}
    up = {number for number, node in nodes.items() if _listens(node)}
    worst = min(partitions, key=lambda one: sum(node.id in up for node in one.isr))
    where, least = f"topic {topic} partition {worst.id}", _min_insync(brokers, topic)
    alive, wanted = sum(node.id in up for node in worst.isr), len(worst.replicas) if least is None else least
    if alive < wanted:
        limit = "" if least is None else f", and min.insync.replicas is {least}"
        return f"{where} has {alive} of {len(worst.replicas)} replicas in sync{limit}: bring the other brokers back"
    return f"{where} has no leader: bring its brokers back" if worst.leader is None or worst.leader.id < 0 else ""


def _listens(node: Any) -> bool:
    """Whether a broker is there. Without most of its controllers a cluster can't say that a replica is gone."""
    with suppress(OSError), socket.create_connection((node.host, node.port), ASK_SECONDS):
        return True
    return False


def _min_insync(brokers: Brokers, topic: str) -> int | None:
    """None where this client may not ask, or gets no answer."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    with suppress(TallymarkError):
        answer = brokers.ask(lambda admin: admin.describe_configs([resource], request_timeout=ASK_SECONDS), topic)
        return int(answer[resource]["min.insync.replicas"].value)
    return None
