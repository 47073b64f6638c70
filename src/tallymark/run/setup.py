"""What pipelines and consumers are told alike: a group, a source, a store, and how to deal with what may happen."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TypedDict, get_args

from tallymark.brokers import Brokers
from tallymark.budget import Budget
from tallymark.commit import Delivery, Destination
from tallymark.errors import BadInput
from tallymark.member import Member
from tallymark.membership import Alone, Group, Membership, Standalone
from tallymark.patience import PATIENCE
from tallymark.plan import OnLoss
from tallymark.positions import Start
from tallymark.skipahead import SkipAhead
from tallymark.source import Kafka
from tallymark.spans import Owner
from tallymark.stores.opening import open_store


class Settings(TypedDict, total=False):
    """The settings that both take, beside group, source and store."""

    start: str | Start
    on_loss: OnLoss
    budget: Budget
    patience: float
    delivery: Delivery
    ledger: str | None
    membership: Group | Standalone
    catch_up: SkipAhead | None
    mirror: bool
    metrics_port: int | None
    metrics_host: str
    tracing: bool


@dataclass(frozen=True)
class Setup:
    """Checked as far as it can be without asking anybody."""

    group: str
    source: Kafka
    store: str = field(repr=False)
    ledger: str | None = field(default=None, repr=False)
    start: str | Start = "uncommitted-earliest"
    on_loss: OnLoss = "fail"
    budget: Budget = field(default_factory=Budget)
    patience: float = PATIENCE
    delivery: Delivery = "exactly-once"
    membership: Group | Standalone = field(default_factory=Group)
    catch_up: SkipAhead | None = None
    mirror: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    tracing: bool = False

    def __post_init__(self) -> None:
        # Some databases do not tell names apart by the spaces at their end.
        if not self.group or len(self.group) > 255 or self.group != self.group.strip():
            raise BadInput("group= needs a name of 1 to 255 characters, without spaces around it")
        if self.on_loss not in get_args(OnLoss):
            raise BadInput(f"on_loss={self.on_loss!r} is not known; write {' or '.join(get_args(OnLoss))}")
        if isinstance(self.membership, Group) and self.membership.protocol == "consumer":
            for name in {"session.timeout.ms", "heartbeat.interval.ms"} & self.source.settings.keys():
                raise BadInput(f"Kafka(settings=...): with Group(protocol='consumer') the brokers decide {name}")
        if self.mirror and self.is_standalone:
            raise BadInput("mirror=True writes to the Kafka group, and Standalone() has none; leave one of them out")
        if isinstance(self.start, str):
            object.__setattr__(self, "start", Start.parse(self.start))
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65535:
            raise BadInput(f"metrics_port={self.metrics_port} is no port; write 1 to 65535, or 0 for any that is free")

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


def new_owner() -> Owner:
    """A name for this run that no other run has."""
    return Owner(f"{os.getpid()}-{uuid.uuid4().hex[:8]}", socket.gethostname(), datetime.now(timezone.utc))
