"""What one run of a pipeline is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tallymark.budget import Budget
from tallymark.plan import Limits, OnLoss
from tallymark.positions import Start
from tallymark.shape import TableSpec
from tallymark.skipahead import SkipAhead
from tallymark.spans import Owner


@dataclass(frozen=True)
class Job:
    """What to run: fixed for the whole run."""

    group: str
    topics: Sequence[str]
    tables: Sequence[TableSpec]
    owner: Owner
    start: Start
    limits: Limits = field(default_factory=Limits)
    on_loss: OnLoss = "fail"
    budget: Budget = field(default_factory=Budget)
    patience: float | None = None
    catch_up: SkipAhead | None = None
