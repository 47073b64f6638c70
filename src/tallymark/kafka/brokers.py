"""Queries to the brokers: topics, partitions, log offsets and members of groups."""

from __future__ import annotations

import difflib
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupState,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tallymark.core.records import RawRecord
from tallymark.core.retry import retrying
from tallymark.core.spans import Log, Partition
from tallymark.core.topics import is_pattern
from tallymark.errors import BadInput, TallymarkError, UnknownTopic, Unreachable
from tallymark.kafka.cluster import Cluster
from tallymark.kafka.diagnosis import MOVED, Complaints, judged
from tallymark.kafka.probe import Probe

K = TypeVar("K")
T = TypeVar("T")

TIMEOUT = 10.0
KNOWN_WITHIN = 0.5
"""Seconds that brokers may take until they know a new topic."""
LOOK_SECONDS = 0.5
"""How often a waiting call checks for errors of the client."""
OWN = {
    "log_level": 0,
    "socket.timeout.ms": 10_000,
    # Otherwise the client would send requests to a former controller forever, even if that broker is gone.
    "topic.metadata.refresh.interval.ms": 5_000,
    "allow.auto.create.topics": False,
}
ANY_TOPIC = "__consumer_offsets"  # a query for cluster metadata alone has to name a topic, which need not exist
_UNKNOWN = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION}


@dataclass(frozen=True)
class Topic:
    """A topic, with its id and partitions."""

    name: str
    id: str
    partitions: tuple[Partition, ...]

    def only(self, partitions: Collection[Partition]) -> Topic:
        """Return the topic with only these partitions."""
        return Topic(self.name, self.id, tuple(partition for partition in self.partitions if partition in partitions))


@dataclass(frozen=True)
class GroupMember:
    """A member of a Kafka group, as the brokers see it."""

    id: str
    client: str
    host: str
    partitions: tuple[Partition, ...]
    instance: str | None = None


