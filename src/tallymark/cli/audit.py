"""``tallymark audit``: are the books of a group right, and do its tables hold what Kafka says?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from tallymark.cli.load import load, setup_of
from tallymark.cli.output import plain_table, print_table
from tallymark.cli.target import AsJson, BrokersOption, FileOption, StoreUrl, Target, target, target_of
from tallymark.errors import BadInput
from tallymark.kafka.brokers import Brokers
from tallymark.operate.audit.compare import BAD, GOOD, Compared
from tallymark.operate.audit.deep import Comparison, compare
from tallymark.operate.audit.examine import examine
from tallymark.operate.findings import Finding
from tallymark.operate.survey import ledger
from tallymark.spark.pipeline import Pipeline

STYLES = {"ok": "green", "fail": "bold red"}
LISTED = 20
"""Bad offsets of a table that are printed; --json has more."""

Group = Annotated[str | None, typer.Argument(help="The group; not needed with --file.")]
Deep = Annotated[
    bool,
    typer.Option("--deep", help="Read Kafka again with Spark, and compare with tables that have provenance=True."),
]


def audit(
    group: Group = None,
    deep: Deep = False,
    store: StoreUrl = None,
    brokers: BrokersOption = None,
    file: FileOption = None,
    as_json: AsJson = False,
) -> None:
    """Check that the ledger of a group adds up, partition by partition. Ends with 1 if anything does not.

    The group may be running. With --deep and the pipeline's --file also whether every record is in every table as
    often as the table's function makes rows of it, and no other.
    """
    pipeline = _pipeline(file, group, store) if deep else None
    of = target_of(pipeline.setup, store, brokers) if pipeline else target(file, group, store, brokers)
    if of.group is None or of.store is None:
        raise BadInput("audit needs a group and --store (or TALLYMARK_STORE), or --file with a pipeline")
    checks = _examined(of.group, of)
    compared = _compared(pipeline, quiet=as_json) if pipeline else None
    checks += compared.checks if compared else []
    wrong = sum(one.verdict != "ok" for one in checks) + (compared.wrong if compared else 0)
    if as_json:
        print(json.dumps(_as_json(of.group, wrong, checks, compared), indent=2))
    else:
        _print(of.group, checks, compared, asked=of.cluster is not None)
    if wrong:
        raise typer.Exit(1)


def _pipeline(file: Path | None, group: str | None, store: str | None) -> Pipeline:
    """The functions, the tables and the ledger have to be of one group and in one store."""
    if file is None:
        raise BadInput("audit --deep runs the functions of a pipeline: name its file with --file")
    found = load(file)
    if not isinstance(found, Pipeline):
        raise BadInput(f"{file}: audit --deep needs a pipeline; what handlers write to tables is their own affair")
    setup_of(found, file, group)
    if store not in (None, found.setup.ledger_url):
        raise BadInput(f"{file}: audit --deep compares with the store of the file, which is another; leave out --store")
    return found


def _examined(group: str, of: Target) -> list[Finding]:
    assert of.store is not None
    with ledger(of.store, group) as store:
        return examine(store, group, Brokers(of.cluster) if of.cluster else None)


def _compared(pipeline: Pipeline, *, quiet: bool) -> Comparison:
    with Console(stderr=True, quiet=quiet).status("starting Spark") as status:
        return compare(
            pipeline, on_progress=lambda done, total: status.update(f"compared {done:,} of {total:,} offsets")
        )


def _as_json(group: str, wrong: int, checks: Sequence[Finding], compared: Comparison | None) -> dict[str, Any]:
    found: dict[str, Any] = {"group": group, "ok": not wrong, "checks": [asdict(one) for one in checks]}
    if compared is not None:
        found |= {"tables": [_table(one) for one in compared.tables], "left_out": compared.left_out}
    return found


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
        "differences": [asdict(difference) for difference in one.bad],
    }


def _print(group: str, checks: Sequence[Finding], compared: Comparison | None, *, asked: bool) -> None:
    table = plain_table("PARTITION", "CHECK", "FOUND", "WANTED", "VERDICT", "WHAT TO DO", left=6)
    for one in checks:
        verdict = Text(one.verdict, STYLES[one.verdict])
        table.add_row(*map(Text, (one.about, one.check, one.found, one.wanted)), verdict, Text(one.advice))
    print_table(table)
    out, broken = Console(soft_wrap=True), sum(one.verdict != "ok" for one in checks)
    if compared is not None:
        _print_tables(out, compared)
    said = f"{group}: " + (
        f"{broken} of {len(checks)} checks are broken" if broken else f"all {len(checks)} checks hold"
    )
    if compared is not None:
        said += f", {compared.wrong} differences" if compared.wrong else ", no differences"
    out.print(said, highlight=False, markup=False)
    if not asked:
        out.print("whether Kafka still holds what is unread: add --brokers", style="dim")


def _print_tables(out: Console, compared: Comparison) -> None:
    kinds = [kind for kind in GOOD if any(count[kind] for one in compared.tables for count in one.counts.values())]
    table = plain_table("TABLE", "PARTITION", *(kind.upper() for kind in (*kinds, *BAD)), left=2)
    for one in compared.tables:
        for partition, count in sorted(one.counts.items()):
            style = "red" if any(count[kind] for kind in BAD) else None
            table.add_row(one.spec.name, str(partition), *(str(count[kind]) for kind in (*kinds, *BAD)), style=style)
    print_table(table)
    for one in compared.tables:
        for line in _sentences(one):
            out.print(line, highlight=False, markup=False)
    for name, why in compared.left_out.items():
        out.print(f"table {name} was left out: {why}", highlight=False, markup=False)


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
