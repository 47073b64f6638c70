"""Rules for brokers and topics, so that no records are lost. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tallymark.kafka.cluster import Cluster
from tallymark.kafka.fetch import FETCH
from tallymark.operate.findings import Finding, Opinion, Rule, is_local, judge

DEVELOPMENT = "fine for development: one broker holds all records alone"
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
    advice = "others can read and change what is sent: take a TLS listener of the brokers, and tls=Tls(...)"
    found = [judge("cluster", "protocol", cluster.protocol, "SSL or SASL_SSL", warn=advice if exposed else None)]
    if cluster.line is not None:
        off = None if cluster.line.verify_hostname else "others can pose as a broker: leave out verify_hostname=False"
        found.append(judge("cluster", "host names verified", "no" if off else "yes", "yes", warn=off))
    return found


def size(brokers: int) -> Finding:
    few = DEVELOPMENT if brokers == 1 else "three copies of a record need three brokers: add one"
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
    on = None if value == "false" else f"a broker that lacks records may become leader, and they are lost: {off}"
    # For brokers only a warning: topics can override the setting, and are checked separately.
    return Opinion("false", fail=on) if topic else Opinion("false", warn=on)


def transactions(value: str) -> Opinion:
    advice = f"give transactional producers a transaction.timeout.ms of {value}"
    return Opinion(f">= {TRANSACTION}", warn=advice if int(value) < TRANSACTION else None)


def sessions(session: int, value: str, *, refused: bool) -> Opinion:
    advice = f"members are refused: give Kafka(settings=...) a session.timeout.ms of {value}"
    return Opinion(f"to allow {session}", fail=advice if refused else None)


def polling(ours: Mapping[str, Any]) -> Finding:
    session, poll = (int({**CLIENT, **ours}[name]) for name in ("session.timeout.ms", "max.poll.interval.ms"))
    advice = f"the client refuses it: give Kafka(settings=...) a max.poll.interval.ms of {session} or more"
    return judge("client", "max.poll.interval.ms", poll, f">= {session}", fail=advice if poll < session else None)


def replication(shell: Shell, topic: str, factor: int, brokers: int) -> Finding:
    more = shell.command("kafka-reassign-partitions", "--reassignment-json-file three-replicas.json --execute")
    few = f"a broker that is lost takes records with it: {'add a broker, then ' if brokers < 3 else ''}{more}"
    fail, warn = (few, None) if brokers > 1 else (None, DEVELOPMENT)
    return judge(f"topic {topic}", "replication factor", factor, ">= 3", *((fail, warn) if factor < 3 else ()))


def in_sync_minimum(shell: Shell, topic: str, factor: int, brokers: int, value: str) -> Opinion:
    minimum, wanted = int(value), ">= 2, and below the replication factor"
    change = shell.alter(topic, f"{IN_SYNC}={1 if brokers == 1 else 2}")
    change = change if factor > 2 or brokers == 1 else f"have 3 replicas, and then: {change}"
    if minimum > factor:
        return Opinion(wanted, fail=f"nothing can be written with acks=all: {change}")
    if brokers == 1:
        return Opinion(wanted, warn=DEVELOPMENT)
    if minimum < 2:
        return Opinion(wanted, fail=f"what one broker alone has written is lost with it: {change}")
    return Opinion(wanted, warn=f"any broker that is down stops all writes: {change}" if minimum == factor else None)


def in_sync(topic: str, partitions: Sequence[Replicas], minimum: int) -> Finding:
    """Judge whether every partition has a leader and all replicas in sync.

    The last in-sync replica stays in the list even when its broker is down.
    """
    few = [one for one in partitions if len(one.in_sync) < min(minimum, len(one.assigned))]
    behind = [one for one in partitions if one.in_sync < one.assigned]
    for what, bad in {
        "no leader": [one for one in partitions if one.leader is None],
        "too few in sync to be written to": few,
        "under-replicated": behind,
    }.items():
        if bad:
            missing = {node for one in bad for node in one.assigned if one.leader is None or node not in one.in_sync}
            advice = f"bring back brokers {', '.join(map(str, sorted(missing)))}, or replace them"
            found = f"{len(bad)} of {len(partitions)} partitions: {what}"
            fail, warn = (None, advice) if bad is behind else (advice, None)
            return judge(f"topic {topic}", "replicas in sync", found, "all", fail, warn)
    return judge(f"topic {topic}", "replicas in sync", f"all of {len(partitions)} partitions", "all")


def cleanup(shell: Shell, topic: str, value: str) -> Opinion:
    keep = shell.alter(topic, "cleanup.policy=delete")
    advice = f"older records of a key vanish, read or not, and count as absent; if every one matters: {keep}"
    return Opinion("delete", warn=advice if "compact" in value else None)


def message_size(shell: Shell, topic: str, fetched: int, value: str) -> Opinion:
    """Judge the maximum record size. A record larger than the fetch size is still fetched, alone, which is slow."""
    wanted, larger = f"{PRODUCED} to {fetched}", shell.alter(topic, "max.message.bytes=1048588")
    if int(value) < PRODUCED:
        return Opinion(wanted, warn=f"producers send up to {PRODUCED}, which is refused here: {larger}")
    alone = f"larger ones come one by one: give Kafka(settings=...) a fetch.message.max.bytes of {value}"
    return Opinion(wanted, warn=alone if int(value) > fetched else None)


def newest(topic: str, kind: str | None, time: float | None, now: float) -> Finding:
    """Judge the latest timestamp of a topic's records, in seconds; None if it has no records."""
    clocks = {"CreateTime": "producers'", "LogAppendTime": "brokers'"}.get(kind or "", "producers' or brokers'")
    ahead = time is not None and time - now > FUTURE
    found = "no records" if time is None else f"{time - now:+.1f} s from now"
    advice = f"lag and retention go by the {clocks} clocks, and they are ahead of ours: set all by NTP"
    return judge(f"topic {topic}", "newest record", found, "not in the future", warn=advice if ahead else None)
