"""``tallymark init``: a pipeline to start from, with what is known filled in."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tallymark.cli.target import AsJson, BrokersOption
from tallymark.cli.toml.starter import Answers, starter
from tallymark.errors import BadInput, TallymarkError
from tallymark.kafka.cluster import Cluster
from tallymark.operate.tail import Look

File = Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")]
Topic = Annotated[str | None, typer.Option("--topic", "-t", help="The topic to read.")]
Store = Annotated[
    str | None,
    typer.Option("--store", envvar="TALLYMARK_STORE", help="Where rows and offsets go, such as sqlite:///shop.db."),
]
GroupOption = Annotated[str | None, typer.Option("--group", "-g", help="The name of the group.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file if it is there.")]
LOOKED_AT = 100


def init(
    path: File = Path("shop.toml"),
    brokers: BrokersOption = None,
    topic: Topic = None,
    store: Store = None,
    group: GroupOption = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented TOML file that runs as it is. With --brokers and --topic, the schema is found in records."""
    if path.exists() and not force:
        raise BadInput(f"{path} is there already; name another file, or overwrite it with --force")
    values, failed = _values(brokers, topic)
    answers = Answers(str(path), brokers, topic, store, group, tuple(values))
    try:
        path.write_text(starter(answers), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path} can't be written: {error.strerror}; check the path") from None
    if as_json:
        print(json.dumps({"file": str(path), "records": len(values), "schema": answers.schema, "warning": failed}))
        return
    out = Console(soft_wrap=True, highlight=False, markup=False)
    if failed:
        out.print(f"the schema is an example, since no record was seen: {failed}", style="yellow")
    elif values:
        out.print(f"looked at {len(values)} records of {topic}")
    out.print(f"wrote {path}; try it with: tallymark check {path}")


def _values(brokers: str | None, topic: str | None) -> tuple[list[bytes], str | None]:
    """The last values of the topic, or why there are none."""
    if brokers is None or topic is None:
        return [], None
    try:
        records = Look(Cluster(brokers), topic, f"-{LOOKED_AT}").records(follow=False)
        found = [record.value for record in islice(records, LOOKED_AT) if record.value is not None]
    except TallymarkError as error:
        return [], str(error)
    return found, None if found else f"topic {topic} is empty"
