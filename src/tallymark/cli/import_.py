"""``tallymark import``: continue where a Kafka group or a Structured Streaming query has stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from tallymark.cli.output import Rows, say, show, show_json
from tallymark.cli.reset import only_one, show_result
from tallymark.cli.target import AsJson, Execute, Target, operator, targeted
from tallymark.operate.moves import Foreign, Import
from tallymark.operate.takeover import lag, meaning

COLUMNS = ("GROUP", "TOPIC", "PARTITION", "COMMITTED-THERE", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "MEANING")

KafkaGroup = Annotated[
    str | None, typer.Option("--from-kafka-group", help="The group whose committed offsets to take.")
]
FromCheckpoint = Annotated[str | None, typer.Option("--from-checkpoint", help="The checkpoint folder of a query.")]
Source = Annotated[int | None, typer.Option("--source", help="The number of the source of the query, from 0.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", "-t", help="Only this topic, or partitions: orders:0,3.")]
WhileRunning = Annotated[
    bool, typer.Option("--while-running", help="Even if the Kafka group has members, which continue to read.")
]


@targeted()
def import_(
    target: Target,
    from_kafka_group: KafkaGroup = None,
    from_checkpoint: FromCheckpoint = None,
    source: Source = None,
    topic: Topics = None,
    while_running: WhileRunning = False,
    execute: Execute = False,
    as_json: AsJson = False,
) -> None:
    """Show the offsets of a Kafka group or a Structured Streaming query; with --execute, take them over.

    Stop the other consumer first. The group continues with the next record after these offsets.
    """
    group, url, brokers = target.group, target.store, target.brokers
    options = {"--from-kafka-group": from_kafka_group, "--from-checkpoint": from_checkpoint}
    only_one("import", {option: value for option, value in options.items() if value is not None}, options)
    if from_kafka_group is not None:
        foreign = Foreign.of_group(brokers, from_kafka_group, while_running=while_running)
    else:
        foreign = Foreign.of_checkpoint(from_checkpoint or "", source)
    importing = Import(url, group, brokers, foreign, topic or [])
    plan = importing.execute(operator()) if execute else importing.preview()
    foreign = importing.foreign
    rows = [
        {
            "topic": one.partition.topic,
            "partition": one.partition.number,
            "committed_there": foreign.offsets.get(one.partition),
            "current_offset": one.current,
            "new_offset": one.new,
            "log_start_offset": one.log.start,
            "log_end_offset": one.log.end,
            "lag": lag(one),
        }
        for one in plan
    ]
    if as_json:
        unsure = [[span.partition.topic, span.partition.number, span.start, span.stop] for span in foreign.unsure]
        facts = {"group": group, "source": foreign.source, "executed": execute}
        show_json({**facts, "partitions": rows, "unsure": unsure})
        return
    known = {one.partition.topic for one in plan if one.new is not None}
    meanings = [{"group": group, "meaning": meaning(one, known)} for one in plan]
    show(Rows(COLUMNS, [row | more for row, more in zip(rows, meanings, strict=True)]))
    for span in foreign.unsure:
        begun = f"batch {foreign.begun} of the query was begun and not finished"
        say(f"warning: {begun}: {span} may be written there already, and will be read here", "yellow")
    show_result(sum(one.changes for one in plan), f"positions taken over from {foreign.source}", executed=execute)
