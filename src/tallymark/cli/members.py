"""``tallymark members``: who is in a group, who has which partitions, and how they were handed out lately."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from tallymark.cli.output import plain_table, print_table
from tallymark.cli.target import AsJson, BrokersOption, FileOption, StoreUrl, target
from tallymark.cli.values import printable
from tallymark.core.claims import Rebalance
from tallymark.core.spans import Partition
from tallymark.errors import BadInput
from tallymark.kafka.brokers import Brokers, GroupMember
from tallymark.operate.survey import ledger

Group = Annotated[str | None, typer.Argument(help="The group; not needed with --file.")]
Most = Annotated[int, typer.Option("--rebalances", help="How many of the last rebalances to show; needs the store.")]


@dataclass(frozen=True)
class Seen:
    """A group as Kafka and the ledger see it. None: nobody was asked."""

    group: str
    members: list[GroupMember] | None
    rebalances: list[Rebalance] | None


def members(
    group: Group = None,
    brokers: BrokersOption = None,
    store: StoreUrl = None,
    file: FileOption = None,
    most: Most = 10,
    as_json: AsJson = False,
) -> None:
    """Show the members of a group with their partitions, and its last rebalances."""
    of = target(file, group, store, brokers)
    if of.group is None or (of.cluster is None and of.store is None):
        raise BadInput("name the group and --brokers, --store or both; or --file with a pipeline or an app")
    found = Seen(
        of.group,
        Brokers(of.cluster).members(of.group) if of.cluster else None,
        _rebalances(of.group, of.store, most) if of.store else None,
    )
    if as_json:
        print(json.dumps(_as_json(found), indent=2))
    else:
        _print(found)


def _rebalances(group: str, store_url: str, most: int) -> list[Rebalance]:
    with ledger(store_url, group) as store:
        return store.rebalances(group, most)


def _as_json(found: Seen) -> dict[str, Any]:
    described = None
    if found.members is not None:
        described = [
            {"member": one.id, "client": one.client, "host": one.host, "partitions": _pairs(one.partitions)}
            for one in found.members
        ]
    happened = None
    if found.rebalances is not None:
        happened = [
            {
                "at": one.at.isoformat(),
                "kind": one.kind,
                "run": one.run,
                "host": one.host,
                "seconds": one.seconds,
                "gained": _pairs(one.gained),
                "lost": _pairs(one.lost),
            }
            for one in found.rebalances
        ]
    return {"group": found.group, "members": described, "rebalances": happened}


def _print(found: Seen) -> None:
    out = Console(highlight=False, markup=False)
    if found.members:
        table = plain_table("CLIENT", "HOST", "PARTITIONS", left=3)
        for one in found.members:
            table.add_row(*map(Text, (printable(one.client), one.host, _words(one.partitions))))
        print_table(table)
    elif found.members is not None:
        out.print(f"group {found.group} has no members in Kafka now")
    if found.rebalances:
        table = plain_table("REBALANCE", "KIND", "RUN", "HOST", "GAINED", "LOST", "SECONDS", left=6)
        for event in found.rebalances:
            when = f"{event.at:%Y-%m-%d %H:%M:%S}"
            gained, lost = _words(event.gained), _words(event.lost)
            table.add_row(when, event.kind, event.run, event.host, gained, lost, f"{event.seconds:.2f}")
        print_table(table)
    elif found.rebalances is not None:
        out.print(f"the ledger has no rebalance of group {found.group}")


def _pairs(partitions: Sequence[Partition]) -> list[list[Any]]:
    return [[partition.topic, partition.number] for partition in partitions]


def _words(partitions: Sequence[Partition]) -> str:
    """``orders[0-3,7]``: ranges instead of long lists."""
    by_topic: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        by_topic.setdefault(partition.topic, []).append(partition.number)
    return " ".join(f"{topic}[{_ranges(numbers)}]" for topic, numbers in by_topic.items()) or "-"


def _ranges(numbers: Sequence[int]) -> str:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ",".join("-".join(map(str, dict.fromkeys(one))) for one in ranges)
