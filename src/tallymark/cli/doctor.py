"""``tallymark doctor``: would this cluster and this database keep what they are given?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from tallymark.cli.load import load_setup
from tallymark.cli.output import plain_table, print_table
from tallymark.cli.target import AsJson, BrokersOption, FileOption, StoreUrl
from tallymark.errors import BadInput
from tallymark.kafka.cluster import Cluster
from tallymark.kafka.membership import Group
from tallymark.operate.doctor.examine import Patient, examine
from tallymark.operate.findings import Finding

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}

Topics = Annotated[list[str] | None, typer.Option("--topic", "-t", help="A topic to look at; several are fine.")]
GroupOption = Annotated[str | None, typer.Option("--group", "-g", help="The group whose unread records matter.")]
Probe = Annotated[bool, typer.Option("--probe", help="Measure the brokers' clocks, by a topic made and deleted again.")]


def doctor(
    topic: Topics = None,
    group: GroupOption = None,
    store: StoreUrl = None,
    brokers: BrokersOption = None,
    file: FileOption = None,
    probe: Probe = False,
    as_json: AsJson = False,
) -> None:
    """Ask the cluster, the store and this machine what would lose or hold up records. Ends with 1 if anything fails."""
    patient = _patient(file, topic or (), group, store, brokers, probe)
    if patient.cluster is None and not patient.stores:
        raise BadInput("doctor needs --brokers, --store (or TALLYMARK_BROKERS, TALLYMARK_STORE), or --file")
    if as_json:
        found = examine(patient)
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        with Console(stderr=True).status("asking") as status:
            found = examine(patient, lambda whom: status.update(Text(f"asking {whom}")))
        _print(found)
    if any(finding.verdict == "fail" for finding in found):
        raise typer.Exit(1)


def _patient(
    file: Path | None, topics: Sequence[str], group: str | None, store: str | None, brokers: str | None, probe: bool
) -> Patient:
    cluster = Cluster(brokers) if brokers else None
    if file is None:
        return Patient(cluster, (store,) if store else (), group, topics, probe=probe)
    setup = load_setup(file, group)
    source, member = setup.source, setup.membership
    return Patient(
        cluster or source.cluster,
        (store,) if store else (setup.ledger_url, setup.store),
        setup.group,
        topics or source.topic_names,
        {**source.settings, **(member.settings() if isinstance(member, Group) else {})},
        probe,
        new_group=True,
    )


def _print(found: Sequence[Finding]) -> None:
    table = plain_table("CHECK", "FOUND", "WANTED", "VERDICT", "WHAT TO DO", left=5)
    for one in found:
        verdict = Text(one.verdict, STYLES[one.verdict])
        table.add_row(*map(Text, (f"{one.about}: {one.check}", one.found, one.wanted)), verdict, Text(one.advice))
    print_table(table)
    counts = Counter[str](one.verdict for one in found)
    Console().print(", ".join(f"{counts[verdict]} {verdict}" for verdict in STYLES), highlight=False)
