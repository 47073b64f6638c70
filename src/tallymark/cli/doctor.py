"""``tallymark doctor``: check the cluster, the store and this machine for what would lose or delay records."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from tallymark.cli.audit import FINDINGS, STYLES, rows_of
from tallymark.cli.output import FOUND, Rows, say, show, show_json
from tallymark.cli.progress import Bars
from tallymark.cli.target import OF_FILE, AsJson, Target, targeted
from tallymark.errors import BadInput
from tallymark.kafka.membership import Group
from tallymark.operate.doctor.examine import Patient, examine

Topics = Annotated[list[str] | None, typer.Option("--topic", "-t", help="A topic to check. Repeat it for others.")]
Probe = Annotated[bool, typer.Option("--probe", help="Measure the brokers' clocks, with a temporary topic.")]


@targeted("option")
def doctor(target: Target, topic: Topics = None, probe: Probe = False, as_json: AsJson = False) -> None:
    """Check the cluster, the store and this machine for what would lose or delay records.

    Exits with 1 if a check fails.
    """
    patient = _patient(target, topic or (), probe)
    if patient.cluster is None and not patient.stores:
        raise BadInput(f"doctor needs --brokers, --store (or TALLYMARK_BROKERS, TALLYMARK_STORE), {OF_FILE}")
    with Bars(quiet=as_json) as bars:
        found = examine(patient, bars.add("asking").say)
    if as_json:
        show_json(found)
    else:
        checks = [row | {"check": f"{row['about']}: {row['check']}"} for row in rows_of(found)]
        show(Rows(FINDINGS, checks))
        counts = Counter[str](one.verdict for one in found)
        say(", ".join(f"{counts[verdict]} {verdict}" for verdict in STYLES))
    if any(finding.verdict == "fail" for finding in found):
        raise typer.Exit(FOUND)


def _patient(target: Target, topics: tuple[str, ...] | list[str], probe: bool) -> Patient:
    cluster, store = target.optional_cluster, target.optional_store
    if target.file is None:
        group = next(iter(target.groups or ()), None)
        return Patient(cluster, (store,) if store else (), group, topics, probe=probe)
    setup = target.setup
    source, membership = setup.source, setup.membership
    return Patient(
        cluster,
        (store,) if store not in (None, setup.ledger_url) else (setup.ledger_url, setup.store),
        setup.group,
        topics or source.topic_names,
        {**source.settings, **(membership.settings() if isinstance(membership, Group) else {})},
        probe,
        new_group=True,
    )