class Brokers:
    """Queries the brokers of a cluster, without joining a group or committing. ``stop`` aborts a waiting call.

    If ``cluster`` is only an address, security settings come from the environment.
    """

    def __init__(self, cluster: Cluster | str, stop: threading.Event | None = None) -> None:
        self.cluster = Cluster(cluster) if isinstance(cluster, str) else cluster
        self.stop = stop or threading.Event()
        self.address = self.cluster.brokers
        self.complaints = Complaints(self.cluster)
        # librdkafka logs to stderr by default (``log_level`` 0 in ``OWN``); relevant problems are returned as errors.
        own = {**OWN, "error_cb": self.complaints.on_error}
        self._admin = connect(AdminClient, {**self.cluster.settings(), **own})
        self._cluster_id: str | None = None

    def ask(self, question: Callable[[AdminClient], Mapping[K, Future[Any]]], topic: str | None = None) -> dict[K, Any]:
        """Send any other request of the admin client, and return its results."""
        return {key: self._wait(future, topic) for key, future in question(self._admin).items()}

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic with the default replication factor of the cluster."""
        self.ask(lambda admin: admin.create_topics([NewTopic(topic, partitions, -1)], request_timeout=TIMEOUT), topic)

    def resolve(self, topics: Sequence[str]) -> list[str]:
        """Return the names, and the existing topics that match a pattern. Internal topics never match."""
        patterns = [re.compile(topic) for topic in topics if is_pattern(topic)]
        existing = self._existing_topics() if patterns else []
        matching = {name for name in existing if any(pattern.match(name) for pattern in patterns)}
        return sorted(matching | {topic for topic in topics if not is_pattern(topic)})

    def find(self, topics: Sequence[str]) -> dict[str, Topic]:
        """Return the topics of these names and patterns. Retries, because brokers may not know a new topic yet."""
        deadline = time.monotonic() + KNOWN_WITHIN
        while True:
            try:
                return self.topics(self.resolve(topics))
            except (UnknownTopic, Unreachable):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def members(self, group: str) -> list[GroupMember]:
        """Return the current members of a group. A group that does not exist has no members."""
        description = self._describe_group(group)
        return [
            GroupMember(
                member.member_id,
                member.client_id,
                member.host,
                tuple(sorted(Partition(at.topic, at.partition) for at in member.assignment.topic_partitions)),
                member.group_instance_id,
            )
            for member in (description.members if description else ())
        ]

    def has_group(self, group: str) -> bool:
        """Return whether the brokers know a group, with or without members."""
        return self._describe_group(group) is not None

    def _describe_group(self, group: str) -> Any:
        """Return the description of a group; None if it does not exist, which older brokers call a dead group."""
        try:
            found = self._wait(self._admin.describe_consumer_groups([group], request_timeout=TIMEOUT)[group])
        except _UnknownGroup:
            return None
        return None if found.state == ConsumerGroupState.DEAD else found

    def cluster_id(self, topic: str = ANY_TOPIC) -> str:
        """Return the id of the cluster. With a topic that the client may describe, brokers log no denied request."""
        if self._cluster_id is None:
            self._cluster_id = str(self._metadata(topic).cluster_id)
        return self._cluster_id

    def nodes(self, seconds: float | None = None) -> list[int]:
        """Return the ids of the available brokers."""
        return sorted(self._metadata(ANY_TOPIC, seconds).brokers)

    def topics(self, names: Sequence[str], *, existing_only: bool = False) -> dict[str, Topic]:
        """Return the named topics. Raises if a topic does not exist, unless ``existing_only``."""
        topics = {}
        for name, answer in self._ask_topics(names).items():
            with suppress(*([UnknownTopic] if existing_only else [])):
                topics[name] = answer()
        return topics

    def _ask_topics(self, names: Sequence[str]) -> dict[str, Callable[[], Topic]]:
        """Send the request now; each returned function waits for the result of its topic."""
        self.cluster_id(*names[:1])
        futures = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=TIMEOUT) if names else {}
        return {name: partial(self._topic, name, future) for name, future in futures.items()}

    def ask_ids(self, names: Sequence[str]) -> Callable[[], dict[str, str]]:
        """Request the ids of the existing topics now; the returned function waits for the result."""
        answers = self._ask_topics(names)

        def answer() -> dict[str, str]:
            ids = {}
            for name, topic in answers.items():
                with suppress(UnknownTopic):
                    ids[name] = topic().id
            return ids

        return answer

    def _topic(self, name: str, future: Future[Any]) -> Topic:
        description = self._wait(future, topic=name)
        partitions = tuple(Partition(name, info.id) for info in description.partitions)
        return Topic(name, str(description.topic_id), partitions)

    def logs(self, topics: Mapping[str, Topic]) -> dict[Partition, Log]:
        """Return the current log of each partition. Retries, because a new partition may have no leader yet."""
        return retrying(lambda: self._logs(topics), self.stop, TIMEOUT)

    def _logs(self, topics: Mapping[str, Topic]) -> dict[Partition, Log]:
        partitions = [partition for topic in topics.values() for partition in topic.partitions]
        starts = self._ask(partitions, OffsetSpec.earliest())
        stops = self._ask(partitions, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
        ends = self._ask(partitions, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        cluster = self.cluster_id()
        return {
            partition: Log(
                partition,
                topics[partition.topic].id,
                cluster,
                start=self._offset(starts, partition),
                stop=self._offset(stops, partition),
                end=self._offset(ends, partition),
                leader_epoch=self._answer(stops, partition).leader_epoch,
            )
            for partition in partitions
        }

    def offsets_at(self, partitions: Iterable[Partition], moment: datetime) -> dict[Partition, int | None]:
        """Return the first offset with this timestamp or a later one for each partition; None if there is none."""
        listed = list(partitions)
        answers = self._ask(listed, OffsetSpec.for_timestamp(int(moment.timestamp() * 1000)))
        offsets = {partition: self._offset(answers, partition) for partition in listed}
        return {partition: None if offset < 0 else offset for partition, offset in offsets.items()}

    def records(self, wanted: Mapping[Partition, Collection[int]]) -> dict[tuple[Partition, int], RawRecord]:
        """Return the records at these offsets. Records that no longer exist are left out."""
        return Probe(self.cluster, self.explain).records(wanted)

    def first_times(self, offsets: Mapping[Partition, int], isolation: str) -> dict[Partition, datetime | None]:
        """Return the timestamp of the first record at or after each offset; a partition without one is left out."""
        return Probe(self.cluster, self.explain).first_times(offsets, isolation) if offsets else {}

    def truncated(self, positions: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
        """Return the positions (offset and leader epoch) whose logs were truncated before them, and at which offset."""
        return Probe(self.cluster, self.explain).truncated(positions)

    def _ask(
        self, partitions: Iterable[Partition], spec: Any, isolation: Any = IsolationLevel.READ_COMMITTED
    ) -> dict[tuple[str, int], Future[Any]]:
        request = {TopicPartition(partition.topic, partition.number): spec for partition in partitions}
        if not request:
            return {}
        answers = self._admin.list_offsets(request, isolation_level=isolation, request_timeout=TIMEOUT)
        return {(at.topic, at.partition): future for at, future in answers.items()}

    def _offset(self, answers: Mapping[tuple[str, int], Future[Any]], partition: Partition) -> int:
        return int(self._answer(answers, partition).offset)

    def _answer(self, answers: Mapping[tuple[str, int], Future[Any]], partition: Partition) -> Any:
        answer = self._wait(answers[partition.topic, partition.number], topic=partition.topic)
        if answer.offset == OFFSET_INVALID:
            # The leader was lost during the request, and the client reports no error.
            self._refresh(partition.topic)
            raise Unreachable(f"the brokers at {self.address} did not return the offsets of {partition}: try again")
        return answer

    def _wait(self, future: Future[Any], topic: str | None = None) -> Any:
        deadline = time.monotonic() + TIMEOUT + 5
        while True:
            try:
                answer = future.result(LOOK_SECONDS)
            except FutureTimeout:
                # Refresh the metadata, so that the client does not wait for a broker that is gone.
                self._refresh(None)
                self._check_waiting(deadline)
            except KafkaException as error:
                self._admin.poll(0)
                if judged(error.args[0]) is MOVED:
                    self._refresh(topic)
                raise self.explain(error.args[0], topic) from error
            else:
                self.complaints.clear()
                return answer

    def _check_waiting(self, deadline: float) -> None:
        """Raise if waiting does not help: an error was reported, the run stops, or the deadline has passed."""
        self._admin.poll(0)
        self.complaints.check()
        if self.stop.is_set():
            raise Unreachable(f"the brokers at {self.address} had not answered when the run was stopped")
        if time.monotonic() > deadline:
            raise Unreachable(f"the brokers at {self.address} do not answer; check address and port")

    def _refresh(self, topic: str | None) -> None:
        """Refresh the client's metadata, at least of this topic."""
        with suppress(KafkaException):
            self._admin.list_topics(topic, timeout=LOOK_SECONDS)

    def _metadata(self, topic: str | None, seconds: float | None = None) -> Any:
        """Return metadata of the brokers and of all topics or one.

        Does not use ``describe_cluster``, which may abort the process: see docs/explanation/design.md.
        """
        deadline, patience = time.monotonic() + (seconds or TIMEOUT), LOOK_SECONDS
        while True:
            try:
                metadata = self._admin.list_topics(topic, timeout=patience)
            except KafkaException as error:
                self._admin.poll(0)
                passes = judged(error.args[0]).error.transient
                if not passes or time.monotonic() + patience > deadline:
                    raise self.explain(error.args[0], topic) from error
                self._check_waiting(deadline)
                # A large cluster may need more time to answer.
                patience *= 2
            else:
                self.complaints.clear()
                return metadata

    def explain(self, error: Any, topic: str | None) -> TallymarkError:
        """Convert an error of the client to a ``TallymarkError``."""
        if error.code() == KafkaError.GROUP_ID_NOT_FOUND:
            return _UnknownGroup(error.str())
        if error.code() in _UNKNOWN and topic is not None:
            return self._unknown(topic)
        return self.complaints.explain(error, topic)

    def _unknown(self, topic: str) -> TallymarkError:
        """Return the error for an unknown topic. A broker that has just started may not know an existing topic yet."""
        existing = self._existing_topics()
        if topic in existing:
            return Unreachable(f"a broker at {self.address} does not know topic {topic} yet: try again")
        close = difflib.get_close_matches(topic, existing, n=3)
        way = f"did you mean {' or '.join(close)}?" if close else missing_topic(topic)
        return UnknownTopic(f"topic {topic} does not exist on {self.address}; {way}")

    def _existing_topics(self) -> list[str]:
        return [name for name in self._metadata(None).topics if not name.startswith("__")]


def connect(make: Callable[[dict[str, Any]], T], settings: dict[str, Any]) -> T:
    """Create a librdkafka client. Raises ``BadInput`` with one sentence about a refused setting."""
    try:
        return make(settings)
    except (KafkaException, ValueError, TypeError) as error:
        words = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise BadInput(f"the Kafka client refused its settings: {words}; correct them") from None


def missing_topic(topic: str) -> str:
    """Return the hint for a missing topic."""
    return f"correct the name, or create it: tallymark produce {topic} --create 4"


class _UnknownGroup(TallymarkError):
    """The group does not exist."""
