"""Rules for brokers and topics, so that no records are lost. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tallymark.kafka.cluster import Cluster
from tallymark.kafka.fetch import FETCH
from tallymark.operate.findings import Finding, Opinion, Rule, is_local, judge

DEVELOPMENT = "for development only: a single broker holds all records"
UNCLEAN, IN_SYNC = "unclean.leader.election.enable", "min.insync.replicas"
CLIENT = {"session.timeout.ms": 45_000, "max.poll.interval.ms": 300_000, **FETCH}
"""Default settings of tallymark's clients."""
PRODUCED, TRANSACTION = 1_000_000, 60_000
"""librdkafka's defaults for message.max.bytes and transaction.timeout.ms."""
FUTURE = 5.0
"""Seconds that a record's timestamp may be ahead of the local clock."""


@dataclass(frozen=True)
class Replicas:
    """The ids of the brokers that are assigned to a partition and that are in sync."""

    number: int
    leader: int | None
    assigned: frozenset[int]
    in_sync: frozenset[int]


@dataclass(frozen=True)
class Shell:
    """Formats commands of Kafka's own tools for this cluster."""

    cluster: Cluster

    def command(self, tool: str, rest: str) -> str:
        secured = "" if self.cluster.protocol == "PLAINTEXT" else " --command-config client.properties"
        return f"{tool}.sh --bootstrap-server {self.cluster.brokers}{secured} {rest}"

    def alter(self, topic: str | None, setting: str) -> str:
        """Return the command that changes a setting of a topic, or of all brokers."""
        entity = f"--entity-type topics --entity-name {topic}" if topic else "--entity-type brokers --entity-default"
        return self.command("kafka-configs", f"--alter {entity} --add-config {setting}")


def access(cluster: Cluster) -> list[Finding]:
    """Judge whether the connection is encrypted and the brokers are verified."""
    exposed = cluster.line is None and not all(is_local(host) for host, _ in cluster.addresses)
    advice = "the connection can be read and modified by others: use a TLS listener of the brokers and tls=Tls(...)"
    findings = [judge("cluster", "protocol", cluster.protocol, "SSL or SASL_SSL", warn=advice if exposed else None)]
    if cluster.line is not None:
        off = (
            None
            if cluster.line.verify_hostname
            else "another server could impersonate a broker: leave out verify_hostname=False"
        )
        findings.append(judge("cluster", "host names verified", "no" if off else "yes", "yes", warn=off))
    return findings


def size(brokers: int) -> Finding:
    few = DEVELOPMENT if brokers == 1 else "three replicas need three brokers: add a broker"
    return judge("cluster", "brokers", brokers, ">= 3", warn=few if brokers < 3 else None)


def broker_rules(shell: Shell, ours: Mapping[str, Any]) -> dict[str, Rule]:
    """Return the rules for brokers. ``ours`` are the client settings of members and consumers."""
    session = int({**CLIENT, **ours}["session.timeout.ms"])
    rules: dict[str, Rule] = {UNCLEAN: partial(unclean, shell, None), "transaction.max.timeout.ms": transactions}
    if ours.get("group.protocol") != "consumer":
        rules["group.min.session.timeout.ms"] = lambda value: sessions(session, value, refused=session < int(value))
        rules["group.max.session.timeout.ms"] = lambda value: sessions(session, value, refused=session > int(value))
    return rules


def topic_rules(topic: str, factor: int, brokers: int, shell: Shell, ours: Mapping[str, Any], /) -> dict[str, Rule]:
    fetched = int({**CLIENT, **ours}["fetch.message.max.bytes"])
    return {
        IN_SYNC: partial(in_sync_minimum, shell, topic, factor, brokers),
        UNCLEAN: partial(unclean, shell, topic),
        "cleanup.policy": partial(cleanup, shell, topic),
        "message.timestamp.type": lambda _: Opinion("either"),
        "max.message.bytes": partial(message_size, shell, topic, fetched),
    }


def unclean(shell: Shell, topic: str | None, value: str) -> Opinion:
    off = shell.alter(topic, f"{UNCLEAN}=false")
    on = None if value == "false" else f"an out-of-sync replica may become leader, which loses records: {off}"
    # For brokers only a warning: topics can override the setting, and are checked separately.
    return Opinion("false", fail=on) if topic else Opinion("false", warn=on)


def transactions(value: str) -> Opinion:
    advice = f"set transaction.timeout.ms of transactional producers to {value}"
    return Opinion(f">= {TRANSACTION}", warn=advice if int(value) < TRANSACTION else None)


