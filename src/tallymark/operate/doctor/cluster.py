"""Gathers facts from the brokers: nodes, settings of brokers and topics, replicas and clocks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec

from tallymark.core.spans import Position
from tallymark.errors import UnknownTopic, Unreachable
from tallymark.kafka.brokers import Brokers, connect
from tallymark.kafka.cluster import Cluster
from tallymark.kafka.lag import TopicRetention
from tallymark.operate.doctor import topics as rules
from tallymark.operate.doctor.backlog import backlog
from tallymark.operate.doctor.topics import IN_SYNC, Replicas, Shell
from tallymark.operate.findings import Finding, checked, judge, settings, skew

PATIENCE = 5.0
"""Timeout of a request in seconds."""


class Examination:
    """The examination of one cluster. ``ours`` are the client settings of members and consumers."""

    def __init__(self, cluster: Cluster, ours: Mapping[str, Any]) -> None:
        self.cluster, self.ours = cluster, ours
        self.shell = Shell(cluster)
        self.brokers = Brokers(cluster)
        self.nodes: list[int] = []

    def reach(self) -> Iterator[Finding]:
        yield from rules.access(self.cluster)
        self.nodes = self.brokers.nodes(PATIENCE)
        yield rules.size(len(self.nodes))

    def node_settings(self) -> list[Finding]:
        """Return the findings about broker settings. Brokers with equal settings share their findings."""
        found: list[Finding] = []
        alike: dict[tuple[tuple[str, str | None], ...], list[int]] = {}
        known = rules.broker_rules(self.shell, self.ours)

        def note(node: int) -> list[Finding]:
            config = self._config(ConfigResource.Type.BROKER, str(node))
            alike.setdefault(tuple((name, config.get(name)) for name in known), []).append(node)
            return []

        for node in self.nodes:
            found += checked(f"broker {node}", "settings", partial(note, node))
        for values, nodes in alike.items():
            about = f"broker{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"
            found += settings(about, dict(values), known)
        return found

    def topic(self, name: str, positions: Mapping[str, Sequence[Position]]) -> list[Finding]:
        """Return the findings about one topic and the positions of groups in it."""
        about = f"topic {name}"
        try:
            partitions = self._replicas(name)
        except UnknownTopic as error:
            return [judge(about, "exists", "no", "yes", fail=str(error))]
        config: dict[str, str | None] = {}
        factor = min(len(one.assigned) for one in partitions)
        found = [rules.replication(self.shell, name, factor, len(self.nodes))]
        found += checked(about, "settings", lambda: self._topic_settings(name, factor, config))
        found.append(rules.in_sync(name, partitions, int(config.get(IN_SYNC) or 1)))
        found += checked(about, "newest record", lambda: self._newest(name, partitions, config))
        for group, held in positions.items():
            question = partial(backlog, self.brokers, group, held, TopicRetention.of(config), self.shell)
            found += checked(f"group {group}", f"unread records of {name}", question)
        return found

    def probe(self) -> Iterator[Finding]:
        """Measure the brokers' clocks: write to a temporary topic whose timestamps come from the partition leaders."""
        name = f"tallymark-doctor-{uuid.uuid4().hex[:8]}"
        made = NewTopic(name, len(self.nodes), -1, config={"message.timestamp.type": "LogAppendTime"})
        self.brokers.ask(lambda admin: admin.create_topics([made], request_timeout=PATIENCE), topic=name)
        try:
            times = [self._write(name, number) for number in range(len(self.nodes))]
            for replicas in self._replicas(name):
                yield skew(f"broker {replicas.leader}", *times[replicas.number])
        finally:
            self.brokers.ask(lambda admin: admin.delete_topics([name], request_timeout=PATIENCE), topic=name)

    def _write(self, topic: str, partition: int) -> tuple[float, float, float]:
        """Return the local time before, the broker's time, and the local time after. The first record only connects."""
        quiet = {"acks": "all", "linger.ms": 0, "message.timeout.ms": int(PATIENCE * 1000), "log_level": 0}
        producer = connect(Producer, {**self.cluster.settings(), **quiet})
        answers: list[tuple[Any, Any]] = []
        before = 0.0
        for _ in range(2):
            before = time.time()
            producer.produce(topic, b"", partition=partition, on_delivery=lambda *answer: answers.append(answer))
            producer.flush(2 * PATIENCE)
        for error, _ in answers:
            if error is not None:
                raise self.brokers.explain(error, topic)
        if len(answers) < 2:
            raise Unreachable(f"the brokers at {self.brokers.address} accept no records for topic {topic}")
        return before, answers[-1][1].timestamp()[1] / 1000, time.time()

    def _replicas(self, topic: str) -> list[Replicas]:
        names = TopicCollection([topic])
        found = self.brokers.ask(lambda admin: admin.describe_topics(names, request_timeout=PATIENCE), topic=topic)
        return [
            Replicas(partition.id, _leader(partition.leader), _ids(partition.replicas), _ids(partition.isr))
            for partition in found[topic].partitions
        ]

    def _topic_settings(self, topic: str, factor: int, config: dict[str, str | None]) -> list[Finding]:
        config |= self._config(ConfigResource.Type.TOPIC, topic)
        return settings(
            f"topic {topic}", config, rules.topic_rules(topic, factor, len(self.nodes), self.shell, self.ours)
        )

    def _config(self, kind: Any, name: str) -> dict[str, str | None]:
        resources = [ConfigResource(kind, name)]
        (entries,) = self.brokers.ask(
            lambda admin: admin.describe_configs(resources, request_timeout=PATIENCE)
        ).values()
        return {entry.name: entry.value for entry in entries.values()}

    def _newest(self, topic: str, partitions: Sequence[Replicas], config: Mapping[str, str | None]) -> list[Finding]:
        latest_of = {TopicPartition(topic, replicas.number): OffsetSpec.max_timestamp() for replicas in partitions}
        found = self.brokers.ask(lambda admin: admin.list_offsets(latest_of, request_timeout=PATIENCE), topic=topic)
        latest = max(answer.timestamp for answer in found.values())
        kind = config.get("message.timestamp.type")
        return [rules.newest(topic, kind, latest / 1000 if latest >= 0 else None, time.time())]


def _ids(nodes: Sequence[Any]) -> frozenset[int]:
    return frozenset(node.id for node in nodes)


def _leader(node: Any) -> int | None:
    return node.id if node is not None and node.id >= 0 else None
