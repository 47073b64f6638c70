"""``tallymark init``: write a pipeline to start from."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from tallymark.cli.output import say, show_json
from tallymark.cli.target import AsJson, BrokersOption, RegistryOption
from tallymark.cli.toml.starter import Answers, Subject, starter
from tallymark.errors import BadInput, TallymarkError
from tallymark.formats.avro.columns import arrow_type
from tallymark.formats.framing import ID, PREFIX
from tallymark.formats.protobuf.columns import arrow_type as protobuf_type
from tallymark.formats.protobuf.messages import subject_message
from tallymark.formats.registered import subject_schema
from tallymark.formats.registry import Schemas
from tallymark.formats.registry_server import Registry
from tallymark.formats.value import Part
from tallymark.kafka.cluster import Cluster
from tallymark.operate.tail import Look

File = Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")]
Topic = Annotated[str | None, typer.Option("--topic", "-t", help="The topic to read.")]
Store = Annotated[
    str | None,
    typer.Option("--store", envvar="TALLYMARK_STORE", help="Where rows and offsets go, such as sqlite:///shop.db."),
]
GroupOption = Annotated[str | None, typer.Option("--group", "-g", help="The name of the group.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")]
LOOKED_AT = 100


def init(
    path: File = Path("shop.toml"),
    brokers: BrokersOption = None,
    topic: Topic = None,
    store: Store = None,
    group: GroupOption = None,
    registry: RegistryOption = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented TOML file that can be run. With --brokers and --topic, the schema is inferred from records.

    With --registry and --topic, keys and values are decoded by the schemas of the topic's subjects.
    """
    if path.exists() and not force:
        raise BadInput(f"{path} exists; name another file, or overwrite it with --force")
    types, framed = _registered(registry, topic) if registry and topic else ({}, False)
    values, failed = ([], None) if "value" in types else _values(brokers, topic, framed=framed)
    answers = Answers(str(path), brokers, topic, store, group, tuple(values), registry, types, framed)
    try:
        path.write_text(starter(answers), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path} can't be written: {error.strerror}; check the path") from None
    if as_json:
        facts = {"file": str(path), "records": len(values), "schema": answers.schema, "warning": failed}
        facts["registered"] = {part: str(subject.type) for part, subject in types.items()}
        show_json(facts, indent=None)
        return
    if types:
        say(f"{registry} has schemas for the {' and the '.join(f'{part}s' for part in types)} of {topic}")
    if framed:
        columns = "those of its records" if values else "an example"
        say(f"{registry} has a JSON Schema for the values of {topic}; the columns are {columns}")
    if failed:
        say(f"the schema is an example, since no record was read: {failed}", "yellow")
    elif values:
        say(f"looked at {len(values)} records of {topic}")
    say(f"wrote {path}; try it with: tallymark check {path}")


def _registered(registry: str, topic: str) -> tuple[dict[Part, Subject], bool]:
    """The values and keys whose subjects have an Avro or a Protobuf schema, and whether values have a JSON Schema."""
    schemas = Schemas.of(Registry(registry))
    parts: tuple[Part, ...] = ("value", "key")
    found: dict[Part, Subject] = {}
    framed = False
    for part in parts:
        name = f"{topic}-{part}"
        schema = schemas.find(name)
        if schema is None:
            continue
        if schema.kind == "AVRO":
            found[part] = Subject("avro", arrow_type(subject_schema(name, schema)))
        elif schema.kind == "PROTOBUF":
            found[part] = Subject("protobuf", protobuf_type(subject_message(name, schema)))
        else:
            framed = framed or part == "value"
    return found, framed


def _values(brokers: str | None, topic: str | None, *, framed: bool) -> tuple[list[bytes], str | None]:
    """The last values of the topic, or the reason why there are none. An id of a schema before them is left out."""
    if brokers is None or topic is None:
        return [], None
    try:
        records = Look(Cluster(brokers), topic, f"-{LOOKED_AT}").records(follow=False)
        found = [record.value for record in islice(records, LOOKED_AT) if record.value is not None]
    except TallymarkError as error:
        return [], str(error)
    if framed:
        found = [value[PREFIX:] for value in found if value[:1] == bytes([ID])]
        return found, None if found else f"topic {topic} has no values behind the id of a schema"
    return found, None if found else f"topic {topic} is empty"
