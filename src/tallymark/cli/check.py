"""``tallymark check``: try a pipeline on real records, and show what it would write."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tallymark.cli.output import FOUND, Rows, plain, report, say, show, show_json
from tallymark.cli.progress import Bars
from tallymark.cli.target import AsJson, Target, targeted
from tallymark.cli.values import printable
from tallymark.errors import BadInput, TallymarkError, Unreachable
from tallymark.operate.check import Sampled, Trial, try_pipeline, try_setup
from tallymark.operate.survey import up_to_date
from tallymark.spark.pipeline import Pipeline

Limit = Annotated[int, typer.Option("--limit", min=0, help="Show at most so many sample rows of each table.")]
STARTS = ("TOPIC", "PARTITION", "START:start_offset", "LOG-END-OFFSET", "TO READ:to_read", "BECAUSE")
MOST_FIELDS = 10
"""Number of fields that the schema does not name which are listed; --json lists all."""
WIDEST = 60
"""Characters of a value that are shown in a table."""


@targeted(None, store=False, brokers=False, file="argument")
def check(target: Target, limit: Limit = 10, as_json: AsJson = False) -> None:
    """Try a pipeline on the real topic and tables, and write nothing: no row, no table, no ledger.

    Shows where partitions would start, which tables and columns would be created, and a sample of rows and dead
    letters.

    Of an app, only topics, store and positions are checked. Exits with 1 if a run would be refused.
    """
    if target.file is not None and not target.file.is_file():
        raise BadInput(f"{target.file}: there is no such file")
    try:
        trials = _trials(target, limit, quiet=as_json)
    except Unreachable:
        raise
    except TallymarkError as error:
        report(str(error))
        raise typer.Exit(FOUND) from None
    if as_json:
        shown = [_as_json(trial) for trial in trials]
        show_json(shown[0] if isinstance(target.loaded, Pipeline) else shown)
        return
    for trial in trials:
        _show(trial)


def _trials(target: Target, limit: int, *, quiet: bool) -> list[Trial]:
    found = target.loaded
    with Bars(quiet=quiet) as bars, up_to_date("its store"):
        bars.add("trying")
        if isinstance(found, Pipeline):
            return [try_pipeline(found, limit)]
        return [try_setup(listener.setup) for listener in found.listeners]


def _show(trial: Trial) -> None:
    rows = [
        {
            **row,
            "to_read": max(0, start.log.stop - start.offset),
            "because": "saved position" if start.saved else "start",
        }
        for row, start in zip(_starts(trial), trial.starts, strict=True)
    ]
    show(Rows(STARTS, rows))
    for sampled in trial.tables:
        say(f"\ntable {sampled.spec.name}: {_fate(sampled)}", "bold")
        _show_rows(sampled)
    for letter in trial.letters:
        table_name = f" by table {letter.table}" if letter.table else ""
        say(f"dead{table_name}: {letter.partition} offset {letter.offset}: {printable(letter.error)}", "yellow")
    if trial.unmatched:
        fate = "count as applied, unless unmatched='dead' is set"
        say(f"records that give no row to any table: {trial.unmatched}; they {fate}", "yellow")
    if trial.drift:
        first = list(trial.drift.items())[:MOST_FIELDS]
        fields = [f"{printable(name)} in {records} record{'s' * (records != 1)}" for name, records in first]
        more = [f"and {len(trial.drift) - MOST_FIELDS} more"] if len(trial.drift) > MOST_FIELDS else []
        say(f"fields that the schema does not name: {', '.join([*fields, *more])}", "yellow")
    if trial.tables:
        dead = len(trial.letters)
        say(f"\n{trial.group} fits; sample of {trial.records} records, {dead} of them dead; nothing was written")
    else:
        say(f"\n{trial.group} fits; nothing was written")


def _fate(sampled: Sampled) -> str:
    missing = ", ".join(f"{name} {kind}" for name, kind in sampled.types.items())
    if not sampled.exists:
        return f"would be created with {missing}"
    return f"would get the columns {missing}" if missing else "exists and fits"


def _show_rows(sampled: Sampled) -> None:
    names = sampled.rows.column_names
    if sampled.rows.num_rows:
        rows = [{name: _cell(value) for name, value in row.items()} for row in sampled.rows.to_pylist()]
        show(Rows([f"{name}:{name}" for name in names], rows))
    else:
        say("no rows in the sample")
    if sampled.deletes:
        say(f"{sampled.deletes} keys would be deleted")


def _cell(value: object) -> str:
    text = "NULL" if value is None else str(_scalar(value))
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _scalar(value: object) -> object:
    return value if isinstance(value, str | int | float | None) else str(plain(value))


def _starts(trial: Trial) -> list[dict[str, Any]]:
    return [
        {
            "topic": start.partition.topic,
            "partition": start.partition.number,
            "start_offset": start.offset,
            "log_end_offset": start.log.end,
            "saved": start.saved,
        }
        for start in trial.starts
    ]


def _as_json(trial: Trial) -> dict[str, Any]:
    return {
        "group": trial.group,
        "partitions": _starts(trial),
        "records": trial.records,
        "unmatched": trial.unmatched,
        "drift": dict(trial.drift),
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
        "rows": [{name: _scalar(value) for name, value in row.items()} for row in sampled.rows.to_pylist()],
        "deletes": sampled.deletes,
    }
