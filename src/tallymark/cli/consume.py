"""``tallymark consume``: print the records of a topic."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any

import typer

from tallymark.cli.output import note
from tallymark.cli.target import PartitionOption, RegistryOption, Target, targeted
from tallymark.cli.values import member, printable
from tallymark.operate.shown import Shown, shown
from tallymark.operate.tail import FORMS, Look
from tallymark.service.records import Record

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to read.")]
From = Annotated[str, typer.Option("--from", help=f"Where to start: {FORMS}.")]
Limit = Annotated[
    int | None, typer.Option("--limit", min=0, help="Print at most so many; 0: all. 10 without --follow.")
]
Follow = Annotated[bool, typer.Option("--follow", help="Wait for more at the end, until Ctrl-C.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for each record.")]
FIRST = 10


@targeted(None, store=False)
def consume(
    target: Target,
    topic: Topic,
    start: From = "earliest",
    limit: Limit = None,
    partition: PartitionOption = None,
    follow: Follow = False,
    registry: RegistryOption = None,
    as_json: AsJson = False,
) -> None:
    """Print records. It joins no group and saves nothing, so that pipelines are not affected.

    With --registry, keys and values that name a schema are decoded.
    """
    schemas = target.schemas(registry)
    look = Look(target.cluster, topic, start, partition)
    most = limit if limit is not None else 0 if follow else FIRST
    printed = 0
    with _until_nobody_reads():
        for record in islice(look.records(follow=follow), most or None):
            decoded = shown(schemas, record.key, record.value, record.headers)
            line = json.dumps(_as_json(record, *decoded), ensure_ascii=False) if as_json else _line(record, *decoded)
            print(line, flush=follow)
            printed += 1
    left = look.offsets - printed
    if not follow and left > 0 and printed == most and not as_json:
        note(f"there are up to {left:,} more: --limit 0 shows all", "dim")


@contextmanager
def _until_nobody_reads() -> Iterator[None]:
    """End without an error on Ctrl-C, or when the reader of the output has ended."""
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # Python flushes once more at its end, and would report the error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _line(record: Record, key: Shown | None, value: Shown | None) -> str:
    when = (
        f"{record.timestamp:%Y-%m-%dT%H:%M:%S}.{record.timestamp.microsecond // 1000:03}Z" if record.timestamp else "-"
    )
    with_key = "" if record.key is None else f" key={printable(record.key, key)}"
    headers = "".join(f" {printable(name.encode())}:{printable(value)}" for name, value in record.headers)
    return (
        f"{record.topic}[{record.partition}] {record.offset} {when}{with_key}{headers} {printable(record.value, value)}"
    )


def _as_json(record: Record, key: Shown | None, value: Shown | None) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp.isoformat(timespec="milliseconds") if record.timestamp else None,
        **member("key", record.key, key),
        **member("value", record.value, value),
        "headers": [{"name": name, **member("value", value)} for name, value in record.headers],
    }
