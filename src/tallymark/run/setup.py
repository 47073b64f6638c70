"""Settings that pipelines and consumers share: group, source, store, delivery, membership and error handling."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypedDict, get_args

from tallymark.core.budget import Budget
from tallymark.core.drift import OnDrift
from tallymark.core.durations import Duration, parse_duration
from tallymark.core.plan import Limits, OnLoss
from tallymark.core.retention import Retention
from tallymark.core.retry import PATIENCE
from tallymark.core.skip_ahead import SkipAhead
from tallymark.core.spans import Owner
from tallymark.core.start import Start
from tallymark.core.tables import TableSpec, check_exact
from tallymark.errors import BadInput
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.member import Member
from tallymark.kafka.membership import Alone, Group, Membership, Standalone
from tallymark.kafka.source import Kafka
from tallymark.run.commit import Delivery, Destination
from tallymark.stores.opening import open_store


class Settings(TypedDict, total=False):
    """The settings that both accept in addition to group, source and store."""

    start: str | Start
    on_loss: OnLoss
    on_drift: OnDrift
    budget: Budget
    patience: Duration
    delivery: Delivery
    ledger: str | None
    membership: Group | Standalone
    catch_up: SkipAhead | None
    retention: Retention
    mirror: bool
    metrics_port: int | None
    metrics_host: str
    tracing: bool


@dataclass(frozen=True)
class Setup:
    """The settings, validated as far as possible without a connection."""

    group: str
    source: Kafka
    store: str = field(repr=False)
    ledger: str | None = field(default=None, repr=False)
    start: str | Start = "uncommitted-earliest"
    on_loss: OnLoss = "fail"
    on_drift: OnDrift = "record"
    budget: Budget = field(default_factory=Budget)
    patience: Duration = PATIENCE
    delivery: Delivery = "exactly-once"
    membership: Group | Standalone = field(default_factory=Group)
    catch_up: SkipAhead | None = None
    retention: Retention = field(default_factory=Retention)
    mirror: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    tracing: bool = False

    def __post_init__(self) -> None:
        # Some databases ignore trailing spaces when they compare names.
        if not self.group or len(self.group) > 255 or self.group != self.group.strip():
            raise BadInput("group= must be a name of 1 to 255 characters, without leading or trailing spaces")
        if self.on_loss not in get_args(OnLoss):
            raise BadInput(f"on_loss={self.on_loss!r} is not known; write {' or '.join(get_args(OnLoss))}")
        if self.on_drift not in get_args(OnDrift):
            raise BadInput(f"on_drift={self.on_drift!r} is not known; write {', '.join(get_args(OnDrift))}")
        if isinstance(self.membership, Group) and self.membership.protocol == "consumer":
            for name in {"session.timeout.ms", "heartbeat.interval.ms"} & self.source.settings.keys():
                raise BadInput(
                    f"Kafka(settings=...): Group(protocol='consumer') takes {name} from the brokers; leave it out"
                )
        if self.mirror and self.is_standalone:
            raise BadInput("mirror=True writes to a Kafka group, and Standalone() has none; leave out one of them")
        if not self.retention.covers(self.budget.window):
            raise BadInput(
                f"the budget counts dead records over {self.budget.window}, and the ledger keeps commits for "
                f"{self.retention.batches}; set retention=Retention(batches=...) to at least that"
            )
        if isinstance(self.start, str):
            object.__setattr__(self, "start", Start.parse(self.start))
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65535:
            raise BadInput(f"metrics_port={self.metrics_port} is not a port; write 1 to 65535, or 0 for any free port")

        object.__setattr__(self, "patience", self.patience_seconds)

    @property
    def patience_seconds(self) -> float:
        return parse_duration(self.patience, "patience").total_seconds()

    @property
    def traced(self) -> bool:
        return self.tracing or os.environ.get("TALLYMARK_TRACING", "0") not in ("", "0")

    @property
    def starts(self) -> Start:
        assert isinstance(self.start, Start)
        return self.start

    @property
    def is_standalone(self) -> bool:
        return isinstance(self.membership, Standalone)

    @property
    def ledger_url(self) -> str:
        return self.ledger or self.store

    @contextmanager
    def destination(self) -> Iterator[Destination]:
        rows = open_store(self.store)
        ledger = rows if self.ledger_url == self.store else open_store(self.ledger_url)
        try:
            yield Destination(rows, ledger, self.delivery)
        finally:
            rows.close()
            ledger.close()

    def member(self, brokers: Brokers, owner: Owner) -> Membership:
        if isinstance(self.membership, Standalone):
            return Alone(brokers, self.source.topic_names, self.membership.chosen())
        return Member(self.group, self.source, self.membership, f"tallymark-{owner.run}", mirror=self.mirror)

    def job(self, owner: Owner, tables: Sequence[TableSpec] = (), limits: Limits | None = None) -> Job:
        """The parameters of a run by this owner."""
        for spec in tables:
            check_exact(spec, self.delivery)
            if spec.is_replica and self.catch_up:
                raise BadInput(
                    f"table {spec.name}: catch_up= would skip change events, and a replica can't fill in a value later "
                    "that newer events of its row do not have; leave out catch_up="
                )
            if spec.write == "merge" and self.starts.goes_back:
                raise BadInput(
                    f"table {spec.name}: start={self.starts.kind!r} overrides the saved positions, so that every run "
                    f"would add all records again; set start='uncommitted-{self.starts.kind}'"
                )
        return Job(
            group=self.group,
            topics=self.source.topic_names,
            tables=tables,
            owner=owner,
            start=self.starts,
            limits=limits or Limits(),
            on_loss=self.on_loss,
            on_drift=self.on_drift,
            budget=self.budget,
            patience=self.patience_seconds,
            catch_up=self.catch_up,
            retention=self.retention,
        )


def new_owner() -> Owner:
    """A new owner with a unique run name."""
    return Owner(f"{os.getpid()}-{uuid.uuid4().hex[:8]}", socket.gethostname(), datetime.now(UTC))


@dataclass(frozen=True)
class Job:
    """The parameters of one run, which never change during the run."""

    group: str
    topics: Sequence[str]
    tables: Sequence[TableSpec]
    owner: Owner
    start: Start
    limits: Limits = field(default_factory=Limits)
    on_loss: OnLoss = "fail"
    on_drift: OnDrift = "record"
    budget: Budget = field(default_factory=Budget)
    patience: float | None = None
    catch_up: SkipAhead | None = None
    retention: Retention = field(default_factory=Retention)

    @property
    def finds_drift(self) -> bool:
        """Whether decoders look for fields that the schema does not name."""
        return self.on_drift != "ignore"
