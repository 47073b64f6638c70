"""Checks the whole ledger of a group, also against the logs in Kafka."""

from __future__ import annotations

from collections.abc import Sequence

from tallymark.core.spans import Position
from tallymark.errors import BadInput
from tallymark.kafka.brokers import Brokers
from tallymark.operate.audit.accounts import accounts, check, check_log
from tallymark.operate.findings import Finding
from tallymark.spark.sink import CLUSTER
from tallymark.stores.contract import Store


def examine(store: Store, group: str, brokers: Brokers | None = None) -> list[Finding]:
    """Check every identity of every partition, and the logs if ``brokers`` are given."""
    findings = _examined(store, group, brokers)
    # Kafka is read after the ledger, so a change in between can look like an error: check once more.
    return _examined(store, group, brokers) if any(finding.verdict != "ok" for finding in findings) else findings


def _examined(store: Store, group: str, brokers: Brokers | None) -> list[Finding]:
    if not store.has_ledger():
        raise BadInput(f"{store.name} has no ledger, because no group has run with it yet; check the URL of the store")
    with store.snapshot() as snapshot:
        moment = snapshot.moment(group)
    if not moment.positions:
        raise BadInput(f"group {group} has no position in {store.name}; list the groups with tallymark groups")
    findings = [finding for account in accounts(moment) for finding in check(group, account)]
    in_kafka = [position for position in moment.positions if position.cluster_id != CLUSTER]
    return findings + (_logs(group, in_kafka, brokers) if brokers else [])


def _logs(group: str, positions: Sequence[Position], brokers: Brokers) -> list[Finding]:
    partitions = {position.partition for position in positions}
    topics = brokers.topics(sorted({partition.topic for partition in partitions}), existing_only=True)
    logs = brokers.logs({name: topic.only(partitions) for name, topic in topics.items()})
    return [check_log(group, position, logs.get(position.partition)) for position in positions]
