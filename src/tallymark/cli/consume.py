"""``tallymark consume``: look at what is in a topic."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Console

from tallymark.cli.target import BrokersOption, needed_cluster
from tallymark.cli.values import member, printable
from tallymark.operate.tail import FORMS, Look
from tallymark.service.batch import Record

Topic = Annotated[str, typer.Argument(help="The topic to look at.")]
From = Annotated[str, typer.Option("--from", help=f"Where to start: {FORMS}.")]
Count = Annotated[int | None, typer.Option("--count", min=0, help="How many records; 0: all. 10 without --follow.")]
PartitionOption = Annotated[int | None, typer.Option("--partition", help="Only this partition.")]
Follow = Annotated[bool, typer.Option("--follow", help="Wait for more at the end, until Ctrl-C.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for each record.")]
FIRST = 10


def consume(
    topic: Topic,
    start: From = "earliest",
    count: Count = None,
    partition: PartitionOption = None,
    follow: Follow = False,
    brokers: BrokersOption = None,
    as_json: AsJson = False,
) -> None:
    """Look at records. Joins no group and saves nothing: no pipeline notices."""
    look = Look(needed_cluster(brokers, "consume"), topic, start, partition)
    most = count if count is not None else 0 if follow else FIRST
    shown = 0
    with _until_nobody_looks():
        for record in islice(look.records(follow=follow), most or None):
            print(json.dumps(_as_json(record), ensure_ascii=False) if as_json else _line(record), flush=follow)
            shown += 1
    left = look.offsets - shown
    if not follow and left > 0 and shown == most and not as_json:
        Console(stderr=True).print(f"there are up to {left:,} more: --count 0 shows all", style="dim", highlight=False)


@contextmanager
def _until_nobody_looks() -> Iterator[None]:
    """Ctrl-C, or the end of what reads our output, is the end of looking and no error."""
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # Python flushes once more when it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _line(record: Record) -> str:
    when = (
        f"{record.timestamp:%Y-%m-%dT%H:%M:%S}.{record.timestamp.microsecond // 1000:03}Z" if record.timestamp else "-"
    )
    key = "" if record.key is None else f" key={printable(record.key)}"
    headers = "".join(f" {printable(name.encode())}:{printable(value)}" for name, value in record.headers)
    return f"{record.topic}[{record.partition}] {record.offset} {when}{key}{headers} {printable(record.value)}"


def _as_json(record: Record) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp.isoformat(timespec="milliseconds") if record.timestamp else None,
        **member("key", record.key),
        **member("value", record.value),
        "headers": [{"name": name, **member("value", value)} for name, value in record.headers],
    }
