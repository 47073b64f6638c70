"""Runs all checks of the doctor in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tallymark.core.spans import Position
from tallymark.errors import TableChanged
from tallymark.kafka.cluster import Cluster
from tallymark.operate.doctor import client, databases, topics
from tallymark.operate.doctor.cluster import Examination
from tallymark.operate.findings import Finding, checked, judge
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store, sqlite_file
from tallymark.stores.sql.store import SqlStore

Say = Callable[[str], None]
Positions = dict[str, list[Position]]


@dataclass(frozen=True)
class Patient:
    """What to examine. The first store holds the ledger; without ``topics``, the topics are those of its positions."""

    cluster: Cluster | None = None
    stores: Sequence[str] = field(default=(), repr=False)
    group: str | None = None
    topics: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    probe: bool = False
    new_group: bool = False
    """Whether a group without any run is accepted."""


def examine(patient: Patient, say: Say = lambda _: None) -> list[Finding]:
    """Return all findings in display order. A failed check does not stop the others."""
    positions: Positions = {}
    stores: list[Finding] = []
    for url in dict.fromkeys(patient.stores):
        into = positions if url == patient.stores[0] else None
        stores += checked("store", "connection", partial(_store, url, patient, into, say), otherwise="fail")
    if not patient.stores:
        stores = [judge("store", "connection", "not checked", warn="set --store or TALLYMARK_STORE")]
    cluster = checked("cluster", "connection", partial(_cluster, patient, positions, say), otherwise="fail")
    say("this machine")
    return [*cluster, *stores, *client.examine()]


def _cluster(patient: Patient, positions: Positions, say: Say) -> Iterator[Finding]:
    if patient.cluster is None:
        yield judge("cluster", "connection", "not checked", warn="set --brokers or TALLYMARK_BROKERS")
        return
    say(f"the brokers at {patient.cluster.brokers}")
    examination = Examination(patient.cluster, patient.settings)
    yield from examination.reach()
    yield from examination.node_settings()
    yield topics.polling(patient.settings)
    if patient.probe:
        yield from checked("cluster", "clock skew", examination.probe)
    else:
        yield judge("cluster", "clock skew", "not measured; use --probe")
    names = patient.topics or sorted({position.partition.topic for held in positions.values() for position in held})
    existing = examination.brokers.resolve(names)
    if not existing:
        none = f"no topic matches {', '.join(names)}" if names else "set --topic, or --file with a pipeline"
        yield judge("cluster", "topics", "none", warn=none)
    for name in existing:
        say(f"topic {name}")
        of_topic = {group: mine for group, held in positions.items() if (mine := _of_topic(held, name))}
        yield from checked(f"topic {name}", "partitions", partial(examination.topic, name, of_topic))


def _of_topic(positions: Sequence[Position], topic: str) -> list[Position]:
    return [position for position in positions if position.partition.topic == topic]


def _store(url: str, patient: Patient, into: Positions | None, say: Say) -> Iterator[Finding]:
    """Examine one store. If it holds the ledger, add its positions to ``into``."""
    file = sqlite_file(url)
    if file is not None and not file.exists():
        creatable = file.absolute().parent.is_dir()
        fail, warn = (None, "the first run creates it") if creatable else ("create its directory", None)
        yield judge("store", "connection", f"no file {file}", fail=fail, warn=warn)
        return
    store = open_store(url)
    say(store.name)
    try:
        store.ping()
        yield judge("store", "connection", store.name)
        if isinstance(store, SqlStore):
            yield from databases.examine(store)
        else:
            yield from _redis(store, url)
        if into is not None:
            yield from checked("store", "ledger", partial(_positions, store, patient, into))
    finally:
        store.close()


def _redis(store: Store, url: str) -> Iterator[Finding]:
    from tallymark.operate.doctor import redis
    from tallymark.stores.redis.address import Address
    from tallymark.stores.redis.store import RedisStore

    assert isinstance(store, RedisStore)
    return redis.examine(store, Address.parse(url))


def _positions(store: Store, patient: Patient, into: Positions) -> Iterator[Finding]:
    group, known = patient.group, store.has_ledger()
    try:
        if known:
            into.update(store.positions(group))
            known = group is None or store.state(group) is not None
    except TableChanged as error:
        yield judge("store", "ledger", f"older: {error}", warn="the next run upgrades it, or tallymark ledger upgrade")
        return
    if group is not None and not known and not patient.new_group:
        yield judge(f"group {group}", "positions", "unknown", fail="list the groups with tallymark groups")
    elif group is not None and group not in into:
        yield judge(f"group {group}", "positions", "none", warn="the group has not run yet")
