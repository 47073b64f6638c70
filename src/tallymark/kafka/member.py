"""A Kafka group member that never fetches: it handles assignment, heartbeats, rebalances, and mirrors positions.

Mirrored positions are committed by the client of the member, so that the brokers refuse them from a member that was
replaced. Only the latest position of a partition matters. Commits are asynchronous: while a commit is in flight, newer
positions are collected.

The member is polled from its own thread, so that it is not removed from the group while a batch takes long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tallymark.core.durations import parse_duration
from tallymark.core.spans import Partition
from tallymark.errors import AccessDenied, BadInput, Fenced, TallymarkError, Unreachable
from tallymark.kafka.brokers import Brokers, connect
from tallymark.kafka.diagnosis import HANDOVER, SILENT, UNAUTHORIZED, judged
from tallymark.kafka.membership import Assignment, Group
from tallymark.kafka.source import Kafka

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""Delay before a failed commit is sent again."""


class Mirror:
    """Positions to commit to the Kafka group. The working thread calls ``note``, the member's thread the rest."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._waiting: dict[Partition, int] = {}
        self._under_way = 0
        self._not_before = 0.0
        self._complained = False

    def note(self, positions: Mapping[Partition, int]) -> None:
        with self._lock:
            self._waiting.update(positions)

    def serve(self, client: Consumer, ours: Collection[Partition]) -> None:
        """Send waiting positions unless a commit is in flight. Only ``ours``: other members commit the rest."""
        with self._lock:
            if self._under_way or not self._waiting or time.monotonic() < self._not_before:
                return
        self.send(client, ours)

    def send(self, client: Consumer, ours: Collection[Partition]) -> None:
        """Send the waiting positions of these partitions now, and discard the others."""
        with self._lock:
            going, self._waiting = self._waiting, {}
            chosen = {partition: offset for partition, offset in going.items() if partition in ours}
            offsets = [
                TopicPartition(partition.topic, partition.number, offset) for partition, offset in chosen.items()
            ]
            self._under_way += bool(offsets)
        if offsets:
            try:
                client.commit(offsets=offsets, asynchronous=True)
            except KafkaException as error:
                self.answered(error.args[0], offsets)

    def forget(self, partitions: Iterable[Partition]) -> None:
        with self._lock:
            for partition in partitions:
                self._waiting.pop(partition, None)

    def answered(self, error: Any, offsets: Iterable[TopicPartition]) -> None:
        """Handle the response to a commit. Failed positions are sent again unless a newer position is waiting."""
        listed = list(offsets)
        error = error or next((answer.error for answer in listed if answer.error), None)
        with self._lock:
            self._under_way = max(0, self._under_way - 1)
            if error is None:
                self._complained = False
                return
            failed = {Partition(answer.topic, answer.partition): answer.offset for answer in listed}
            self._waiting = {**failed, **self._waiting}
            self._not_before = time.monotonic() + AGAIN_SECONDS
            complained, self._complained = self._complained, judged(error) is not HANDOVER or self._complained
        if not complained and self._complained:
            log.warning("positions not mirrored to Kafka group=%s error=%s", self._group, error.str())


POLL_SECONDS = 0.1
LEAVE_SECONDS = 10.0
LOOK_SECONDS = 0.5
"""How often a fenced member checks whether its instance id is free."""
SETTINGS = {
    "enable.auto.commit": False,
    "auto.offset.reset": "latest",
    # New topics and partitions are detected by metadata refreshes; the default of five minutes is too long.
    "topic.metadata.refresh.interval.ms": 5_000,
    "topic.blacklist": "^__.*",
    "log_level": 0,
}


class Member:
    chosen: frozenset[Partition] | None = None

    def __init__(self, name: str, source: Kafka, group: Group, client_id: str, *, mirror: bool = False) -> None:
        self.name = name
        self._mirror = Mirror(name) if mirror else None
        self._source = source
        drain = parse_duration(group.drain, "Group: drain").total_seconds()
        self._drain = min(drain, _seconds(source, "max.poll.interval.ms", 300_000) * 0.8)
        beat = 5.0 if group.protocol == "consumer" else _seconds(source, "heartbeat.interval.ms", 3000)
        self.grace: float | None = 2 * beat + 1
        self._cooperative = group.protocol == "consumer" or group.strategy == "cooperative-sticky"
        self._settings = {
            **SETTINGS,
            "client.id": client_id,
            **source.settings,
            **group.settings(),
            **source.cluster.settings(),
            "group.id": name,
            # The member never fetches, so it needs no queue.
            "queued.max.messages.kbytes": 1024,
            "error_cb": self._on_error,
            **({"on_commit": self._mirror.answered} if self._mirror else {}),
        }
        self._now = Assignment()
        self._serial = 0
        self._error: TallymarkError | None = None
        self._instance, self._session = group.instance, _seconds(source, "session.timeout.ms", 45_000)
        self._fenced: Any = None
        """The error of a client that was fenced by another client with the same instance id."""
        self._change = threading.Condition()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def join(self) -> None:
        client = self._subscribed()
        self._thread = threading.Thread(target=self._serve, args=(client,), name="tallymark-member", daemon=True)
        self._thread.start()

    def _subscribed(self) -> Consumer:
        client = connect(Consumer, self._settings)
        client.subscribe(
            list(self._source.topic_names), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        return client

    def assignment(self) -> Assignment:
        with self._change:
            if self._error is not None:
                raise self._error
            return self._now

    def acknowledge(self, partitions: Iterable[Partition]) -> None:
        with self._change:
            # Released partitions are no longer assigned, although the group is notified slightly later.
            gone = self._now.leaving & set(partitions)
            ours = {partition: serial for partition, serial in self._now.ours.items() if partition not in gone}
            self._now = Assignment(ours, self._now.leaving - gone, self._now.announced_at)
            self._change.notify_all()

    def mirror(self, positions: Mapping[Partition, int]) -> None:
        if self._mirror:
            self._mirror.note(positions)

    def leave(self) -> None:
        self._closing.set()
        with self._change:
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(LEAVE_SECONDS)

    def _serve(self, client: Consumer) -> None:
        """Poll until the member leaves. Polling runs the callbacks below and keeps the member in the group."""
        try:
            while not self._closing.is_set():
                message = client.poll(POLL_SECONDS)
                if message is not None and message.error() is not None:
                    self._on_error(message.error())
                if self._fenced is not None:
                    client = self._rejoined(client, self._fenced)
                if self._mirror:
                    self._mirror.serve(client, self._now.ours)
        except TallymarkError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - raised again by assignment()
            self._fail(TallymarkError(f"group {self.name}: the member failed: {error}"))
        finally:
            client.close()

    def _assigned(self, client: Consumer, given: list[TopicPartition]) -> None:
        client.incremental_assign(given) if self._cooperative else client.assign(given)
        client.pause(given)
        partitions = _partitions(given)
        with self._change:
            self._serial += 1
            self._now = Assignment(
                {**self._now.ours, **dict.fromkeys(partitions, self._serial)}, self._now.leaving, time.monotonic()
            )
            self._change.notify_all()
        log.info("rebalance=assigned group=%s partitions=%s", self.name, _names(partitions))

    def _revoked(self, client: Consumer, taken: list[TopicPartition]) -> None:
        """Delay the rebalance until the batch in flight is done, at most for ``drain`` seconds."""
        partitions = _partitions(taken)
        began = time.monotonic()
        with self._change:
            self._now = Assignment(self._now.ours, self._now.leaving | partitions, began)
            self._change.notify_all()
            drained = self._change.wait_for(
                lambda: not self._now.leaving & partitions or self._closing.is_set() or self._fenced is not None,
                self._drain,
            )
        if self._mirror:
            # Includes the partitions that are kept, because ``send`` discards all others. This also runs when the
            # member leaves; closing the client waits for the commit.
            self._mirror.send(client, partitions | self._now.ours.keys())
        self._gone(client, taken)
        took, result = time.monotonic() - began, "yes" if drained else "timeout"
        log.info(
            "rebalance=revoked group=%s partitions=%s seconds=%.2f drained=%s",
            self.name,
            _names(partitions),
            took,
            result,
        )

    def _lost(self, client: Consumer, taken: list[TopicPartition]) -> None:
        self._gone(client, taken)
        log.warning("rebalance=lost group=%s partitions=%s", self.name, _names(_partitions(taken)))

    def _gone(self, client: Consumer, taken: list[TopicPartition]) -> None:
        partitions = _partitions(taken)
        with self._change:
            ours = {partition: serial for partition, serial in self._now.ours.items() if partition not in partitions}
            self._now = Assignment(ours, self._now.leaving - partitions, time.monotonic())
            self._change.notify_all()
        if self._mirror:
            self._mirror.forget(partitions)
        client.incremental_unassign(taken) if self._cooperative else client.unassign()

    def _on_error(self, error: Any) -> None:
        if judged(error) is UNAUTHORIZED:
            self._fail(AccessDenied(f"group {self.name}: the brokers denied access: {error.str()}; check the ACLs"))
        elif error.code() == KafkaError.UNSUPPORTED_VERSION:
            self._fail(
                BadInput(f"group {self.name}: the brokers do not support Group(protocol='consumer'): {error.str()}")
            )
        elif error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            words = "its members use another strategy or protocol; all members need the same membership=Group(...)"
            self._fail(BadInput(f"group {self.name}: {words}"))
        elif error.fatal() or error.code() == KafkaError._FATAL:
            if self._instance:
                self._fenced = error
            else:
                self._fail(TallymarkError(f"group {self.name}: the member failed: {error.str()}; restart it"))
        elif judged(error) is not SILENT:
            log.warning("member error group=%s error=%s", self.name, error.str())

    def _rejoined(self, client: Consumer, error: Any) -> Consumer:
        """Join again after a member with the same instance id has joined, unless it belongs to another process.

        It may belong to this client: if brokers were unresponsive, they create a member for a join request that the
        client has timed out and sent again. Such a member sends no heartbeats and expires with its session. A member of
        another process stays.
        """
        log.warning("member fenced group=%s instance=%s error=%s", self.name, self._instance, error.str())
        with self._change:
            self._now = Assignment(announced_at=time.monotonic())
            self._change.notify_all()
        if not self._is_given_up():
            raise Fenced(
                f"group {self.name}: fenced by another member with instance={self._instance!r}: give every member that "
                "runs at the same time its own instance"
            )
        if self._closing.is_set():
            return client
        client.close()
        self._fenced = None
        log.info("member rejoins group=%s instance=%s", self.name, self._instance)
        return self._subscribed()

    def _is_given_up(self) -> bool:
        """Whether the instance id becomes free within a session timeout, or this member is closing before that."""
        brokers, deadline = Brokers(self._source.cluster, self._closing), time.monotonic() + 1.5 * self._session + 2
        while not self._closing.wait(LOOK_SECONDS) and time.monotonic() < deadline:
            with suppress(Unreachable):
                if all(member.instance != self._instance for member in brokers.members(self.name)):
                    return True
        return self._closing.is_set()

    def _fail(self, error: TallymarkError) -> None:
        with self._change:
            self._error = self._error or error
            self._change.notify_all()


def _seconds(source: Kafka, name: str, default: int) -> float:
    try:
        return float(source.settings.get(name, default)) / 1000
    except (TypeError, ValueError):
        raise BadInput(f"Kafka(settings=...): {name} must be a number of milliseconds") from None


def _partitions(listed: Iterable[TopicPartition]) -> frozenset[Partition]:
    return frozenset(Partition(at.topic, at.partition) for at in listed)


def _names(partitions: Iterable[Partition]) -> str:
    return ",".join(map(str, sorted(partitions))) or "none"
