"""``tallymark produce``: write the lines of a file or of standard input to a topic."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import typer

from tallymark.cli.lines import from_json, from_lines
from tallymark.cli.output import INTERRUPTED, note, say, show_json
from tallymark.cli.progress import Bars
from tallymark.cli.target import RegistryOption, Target, targeted
from tallymark.core.topics import is_pattern
from tallymark.errors import BadInput, NotDelivered, TallymarkError
from tallymark.produce.producer import Producer

if TYPE_CHECKING:
    from tallymark.operate.json_records import JsonPart

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to write to.")]
Source = Annotated[Path | None, typer.Argument(metavar="FILE", help="The file to read; standard input without it.")]
FromFile = Annotated[Path | None, typer.Option("--from-file", help="The same as FILE.")]
Delimiter = Annotated[str | None, typer.Option("--key-delimiter", help="What separates key and value of a line.")]
HeaderOption = Annotated[
    list[str] | None, typer.Option("--header", "-H", help="A header for every record, as name=value. Repeat it.")
]
Form = Annotated[
    Literal["lines", "json"],
    typer.Option("--format", help="lines: a value each; json: records as tallymark consume --json prints them."),
]
Create = Annotated[
    int | None, typer.Option("--create", min=1, help="Create the topic with so many partitions, if it does not exist.")
]
ProfileOption = Annotated[str, typer.Option("--profile", help="no-loss or fast.")]
SchemaOption = Annotated[
    str | None,
    typer.Option("--schema", metavar="FILE", help="Write values with this schema of the registry, not the latest."),
]
MessageOption = Annotated[
    str | None, typer.Option("--message", help="Write values as this Protobuf message, not as the first one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and no progress.")]
SHOWN_EVERY = 1_000
WAIT_SECONDS, AT_ONCE = 0.1, 1 << 16


@targeted(None, store=False)
def produce(
    target: Target,
    topic: Topic,
    source: Source = None,
    from_file: FromFile = None,
    key_delimiter: Delimiter = None,
    header: HeaderOption = None,
    form: Form = "lines",
    create: Create = None,
    partition: Annotated[int | None, typer.Option(help="Write to this partition.")] = None,
    profile: ProfileOption = "no-loss",
    registry: RegistryOption = None,
    schema: SchemaOption = None,
    message: MessageOption = None,
    as_json: AsJson = False,
) -> None:
    """Write a record for each line, and wait until all are acknowledged. Ctrl-C stops reading.

    With --registry, values that are JSON, and the keys of --format json, are written with the topic's schemas.
    """
    headers = [_header(one) for one in header or ()]
    if form == "json" and key_delimiter:
        raise BadInput("--format json has the keys in its records; leave out --key-delimiter")
    if is_pattern(topic) or key_delimiter == "":
        raise BadInput("produce writes to one topic, by its name, and a key delimiter has at least one character")
    if source is not None and from_file is not None:
        raise BadInput(f"{source} and --from-file {from_file} are both given; name one file")
    cluster, brokers = target.cluster, target.brokers
    if create and not brokers.topics([topic], existing_only=True):
        brokers.create(topic, create)
    partitions = brokers.find([topic])[topic].partitions
    if partition is not None and partition not in range(len(partitions)):
        raise BadInput(f"topic {topic} has no partition {partition}; it has {len(partitions)}, counted from 0")
    value_as, key_as = _parts(target, topic, registry, schema, message, quiet=as_json)
    if key_as is not None and key_delimiter:
        raise BadInput(f"the keys of topic {topic} have a schema; write them with --format json")
    began, interrupted = time.monotonic(), False
    with _opened(source or from_file) as content, Bars(quiet=as_json or sys.stdin.isatty()) as bars:
        is_json = form == "json"
        lines = from_json(content, value_as, key_as) if is_json else from_lines(content, key_delimiter, value_as)
        bar = bars.add(topic)
        with Producer(cluster.brokers, security=cluster.security, tls=cluster.tls, profile=profile) as producer:
            try:
                for number, one in enumerate(lines, 1):
                    given, at = [*one.headers, *headers], one.timestamp
                    producer.send(topic, one.value, key=one.key, headers=given, partition=partition, timestamp=at)
                    if number % SHOWN_EVERY == 0:
                        rate = number / max(0.001, time.monotonic() - began)
                        bar(number, words=f"{number:,} records, {rate:,.0f}/s")
            except KeyboardInterrupt:
                interrupted = True
            except TallymarkError as error:
                raise _after(error, producer) from error
            producer.flush()
            sent = producer.statistics().delivered
    seconds = time.monotonic() - began
    if as_json:
        facts = {"topic": topic, "records": sent, "seconds": round(seconds, 3), "interrupted": interrupted}
        schemas = {f"{one.part}_schema": one.schema.id for one in (key_as, value_as) if one is not None}
        show_json({**facts, **schemas}, indent=None)
    else:
        say(f"{topic}: {sent:,} records acknowledged in {seconds:.1f} s")
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _after(error: TallymarkError, producer: Producer) -> TallymarkError:
    """The error, with the number of records that were acknowledged before it."""
    with suppress(NotDelivered):
        producer.flush()
    return type(error)(f"{error}; {producer.statistics().delivered:,} records before it were acknowledged")


def _parts(
    target: Target, topic: str, registry: str | None, schema: str | None, message: str | None, *, quiet: bool
) -> tuple[JsonPart | None, JsonPart | None]:
    """Return what writes values and keys with the schemas of a registry; None for text."""
    schemas = target.schemas(registry)
    option = "--schema" if schema is not None else "--message" if message is not None else None
    if schemas is None:
        if option is not None:
            raise BadInput(f"{option} needs --registry, the registry that knows the schema")
        return None, None
    from tallymark.operate.json_records import json_part

    value_as, key_as = json_part(schemas, topic, "value", schema, message), json_part(schemas, topic, "key")
    if value_as is None:
        without = f"{schemas.name} has no schema for the values of topic {topic}"
        if option is not None:
            raise BadInput(f"{without}: register one, which {option} needs")
        if not quiet:
            note(f"{without}: they are written as text", "dim")
    return value_as, key_as


def _header(text: str) -> tuple[str, bytes]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise BadInput(f"-H {text} is not a header; write it as name=value")
    return name, value.encode()


@contextmanager
def _opened(file: Path | None) -> Iterator[Iterable[bytes]]:
    if file is None:
        if sys.stdin.isatty():
            note("a record for each line; Ctrl-D ends", "dim")
        yield _as_they_come(sys.stdin.buffer)
        return
    try:
        source = file.open("rb")
    except OSError as error:
        raise BadInput(f"{file} can't be read: {error.strerror}") from None
    with source:
        yield source


def _as_they_come(source: BinaryIO) -> Iterator[bytes]:
    """Lines as they arrive. It waits in short steps, because a signal to another thread does not interrupt a read."""
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
