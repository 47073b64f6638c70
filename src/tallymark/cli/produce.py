"""``tallymark produce``: lines of a file, or of what is typed, become records."""

from __future__ import annotations

import base64
import json
import os
import select
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tallymark.cli.target import BrokersOption, needed_cluster
from tallymark.errors import BadInput, NotDelivered, TallymarkError
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.source import is_pattern
from tallymark.produce.producer import Producer

Topic = Annotated[str, typer.Argument(help="The topic to write to.")]
FileOption = Annotated[Path | None, typer.Option("--file", help="Read this file instead of standard input.")]
Delimiter = Annotated[str | None, typer.Option("--key-delimiter", help="What stands between key and value of a line.")]
HeaderOption = Annotated[
    list[str] | None, typer.Option("--header", "-H", help="A header for every record, as name=value. Repeat it.")
]
Form = Annotated[
    str, typer.Option("--format", help="lines: a value each; json: records as tallymark consume --json prints them.")
]
Create = Annotated[
    int | None, typer.Option("--create", min=1, help="Make the topic with so many partitions, if it does not exist.")
]
PartitionOption = Annotated[int | None, typer.Option("--partition", help="Only to this partition.")]
ProfileOption = Annotated[str, typer.Option("--profile", help="no-loss or fast.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and no progress.")]
SHOWN_EVERY = 1_000
WAIT_SECONDS, AT_ONCE = 0.1, 1 << 16


class Line(NamedTuple):
    """What a line says about its record."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: datetime | None = None


def produce(
    topic: Topic,
    file: FileOption = None,
    key_delimiter: Delimiter = None,
    header: HeaderOption = None,
    form: Form = "lines",
    create: Create = None,
    partition: PartitionOption = None,
    profile: ProfileOption = "no-loss",
    brokers: BrokersOption = None,
    as_json: AsJson = False,
) -> None:
    """Write records, one for each line, and wait until all are acknowledged. Ctrl-C stops reading."""
    headers = [_header(one) for one in header or ()]
    if form not in ("lines", "json") or (form == "json" and key_delimiter):
        raise BadInput(f"--format {form} is not known; write lines or json, the latter without --key-delimiter")
    if is_pattern(topic) or key_delimiter == "":
        raise BadInput("produce writes to one topic, by its name, and a key delimiter has at least one character")
    cluster = needed_cluster(brokers, "produce")
    asked = Brokers(cluster)
    if create and not asked.topics([topic], existing_only=True):
        asked.create(topic, create)
    partitions = asked.find([topic])[topic].partitions
    if partition is not None and partition not in range(len(partitions)):
        raise BadInput(f"topic {topic} has no partition {partition}; it has {len(partitions)}, counted from 0")
    began, interrupted = time.monotonic(), False
    with _opened(file) as source, _progress(topic, quiet=as_json) as tell:
        lines = _from_json(source) if form == "json" else _from_lines(source, key_delimiter)
        with Producer(cluster.brokers, security=cluster.security, tls=cluster.tls, profile=profile) as producer:
            try:
                for number, line in enumerate(lines, 1):
                    given = [*line.headers, *headers]
                    at = line.timestamp
                    producer.send(topic, line.value, key=line.key, headers=given, partition=partition, timestamp=at)
                    if number % SHOWN_EVERY == 0:
                        tell(number)
            except KeyboardInterrupt:
                interrupted = True
            except TallymarkError as error:
                raise _after(error, producer) from error
            producer.flush()
            sent = producer.statistics().delivered
    seconds = time.monotonic() - began
    if as_json:
        print(json.dumps({"topic": topic, "records": sent, "seconds": round(seconds, 3), "interrupted": interrupted}))
    else:
        Console().print(f"{topic}: {sent:,} records acknowledged in {seconds:.1f} s", highlight=False, markup=False)
    if interrupted:
        raise typer.Exit(130)


def _after(error: TallymarkError, producer: Producer) -> TallymarkError:
    """The error, with what had been sent before it."""
    with suppress(NotDelivered):
        producer.flush()
    return type(error)(f"{error}; {producer.statistics().delivered:,} records before it were acknowledged")


def _from_lines(lines: Iterable[bytes], delimiter: str | None) -> Iterator[Line]:
    for number, line in enumerate(lines, 1):
        value = line.removesuffix(b"\n").removesuffix(b"\r")
        if delimiter is None:
            yield Line(value)
            continue
        key, found, rest = value.partition(delimiter.encode())
        if not found:
            raise BadInput(f"line {number} has no {delimiter!r} between key and value")
        yield Line(rest, key)


def _from_json(lines: Iterable[bytes]) -> Iterator[Line]:
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            headers = [(str(one["name"]), _bytes(one, "value")) for one in record.get("headers") or ()]
            when = datetime.fromisoformat(record["timestamp"]) if record.get("timestamp") else None
            yield Line(_bytes(record, "value"), _bytes(record, "key"), headers, when)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise BadInput(f"line {number} is no record as tallymark consume --json prints them") from None


def _bytes(record: Any, name: str) -> bytes | None:
    if f"{name}_base64" in record:
        return base64.b64decode(record[f"{name}_base64"], validate=True)
    text: str | None = record.get(name)
    return None if text is None else text.encode()


def _header(text: str) -> tuple[str, bytes]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise BadInput(f"-H {text} is no header; write it as name=value")
    return name, value.encode()


@contextmanager
def _opened(file: Path | None) -> Iterator[Iterable[bytes]]:
    if file is None:
        if sys.stdin.isatty():
            Console(stderr=True).print("a record for each line; Ctrl-D ends", style="dim")
        yield _as_they_come(sys.stdin.buffer)
        return
    try:
        source = file.open("rb")
    except OSError as error:
        raise BadInput(f"{file} can't be read: {error.strerror}") from None
    with source:
        yield source


def _as_they_come(source: BinaryIO) -> Iterator[bytes]:
    """Lines, waited for in short steps: a signal that goes to another thread does not end a read."""
    try:
        number = source.fileno()
    except OSError:
        yield from source
        return
    rest = b""
    while True:
        if not select.select([number], [], [], WAIT_SECONDS)[0]:
            continue
        piece = os.read(number, AT_ONCE)
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        if not piece:
            break
    if rest:
        yield rest


@contextmanager
def _progress(topic: str, *, quiet: bool) -> Iterator[Any]:
    console = Console(stderr=True, quiet=quiet)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
    )
    shown = console.is_terminal and not sys.stdin.isatty()
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        task, began = progress.add_task(topic, total=None, said=""), time.monotonic()

        def tell(number: int) -> None:
            rate = number / max(0.001, time.monotonic() - began)
            progress.update(task, said=f"{number:,} records, {rate:,.0f}/s")

        yield tell
