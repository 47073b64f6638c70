"""``tallymark consume``: look at what is in a topic."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Console

from tallymark.cli.options import BrokersOption, needed_cluster
from tallymark.look import FORMS, Look
from tallymark.records import Record

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
    key = "" if record.key is None else f" key={_printable(record.key)}"
    headers = "".join(f" {_printable(name.encode())}:{_printable(value)}" for name, value in record.headers)
    return f"{record.topic}[{record.partition}] {record.offset} {when}{key}{headers} {_printable(record.value)}"


def _printable(data: bytes | None) -> str:
    """Text as it is, without anything that a terminal would obey."""
    if data is None:
        return "null"
    text = data.decode(errors="backslashreplace")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _as_json(record: Record) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp.isoformat(timespec="milliseconds") if record.timestamp else None,
        **_member("key", record.key),
        **_member("value", record.value),
        "headers": [{"name": name, **_member("value", value)} for name, value in record.headers],
    }


def _member(name: str, data: bytes | None) -> dict[str, str | None]:
    """Text under its name; what is no text as base64, under a name that says so."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}