def sessions(session: int, value: str, *, refused: bool) -> Opinion:
    advice = f"the brokers refuse members: set session.timeout.ms in Kafka(settings=...) to {value}"
    return Opinion(f"to allow {session}", fail=advice if refused else None)


def polling(ours: Mapping[str, Any]) -> Finding:
    session, poll = (int({**CLIENT, **ours}[name]) for name in ("session.timeout.ms", "max.poll.interval.ms"))
    advice = f"the client refuses it: set max.poll.interval.ms in Kafka(settings=...) to {session} or more"
    return judge("client", "max.poll.interval.ms", poll, f">= {session}", fail=advice if poll < session else None)


def replication(shell: Shell, topic: str, factor: int, brokers: int) -> Finding:
    more = shell.command("kafka-reassign-partitions", "--reassignment-json-file three-replicas.json --execute")
    few = f"a failed broker can lose records: {'add a broker, then ' if brokers < 3 else ''}{more}"
    fail, warn = (few, None) if brokers > 1 else (None, DEVELOPMENT)
    return judge(f"topic {topic}", "replication factor", factor, ">= 3", *((fail, warn) if factor < 3 else ()))


def in_sync_minimum(shell: Shell, topic: str, factor: int, brokers: int, value: str) -> Opinion:
    minimum, wanted = int(value), ">= 2, and below the replication factor"
    change = shell.alter(topic, f"{IN_SYNC}={1 if brokers == 1 else 2}")
    change = change if factor > 2 or brokers == 1 else f"create 3 replicas, then: {change}"
    if minimum > factor:
        return Opinion(wanted, fail=f"writes with acks=all are refused: {change}")
    if brokers == 1:
        return Opinion(wanted, warn=DEVELOPMENT)
    if minimum < 2:
        return Opinion(wanted, fail=f"records that only one broker has are lost with it: {change}")
    return Opinion(wanted, warn=f"a single failed broker stops all writes: {change}" if minimum == factor else None)


def in_sync(topic: str, partitions: Sequence[Replicas], minimum: int) -> Finding:
    """Judge whether every partition has a leader and all replicas in sync.

    The last in-sync replica stays in the list even when its broker is down.
    """
    few = [partition for partition in partitions if len(partition.in_sync) < min(minimum, len(partition.assigned))]
    behind = [partition for partition in partitions if partition.in_sync < partition.assigned]
    for what, bad in {
        "no leader": [partition for partition in partitions if partition.leader is None],
        "too few in-sync replicas for writes": few,
        "under-replicated": behind,
    }.items():
        if bad:
            missing = {
                node
                for partition in bad
                for node in partition.assigned
                if partition.leader is None or node not in partition.in_sync
            }
            advice = f"restart brokers {', '.join(map(str, sorted(missing)))}, or replace them"
            found = f"{len(bad)} of {len(partitions)} partitions: {what}"
            fail, warn = (None, advice) if bad is behind else (advice, None)
            return judge(f"topic {topic}", "in-sync replicas", found, "all", fail, warn)
    return judge(f"topic {topic}", "in-sync replicas", f"all of {len(partitions)} partitions", "all")


def cleanup(shell: Shell, topic: str, value: str) -> Opinion:
    keep = shell.alter(topic, "cleanup.policy=delete")
    advice = f"compaction deletes older records of a key, even unread, and they count as absent; to keep all: {keep}"
    return Opinion("delete", warn=advice if "compact" in value else None)


def message_size(shell: Shell, topic: str, fetched: int, value: str) -> Opinion:
    """Judge the maximum record size. A record larger than the fetch size is still fetched, alone, which is slow."""
    wanted, larger = f"{PRODUCED} to {fetched}", shell.alter(topic, "max.message.bytes=1048588")
    if int(value) < PRODUCED:
        return Opinion(wanted, warn=f"producers send up to {PRODUCED} bytes, which the topic refuses: {larger}")
    alone = f"larger records are fetched one by one: set fetch.message.max.bytes in Kafka(settings=...) to {value}"
    return Opinion(wanted, warn=alone if int(value) > fetched else None)


def newest(topic: str, kind: str | None, time: float | None, now: float) -> Finding:
    """Judge the latest timestamp of a topic's records, in seconds; None if it has no records."""
    clocks = {"CreateTime": "producers'", "LogAppendTime": "brokers'"}.get(kind or "", "producers' or brokers'")
    ahead = time is not None and time - now > FUTURE
    found = "no records" if time is None else f"{time - now:+.1f} s from now"
    advice = (
        f"lag and retention use the {clocks} clocks, which are ahead of this machine: synchronize all clocks by NTP"
    )
    return judge(f"topic {topic}", "newest record", found, "not in the future", warn=advice if ahead else None)
