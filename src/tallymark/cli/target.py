"""Options that several commands have, and what they mean together with a pipeline's file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tallymark.cli.load import load_setup
from tallymark.errors import BadInput
from tallymark.kafka.cluster import Cluster
from tallymark.run.setup import Setup

FILE_HELP = "Take group, store and brokers from this pipeline or app."


def _unless_file_says(context: typer.Context, parameter: typer.CallbackParam, value: str | None) -> str | None:
    """A file that is named knows its own place: the environment and tallymark.toml are for commands without one."""
    source = context.get_parameter_source(parameter.name or "")
    assumed = source is not None and source.name in ("ENVIRONMENT", "DEFAULT_MAP")
    files = [one.name for one in context.command.params if _names_pipeline(one)]
    return None if assumed and any(context.params.get(name or "") for name in files) else value


def _names_pipeline(parameter: Any) -> bool:
    return getattr(parameter, "help", None) == FILE_HELP or (
        parameter.param_type_name == "argument" and parameter.name == "file"
    )


StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="TALLYMARK_STORE",
        help="Where the ledger is, such as sqlite:///shop.db.",
        callback=_unless_file_says,
    ),
]
BrokersOption = Annotated[
    str | None,
    typer.Option(
        "--brokers",
        envvar="TALLYMARK_BROKERS",
        help="Kafka, such as localhost:9092.",
        callback=_unless_file_says,
    ),
]
FileOption = Annotated[Path | None, typer.Option("--file", "-f", help=FILE_HELP)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@dataclass(frozen=True)
class Target:
    """What a command is about. None: it was not told."""

    group: str | None
    store: str | None
    cluster: Cluster | None


def target(
    file: Path | None,
    group: str | None,
    store: str | None = None,
    brokers: str | None = None,
    *,
    any_group: bool = False,
) -> Target:
    """What the options say, and else the file. Brokers that are named by an option are entered by the environment."""
    if file is None:
        return Target(group, store, Cluster(brokers) if brokers else None)
    return target_of(load_setup(file, group, any_group=any_group), store, brokers)


def target_of(setup: Setup, store: str | None, brokers: str | None) -> Target:
    cluster = Cluster(brokers) if brokers else setup.source.cluster
    return Target(setup.group, store or setup.ledger_url, cluster)


def needed_cluster(brokers: str | None, command: str) -> Cluster:
    if brokers is None:
        raise BadInput(f"{command} needs --brokers (or TALLYMARK_BROKERS), such as localhost:9092")
    return Cluster(brokers)
