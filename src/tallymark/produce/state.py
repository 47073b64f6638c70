"""Whether a producer still accepts records, and why a record failed or waits."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource

from tallymark.errors import (
    BadInput,
    Fenced,
    NotDelivered,
    ProducerStopped,
    RecordDropped,
    RecordTooLarge,
    TallymarkError,
    UnknownPartition,
    UnknownTopic,
)
from tallymark.kafka.brokers import Brokers, missing_topic
from tallymark.kafka.cluster import Cluster
from tallymark.kafka.diagnosis import Complaints

ASK_SECONDS = 2.0
"""Timeout of the requests that find out why records wait."""
DROPPED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_UNKNOWN = (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)


class Reasons:
    """Explains the failures of one producer. ``dropping`` is the reason once records are dropped."""

    def __init__(self, cluster: Cluster, transactional_id: str | None) -> None:
        self.complaints = Complaints(cluster)
        self.dropping = ""
        self._cluster = cluster
        self._transactional_id = transactional_id

    def of_failure(self, error: Any, topic: str | None = None, partition: int = -1) -> TallymarkError:
        """Translate an error of the client to a ``TallymarkError``."""
        code, where = error.code(), f"topic {topic}: " if topic else ""
        if code in DROPPED:
            unsure = "it may be in the log if it was already in flight"
            return RecordDropped(f"{where}the record was dropped, because {self.dropping}; {unsure}")
        if code in FENCED and self._transactional_id:
            return Fenced(
                f"this producer is fenced: another producer uses transactional_id {self._transactional_id}, or its "
                "transaction took longer than transaction.timeout.ms; create a new one, and give every concurrent "
                "producer its own id"
            )
        if code in _UNKNOWN and topic:
            return UnknownTopic(f"topic {topic} does not exist on {self._cluster.brokers}; {missing_topic(topic)}")
        if code == KafkaError._UNKNOWN_PARTITION:
            return UnknownPartition(
                f"topic {topic} has no partition {partition}; send to an existing partition, or add it"
            )
        if code == KafkaError.MSG_SIZE_TOO_LARGE and topic:
            return RecordTooLarge(f"{where}the broker refused a batch that exceeds the topic's max.message.bytes")
        if code == KafkaError._MSG_TIMED_OUT:
            return NotDelivered(f"{where}the record was not delivered within message.timeout.ms")
        return self._explained(error, topic)

    def of_refusal(self, error: Exception, record: Sequence[Any], most: int) -> TallymarkError:
        """Return why the client refused to queue a record. ``most`` is its message.max.bytes."""
        topic, value, key, partition = record[:4]
        if not isinstance(error, KafkaException):
            return BadInput(f"topic {topic}: the record can't be sent: {error}")
        if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
            size = sum(len(part.encode() if isinstance(part, str) else part or b"") for part in (key, value))
            return RecordTooLarge(f"topic {topic}: a record of {size:,} bytes exceeds message.max.bytes={most}")
        return self.of_failure(error.args[0], topic, partition)

    def of_waiting(self, topics: Sequence[str]) -> str:
        """Ask the cluster why these topics do not accept records, and return the first reason found.

        Uses its own connection: on the producer's connection, a record that waits for its replicas blocks later
        requests.
        """
        brokers = Brokers(self._cluster)
        try:
            for topic in topics:
                if reason := _holdup(brokers, topic):
                    return reason
            if not topics:
                brokers.nodes(ASK_SECONDS)
        except TallymarkError as error:
            return str(error)
        return "the brokers are reachable, but have not acknowledged the records; check their logs"

    def _explained(self, error: Any, topic: str | None) -> TallymarkError:
        try:
            return self.complaints.explain(error, topic)
        except TallymarkError as refused:
            return refused


def _holdup(brokers: Brokers, topic: str) -> str:
    """Return what is wrong with the partition that has the fewest live replicas, or an empty string."""
    names = TopicCollection([topic])
    answer = brokers.ask(lambda admin: admin.describe_topics(names, request_timeout=ASK_SECONDS), topic)
    partitions = answer[topic].partitions
    nodes = {node.id: node for partition in partitions for node in partition.isr}
    up = {number for number, node in nodes.items() if _listens(node)}
    worst = min(partitions, key=lambda partition: sum(node.id in up for node in partition.isr))
    where, least = f"topic {topic} partition {worst.id}", _min_insync(brokers, topic)
    alive, needed = sum(node.id in up for node in worst.isr), len(worst.replicas) if least is None else least
    if alive < needed:
        limit = "" if least is None else f", and min.insync.replicas is {least}"
        return f"{where} has {alive} of {len(worst.replicas)} replicas in sync{limit}; restart the other brokers"
    return f"{where} has no leader; restart its brokers" if worst.leader is None or worst.leader.id < 0 else ""


def _listens(node: Any) -> bool:
    """Whether a broker accepts connections. Without a quorum of controllers the in-sync replicas are not updated."""
    with suppress(OSError), socket.create_connection((node.host, node.port), ASK_SECONDS):
        return True
    return False


def _min_insync(brokers: Brokers, topic: str) -> int | None:
    """Return min.insync.replicas, or None if this client is not authorized or gets no answer."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    with suppress(TallymarkError):
        answer = brokers.ask(lambda admin: admin.describe_configs([resource], request_timeout=ASK_SECONDS), topic)
        return int(answer[resource]["min.insync.replicas"].value)
    return None


class ProducerState:
    """Whether one producer accepts records. ``stops``: the first record that fails permanently stops it.

    ``halted``: it accepts no records now, because it is ``closed``, stopped by its ``failure``, or outside of a
    transaction.
    """

    def __init__(self, reasons: Reasons, *, stops: bool, halted: bool) -> None:
        self._reasons, self._stops = reasons, stops
        self.halted = halted
        self.closed = ""
        self.failure: TallymarkError | None = None
        self.fatal: TallymarkError | None = None
        self.first: TallymarkError | None = None

    def refusal(self) -> TallymarkError:
        if self.closed:
            return ProducerStopped(self.closed)
        if isinstance(self.failure, Fenced):
            return Fenced(str(self.failure))
        if self.failure is None:
            return BadInput("a producer with transactional_id= can send only inside `with producer.transaction():`")
        return ProducerStopped(
            f"this producer stopped at its first failure, to keep the order: {self.failure}; create a new one"
        )

    def close(self, why: str) -> None:
        self.halted, self.closed = True, why
        if self.failure is None:
            self._reasons.dropping = "the producer was closed"

    def stop(self, error: TallymarkError) -> None:
        if self.failure is None:
            self.failure = error
            self.halted = True
            self._reasons.dropping = f"it was queued after a failed record: {error}"

    def on_failure(self, error: TallymarkError) -> None:
        """Handle a failed record. ``first`` keeps the first failure since the transaction began."""
        if not isinstance(error, RecordDropped):
            self.first = self.first or error
        # No record can overtake another in a partition that does not exist.
        if (self._stops and not isinstance(error, UnknownPartition)) or self.fatal:
            self.stop(error)

    def on_fatal(self, error: Any, *, last: bool) -> None:
        """Handle a fatal error of the client. Unless ``last``, reports of the records that caused it follow."""
        self.fatal = self._reasons.of_failure(error)
        self._reasons.dropping = str(self.fatal)
        if last or isinstance(self.fatal, Fenced):
            self.stop(self.fatal)
