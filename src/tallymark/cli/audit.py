"""``tallymark audit``: check that the ledger of a group adds up, and that its tables hold what Kafka says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from tallymark.cli.output import FOUND, Rows, say, show, show_json
from tallymark.cli.progress import Bars
from tallymark.cli.target import AsJson, Target, targeted
from tallymark.errors import BadInput
from tallymark.operate.audit.compare import BAD, GOOD, Compared
from tallymark.operate.audit.deep import Comparison, compare
from tallymark.operate.audit.examine import examine
from tallymark.operate.findings import Finding
from tallymark.spark.pipeline import Pipeline

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
FINDINGS = ("CHECK", "FOUND", "WANTED", "VERDICT", "WHAT TO DO:advice")
LISTED = 20
"""Number of differences of a table that are printed; --json has more."""

Deep = Annotated[
    bool,
    typer.Option("--deep", help="Read Kafka again with Spark, and compare with tables that have provenance=True."),
]


@targeted()
def audit(target: Target, deep: Deep = False, as_json: AsJson = False) -> None:
    """Check that the ledger of a group adds up, for each partition. Exits with 1 if it does not.

    The group may run meanwhile. --deep needs the --file of the pipeline, and also checks that every table has each
    record as often as its function makes rows of it, and no other rows.
    """
    pipeline = _pipeline(target) if deep else None
    group, brokers = target.group, target.optional_brokers
    with target.ledger() as store:
        checks = examine(store, group, brokers)
    compared = _compared(pipeline, quiet=as_json) if pipeline else None
    checks += compared.checks if compared else []
    broken = sum(one.verdict != "ok" for one in checks)
    wrong = broken + (compared.wrong if compared else 0)
    if as_json:
        facts: dict[str, Any] = {"group": group, "ok": not wrong, "checks": checks}
        if compared is not None:
            facts |= {"tables": [_table(one) for one in compared.tables], "left_out": compared.left_out}
        show_json(facts)
    else:
        show(Rows(("PARTITION:about", *FINDINGS), rows_of(checks)))
        words = f"{broken} of {len(checks)} checks are broken" if broken else f"all {len(checks)} checks hold"
        if compared is not None:
            _show_tables(compared)
            words += f", {compared.wrong} differences" if compared.wrong else ", no differences"
        say(f"{group}: {words}")
        if brokers is None:
            say("whether Kafka still holds what is unread: add --brokers", "dim")
    if wrong:
        raise typer.Exit(FOUND)


def rows_of(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Findings as a table, with coloured verdicts."""
    return [asdict(one) | {"verdict": Text(one.verdict, STYLES[one.verdict])} for one in findings]


def _pipeline(target: Target) -> Pipeline:
    """Functions, tables and ledger must be of one group and in one store."""
    if target.file is None:
        raise BadInput("audit --deep runs the functions of a pipeline: name its file with --file")
    found = target.loaded
    if not isinstance(found, Pipeline):
        raise BadInput(f"{target.file}: audit --deep needs a pipeline; it can't know what handlers write to tables")
    if target.setup.ledger_url != target.store:
        raise BadInput(
            f"{target.file}: audit --deep compares with the store of the file, which is another; leave out --store"
        )
    return found


def _compared(pipeline: Pipeline, *, quiet: bool) -> Comparison:
    with Bars(quiet=quiet) as bars:
        return compare(pipeline, on_progress=bars.add("offsets compared", words="starting Spark"))


def _table(one: Compared) -> dict[str, Any]:
    partitions = [
        {"topic": partition.topic, "partition": partition.number, **{kind: count[kind] for kind in (*GOOD, *BAD)}}
        for partition, count in sorted(one.counts.items())
    ]
    return {
        "table": one.spec.name,
        "rows_of_unknown_origin": one.origins.unknown,
        "rows_of_other_partitions": one.origins.others,
        "missing_keys_not_looked_for": one.unsure,
        "partitions": partitions,
        "differences": one.bad,
    }


def _show_tables(compared: Comparison) -> None:
    counts = [(one, partition, count) for one in compared.tables for partition, count in sorted(one.counts.items())]
    kinds = [*(kind for kind in GOOD if any(count[kind] for *_, count in counts)), *BAD]
    rows = [
        {"table": one.spec.name, "partition": str(partition), **{kind: count[kind] for kind in kinds}}
        for one, partition, count in counts
    ]
    styles = ["red" if any(count[kind] for kind in BAD) else "" for *_, count in counts]
    show(Rows(("TABLE", "PARTITION", *(kind.upper() for kind in kinds)), rows, styles=styles))
    for one in compared.tables:
        for words in _sentences(one):
            say(words)
    for name, why in compared.left_out.items():
        say(f"table {name} was left out: {why}")


def _sentences(one: Compared) -> list[str]:
    name = one.spec.name
    found = []
    for bad in one.bad[:LISTED]:
        wanted = "" if bad.wanted is None else f", {bad.wanted} wanted"
        found.append(f"table {name}: {bad.partition} offset {bad.offset} is {bad.kind}: {bad.rows} rows{wanted}")
    if one.wrong > LISTED:
        found.append(f"table {name}: {one.wrong} differences in all; --json lists up to 1,000 of each table")
    if one.origins.unknown:
        found.append(f"table {name}: {one.origins.unknown} rows are from before provenance=True, and not compared")
    if one.origins.others:
        found.append(f"table {name}: {one.origins.others} rows are of partitions this group does not read")
    if one.unsure:
        found.append(f"table {name}: missing keys were not looked for, since {one.unsure} and may hold them")
    return found
