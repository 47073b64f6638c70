"""``tallymark members``: the members of a group with their partitions, and its last rebalances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tallymark.cli.output import Rows, say, show, show_json
from tallymark.cli.target import OF_FILE, AsJson, Limit, Target, targeted
from tallymark.core.spans import Partition
from tallymark.errors import BadInput
from tallymark.kafka.brokers import Brokers

REBALANCES = ("REBALANCE:at", "KIND", "RUN", "HOST", "GAINED", "LOST", "SECONDS")


@targeted()
def members(target: Target, limit: Limit = 10, as_json: AsJson = False) -> None:
    """Show the members of a group with their partitions, and its last rebalances, which need the store."""
    group, brokers = target.group, target.optional_brokers
    if brokers is None and target.optional_store is None:
        raise BadInput(f"members needs --brokers, --store or both (or TALLYMARK_BROKERS, TALLYMARK_STORE), {OF_FILE}")
    rebalances = _rebalances(target, limit) if target.optional_store else None
    present = _members(brokers, group, known=rebalances is not None) if brokers else None
    if as_json:
        show_json({"group": group, "members": present, "rebalances": rebalances})
        return
    if present:
        show(Rows(("CLIENT", "HOST", "PARTITIONS"), [_in_words(one, "partitions") for one in present]))
    elif present is not None:
        say(f"group {group} has no members in Kafka now")
    if rebalances:
        show(Rows(REBALANCES, [_in_words(one, "gained", "lost") for one in rebalances]))
    elif rebalances is not None:
        say(f"the ledger has no rebalance of group {group}")


def _members(brokers: Brokers, group: str, *, known: bool) -> list[dict[str, Any]]:
    found = brokers.members(group)
    if not found and not known and not brokers.has_group(group):
        raise BadInput(f"the brokers know no group {group}; with --store it is looked up in the ledger, too")
    return [
        {"member": one.id, "client": one.client, "host": one.host, "partitions": _pairs(one.partitions)}
        for one in found
    ]


def _rebalances(target: Target, limit: int) -> list[dict[str, Any]]:
    with target.ledger() as store:
        return [
            {**vars(one), "gained": _pairs(one.gained), "lost": _pairs(one.lost)}
            for one in store.rebalances(target.group, limit)
        ]


def _pairs(partitions: Sequence[Partition]) -> list[tuple[str, int]]:
    return [(partition.topic, partition.number) for partition in partitions]


def _in_words(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return row | {name: _words(row[name]) for name in names}


def _words(partitions: Sequence[tuple[str, int]]) -> str:
    """``orders[0-3,7]``: ranges instead of long lists."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    return " ".join(f"{topic}[{_ranges(numbers)}]" for topic, numbers in by_topic.items()) or "-"


def _ranges(numbers: Sequence[int]) -> str:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ",".join("-".join(map(str, dict.fromkeys(one))) for one in ranges)
