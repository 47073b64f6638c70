"""The ledger of a group looked at as a whole, and held against Kafka."""

from __future__ import annotations

from collections.abc import Sequence

from tallymark.audit.accounts import accounts, check, check_log
from tallymark.brokers import Brokers
from tallymark.doctor.verdict import Finding
from tallymark.errors import BadInput
from tallymark.spans import Position
from tallymark.stores.store import Store
from tallymark.streams import CLUSTER


def examine(store: Store, group: str, brokers: Brokers | None = None) -> list[Finding]:
    """Every identity of every partition; of what Kafka holds only if there are brokers to ask."""
    found = _examined(store, group, brokers)
    # Kafka is asked after the ledger: what looks broken may have been read or deleted in between.
    return _examined(store, group, brokers) if any(one.verdict != "ok" for one in found) else found


def _examined(store: Store, group: str, brokers: Brokers | None) -> list[Finding]:
    if not store.has_ledger():
        raise BadInput(f"{store.name} has no ledger: no pipeline has run into it yet")
    with store.still() as still:
        moment = still.moment(group)
    if not moment.positions:
        raise BadInput(f"group {group} has no position in {store.name}; tallymark status without a group lists all")
    found = [finding for account in accounts(moment) for finding in check(group, account)]
    in_kafka = [position for position in moment.positions if position.cluster_id != CLUSTER]
    return found + (_logs(group, in_kafka, brokers) if brokers else [])


def _logs(group: str, positions: Sequence[Position], brokers: Brokers) -> list[Finding]:
    wanted = {position.partition for position in positions}
    topics = brokers.topics(sorted({one.topic for one in wanted}), existing_only=True)
    logs = brokers.logs({name: topic.only(wanted) for name, topic in topics.items()})
    return [check_log(group, position, logs.get(position.partition)) for position in positions]
