"""``tallymark check``: would this pipeline run, and what would it make of its records?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from tallymark.cli.load import load
from tallymark.cli.output import plain_table, print_table
from tallymark.cli.target import AsJson
from tallymark.cli.values import printable
from tallymark.operate.check import Sampled, Trial, try_pipeline, try_setup
from tallymark.operate.survey import up_to_date
from tallymark.service.app import App
from tallymark.spark.pipeline import Pipeline

File = Annotated[Path, typer.Argument(help="A TOML file, or a Python file that defines one Pipeline or App.")]
Rows = Annotated[int, typer.Option("--rows", min=0, help="How many sample rows of each table to show.")]
WIDEST = 60
"""Characters of a value that are shown in a table."""


def check(file: File, rows: Rows = 10, as_json: AsJson = False) -> None:
    """Try a pipeline on the real topic and tables, and write nothing: no row, no table, no ledger.

    Shows where partitions would start, which tables and columns would be made, and a sample of rows and dead letters.

    Of an app, only topics, store and positions are checked. Ends with 1 if anything does not fit.
    """
    found = load(file)
    with Console(stderr=True, quiet=as_json).status("trying"):
        trials = _trials(found, rows)
    if as_json:
        shown = [_as_json(trial) for trial in trials]
        print(json.dumps(shown[0] if isinstance(found, Pipeline) else shown, indent=2, ensure_ascii=False))
        return
    for trial in trials:
        _print(trial)


def _trials(found: Pipeline | App, rows: int) -> list[Trial]:
    with up_to_date("its store"):
        if isinstance(found, Pipeline):
            return [try_pipeline(found, rows)]
        return [try_setup(listener.setup) for listener in found.listeners]


def _print(trial: Trial) -> None:
    table = plain_table("TOPIC", "PARTITION", "START", "LOG-END-OFFSET", "TO READ", "BECAUSE", left=1)
    table.columns[-1].justify = "left"
    for start in trial.starts:
        why = "saved position" if start.saved else "start"
        numbers = (start.partition.number, start.offset, start.log.end, max(0, start.log.stop - start.offset))
        table.add_row(start.partition.topic, *map(str, numbers), why)
    print_table(table)
    for sampled in trial.tables:
        _say(f"\ntable {sampled.spec.name}: {_fate(sampled)}", "bold")
        _print_rows(sampled)
    for letter in trial.letters:
        table_name = f" by table {letter.table}" if letter.table else ""
        _say(f"dead{table_name}: {letter.partition} offset {letter.offset}: {printable(letter.error)}", "yellow")
    if trial.tables:
        dead = len(trial.letters)
        _say(f"\n{trial.group} fits; sample of {trial.records} records, {dead} of them dead; nothing was written")
    else:
        _say(f"\n{trial.group} fits; nothing was written")


def _fate(sampled: Sampled) -> str:
    missing = ", ".join(f"{name} {kind}" for name, kind in sampled.types.items())
    if not sampled.exists:
        return f"would be created with {missing}"
    return f"would get the columns {missing}" if missing else "is there and fits"


def _print_rows(sampled: Sampled) -> None:
    if sampled.rows.num_rows:
        table = plain_table(*sampled.rows.column_names, left=len(sampled.rows.column_names))
        for row in sampled.rows.to_pylist():
            table.add_row(*(Text(_cell(value)) for value in row.values()))
        print_table(table)
    else:
        _say("no rows in the sample")
    if sampled.deletes:
        _say(f"{sampled.deletes} keys would be deleted")


def _cell(value: object) -> str:
    text = "NULL" if value is None else printable(str(_plain(value)))
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _say(words: str, style: str | None = None) -> None:
    Console().print(words, style=style, highlight=False, markup=False, soft_wrap=True)


def _as_json(trial: Trial) -> dict[str, Any]:
    return {
        "group": trial.group,
        "partitions": [
            {
                "topic": start.partition.topic,
                "partition": start.partition.number,
                "start_offset": start.offset,
                "log_end_offset": start.log.end,
                "saved": start.saved,
            }
            for start in trial.starts
        ],
        "records": trial.records,
        "tables": [_table_as_json(sampled) for sampled in trial.tables],
        "dead_letters": [
            {
                "topic": letter.partition.topic,
                "partition": letter.partition.number,
                "offset": letter.offset,
                "table": letter.table,
                "error": letter.error,
            }
            for letter in trial.letters
        ],
    }


def _table_as_json(sampled: Sampled) -> dict[str, Any]:
    return {
        "table": sampled.spec.name,
        "exists": sampled.exists,
        "columns": {field.name: str(field.type) for field in sampled.schema},
        "would_add": list(sampled.missing),
        "sql_types": dict(sampled.types),
        "rows": [_row(row) for row in sampled.rows.to_pylist()],
        "deletes": sampled.deletes,
    }


def _row(row: Mapping[str, object]) -> dict[str, object]:
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: object) -> object:
    """What JSON has no type for, as text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime | date):
        return value.isoformat()
    return value if isinstance(value, str | int | float | None) else str(value)
