"""``tallymark status``: what a group has done and how far behind it is, from the database and Kafka alone."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Annotated, Any

import typer
from rich.console import Console

from tallymark.brokers import Brokers
from tallymark.cli.options import AsJson, BrokersOption, FileOption, StoreUrl, target
from tallymark.cli.tables import plain_table, print_table
from tallymark.cluster import Cluster
from tallymark.errors import BadInput, UnknownTopic
from tallymark.spans import OUTCOMES, GroupState, Log, Partition, Position
from tallymark.stores.opening import open_store

Group = Annotated[str | None, typer.Argument(help="Only this group.")]
COLUMNS = (
    *("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "LAG-SECONDS"),
    *(name.upper() for name in OUTCOMES),
    "OWNER",
)


@dataclass(frozen=True)
class Line:
    """One partition of one group. ``lag`` is None when Kafka was not asked."""

    group: str
    position: Position
    log: Log | None
    state: GroupState | None = None

    @property
    def lag(self) -> int | None:
        return None if self.log is None else max(0, self.log.end - self.position.next_offset)

    @property
    def lag_seconds(self) -> float | None:
        """The age of the last record that was read, while there are unread ones: at most so far behind."""
        if self.lag == 0:
            return 0.0
        if self.lag is None or self.position.record_time is None:
            return None
        return max(0.0, (datetime.now(timezone.utc) - self.position.record_time).total_seconds())

    def as_json(self) -> dict[str, Any]:
        position, owner = self.position, self.position.owner
        return {
            "group": self.group,
            "desired_state": self.state.desired if self.state else None,
            "reason": self.state.reason if self.state else None,
            "topic": position.partition.topic,
            "partition": position.partition.number,
            "current_offset": position.next_offset,
            "log_end_offset": self.log.end if self.log else None,
            "lag": self.lag,
            "lag_seconds": self.lag_seconds,
            **asdict(position.tally),
            "first_offset": position.first_offset,
            "balanced": position.balanced,
            "record_time": _time(position.record_time),
            "updated_at": _time(position.updated_at),
            "epoch": position.epoch,
            "owner": {"run": owner.run, "host": owner.host, "since": _time(owner.since)} if owner else None,
        }

    def cells(self) -> list[str]:
        position, lag_seconds = self.position, self.lag_seconds
        return [
            self.group,
            position.partition.topic,
            str(position.partition.number),
            str(position.next_offset),
            str(self.log.end) if self.log else "-",
            str(self.lag) if self.lag is not None else "-",
            f"{lag_seconds:.1f}" if lag_seconds is not None else "-",
            *(str(count) for count in asdict(position.tally).values()),
            f"{position.owner.run}@{position.owner.host}" if position.owner else "-",
        ]


def status(
    group: Group = None,
    store: StoreUrl = None,
    brokers: BrokersOption = None,
    file: FileOption = None,
    as_json: AsJson = False,
) -> None:
    """Show positions, lag and tallies. Works while the pipeline runs and while it does not."""
    of = target(file, group, store, brokers)
    if of.store is None:
        raise BadInput("status needs --store (or TALLYMARK_STORE), or --file with a pipeline")
    lines = _lines(of.group, of.store, of.cluster)
    if as_json:
        print(json.dumps([line.as_json() for line in lines], indent=2))
    else:
        _print(lines, asked=of.cluster is not None)


def _lines(group: str | None, store_url: str, cluster: Cluster | None) -> list[Line]:
    store = open_store(store_url)
    try:
        if not store.has_ledger():
            raise BadInput(f"{store.name} has no ledger: no pipeline has run into it yet")
        groups = store.positions(group)
        states = {name: store.state(name) for name in groups}
    finally:
        store.close()
    if group is not None and not groups:
        raise BadInput(f"group {group} has no position in {store.name}; tallymark status without a group lists all")
    found = [Line(name, position, None, states[name]) for name, positions in groups.items() for position in positions]
    return _with_logs(found, Brokers(cluster)) if cluster else found


def _with_logs(lines: list[Line], brokers: Brokers) -> list[Line]:
    """Lines with the ends of their logs, where the topic is still the one whose position was saved."""
    logs: dict[Partition, Log] = {}
    for topic in sorted({line.position.partition.topic for line in lines}):
        with suppress(UnknownTopic):
            logs |= brokers.logs(brokers.topics([topic]))
    return [replace(line, log=_same_topic(line.position, logs.get(line.position.partition))) for line in lines]


def _same_topic(position: Position, log: Log | None) -> Log | None:
    return log if log and (log.topic_id, log.cluster_id) == (position.topic_id, position.cluster_id) else None


def _print(lines: list[Line], *, asked: bool) -> None:
    out = Console()
    table = plain_table(*COLUMNS, left=2)
    for line in lines:
        table.add_row(*line.cells(), style=None if line.position.balanced else "red")
    if lines:
        print_table(table)
    else:
        out.print("no group has a position yet")
    for group, state in {line.group: line.state for line in lines}.items():
        if state is not None and state.paused:
            said = f"{group} is paused since {state.since:%Y-%m-%d %H:%M:%S} UTC by {state.by}: {state.reason}"
            out.print(said, style="yellow", highlight=False, markup=False, soft_wrap=True)
    if lines and not asked:
        out.print("lag needs Kafka: add --brokers", style="dim")


def _time(time: datetime | None) -> str | None:
    return time.isoformat() if time else None
