"""Options that several commands have, and what they mean together with a pipeline's file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tallymark.cli.load import load_setup
from tallymark.cluster import Cluster
from tallymark.errors import BadInput

StoreUrl = Annotated[
    str | None,
    typer.Option("--store", envvar="TALLYMARK_STORE", help="Where the ledger is, such as sqlite:///shop.db."),
]
BrokersOption = Annotated[
    str | None, typer.Option("--brokers", envvar="TALLYMARK_BROKERS", help="Kafka, such as localhost:9092.")
]
FileOption = Annotated[
    Path | None, typer.Option("--file", "-f", help="Take group, store and brokers from this pipeline or app.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@dataclass(frozen=True)
class Target:
    """What a command is about. None: it was not told."""

    group: str | None
    store: str | None
    cluster: Cluster | None


def target(file: Path | None, group: str | None, store: str | None = None, brokers: str | None = None) -> Target:
    """What the options say, and else the file. Brokers that are named by an option are entered by the environment."""
    cluster = Cluster(brokers) if brokers else None
    if file is None:
        return Target(group, store, cluster)
    setup = load_setup(file, group)
    return Target(setup.group, store or setup.ledger_url, cluster or setup.source.cluster)


def needed_cluster(brokers: str | None, command: str) -> Cluster:
    if brokers is None:
        raise BadInput(f"{command} needs --brokers (or TALLYMARK_BROKERS), such as localhost:9092")
    return Cluster(brokers)
