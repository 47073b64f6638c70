"""``tallymark import``: go on where a Kafka group or a Structured Streaming query has come to."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Annotated, Any

import typer
from rich.text import Text

from tallymark.cli.groups import operator
from tallymark.cli.moves import counted, logs, needed_brokers, needed_target, only_one, opened, positions, say
from tallymark.cli.output import plain_table, print_table
from tallymark.cli.target import AsJson, BrokersOption, FileOption, StoreUrl
from tallymark.core.spans import Log, Partition, Span
from tallymark.errors import BadInput
from tallymark.kafka.brokers import Brokers
from tallymark.operate.reset import Planned, parse_scope, within
from tallymark.operate.takeover import adopt, adopting, check_stopped, committed, lag, meaning, read_checkpoint
from tallymark.stores.contract import Store
from tallymark.stores.opening import sqlite_file

Group = Annotated[str | None, typer.Argument(help="The group that takes over; not needed with --file.")]
KafkaGroup = Annotated[
    str | None, typer.Option("--from-kafka-group", help="The group whose committed offsets to take.")
]
FromCheckpoint = Annotated[str | None, typer.Option("--from-checkpoint", help="The checkpoint folder of a query.")]
Source = Annotated[int | None, typer.Option("--source", help="Of a query with several sources: which one, from 0.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", help="Only this topic, or partitions: orders:0,3.")]
WhileRunning = Annotated[bool, typer.Option("--while-running", help="Even if the Kafka group has members, who go on.")]
Execute = Annotated[bool, typer.Option("--execute", help="Do it. Without this it is only shown.")]


@dataclass(frozen=True)
class Found:
    """Offsets that something else has come to, and what it may have done beyond them."""

    source: str
    offsets: Mapping[Partition, int]
    unsure: Sequence[Span] = ()
    begun: int | None = None

    def only(self, partitions: Collection[Partition]) -> Found:
        offsets = {one: offset for one, offset in self.offsets.items() if one in partitions}
        return replace(self, offsets=offsets, unsure=[span for span in self.unsure if span.partition in partitions])


def import_(
    group: Group = None,
    from_kafka_group: KafkaGroup = None,
    from_checkpoint: FromCheckpoint = None,
    source: Source = None,
    topic: Topics = None,
    while_running: WhileRunning = False,
    execute: Execute = False,
    store: StoreUrl = None,
    brokers: BrokersOption = None,
    file: FileOption = None,
    as_json: AsJson = False,
) -> None:
    """Take over the offsets of a Kafka group or a Structured Streaming query: show them, and with --execute do it.

    Stop what is running today first. The group goes on with the next record after these offsets.
    """
    of = needed_target(file, group, store, brokers)
    given = {"--from-kafka-group": from_kafka_group, "--from-checkpoint": from_checkpoint}
    only_one("import", given, " or ".join(given))
    asked = needed_brokers(of, "import")
    if from_kafka_group is not None:
        found = _from_group(asked, from_kafka_group, while_running)
    else:
        found = _from_checkpoint(from_checkpoint or "", source)
    there = logs(asked, _partitions(asked, found, topic or []))
    found = found.only(there)
    absent = (file_of := sqlite_file(of.store or "")) is not None and not file_of.exists()
    if absent and not execute:
        plan = adopt(found.offsets, there, {})
    else:
        with opened(of, new=True) as ledger:
            plan = _import(ledger, of.group or "", found, there, execute)
    if as_json:
        print(json.dumps(_as_json(of.group or "", found, plan, execute), indent=2))
    else:
        _print(of.group or "", found, plan, execute)


def _from_group(brokers: Brokers, group: str, while_running: bool) -> Found:
    if not while_running:
        check_stopped(brokers, group)
    return Found(f"Kafka group {group}", committed(brokers, group))


def _from_checkpoint(place: str, source: int | None) -> Found:
    kept = read_checkpoint(place)
    return Found(f"checkpoint {kept.name}, batch {kept.batch}", kept.offsets(source), kept.unsure(source), kept.begun)


def _partitions(brokers: Brokers, found: Found, topics: Sequence[str]) -> list[Partition]:
    """All partitions of the topics that have offsets there, or those of them that were asked for."""
    names = {one.topic for one in found.offsets}
    scope = parse_scope(topics) if topics else dict.fromkeys(names)
    if not names & scope.keys():
        raise BadInput(f"{found.source} has no offsets to take over; check its name and --topic")
    return within(scope, [one for topic in brokers.topics(sorted(scope)).values() for one in topic.partitions])


def _import(store: Store, group: str, found: Found, there: Mapping[Partition, Log], execute: bool) -> list[Planned]:
    known = positions(store, group) if store.has_ledger() else {}
    plan = adopt(found.offsets, there, known)
    if execute:
        store.create_ledger()
        by = operator()
        decision = adopting(plan, found.offsets, f"taken over from {found.source} by {by}")
        store.journal().move(group, there, decision, by, datetime.now(timezone.utc))
    return plan


def _as_json(group: str, found: Found, plan: Sequence[Planned], executed: bool) -> dict[str, Any]:
    return {
        "group": group,
        "source": found.source,
        "executed": executed,
        "partitions": [
            {
                "topic": one.partition.topic,
                "partition": one.partition.number,
                "committed_there": found.offsets.get(one.partition),
                "current_offset": one.current,
                "new_offset": one.new,
                "log_start_offset": one.log.start,
                "log_end_offset": one.log.end,
                "lag": lag(one),
            }
            for one in plan
        ],
        "unsure": [[span.partition.topic, span.partition.number, span.start, span.stop] for span in found.unsure],
    }


def _print(group: str, found: Found, plan: Sequence[Planned], executed: bool) -> None:
    heads = ("GROUP", "TOPIC", "PARTITION", "COMMITTED-THERE", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "MEANING")
    table = plain_table(*heads, left=2)
    table.columns[-1].justify = "left"
    going_on = {one.partition.topic for one in plan if one.new is not None}
    for one in plan:
        there, end = counted(found.offsets.get(one.partition)), counted(one.log.end)
        cells = (there, counted(one.current), end, counted(lag(one)), meaning(one, going_on))
        table.add_row(Text(group), one.partition.topic, str(one.partition.number), *cells)
    print_table(table)
    for span in found.unsure:
        say(
            f"warning: batch {found.begun} of the query was begun and not finished: {span} may be written there "
            "already, and will be read here",
            "yellow",
        )
    made = sum(one.changes for one in plan)
    if executed:
        say(f"{made} positions taken over from {found.source}" if made else "there was nothing to change", "green")
    else:
        say("nothing was changed: --execute does it" if made else "there is nothing to change", "dim")
