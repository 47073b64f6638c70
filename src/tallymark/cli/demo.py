"""``tallymark demo``: kill a pipeline several times, and count every record."""

from __future__ import annotations

import importlib.util
from typing import Annotated, Any

import typer
from rich.text import Text

from tallymark.cli.output import FOUND, Rows, say, show, show_json
from tallymark.cli.progress import Bar, Bars
from tallymark.core.spans import OUTCOMES, Tally
from tallymark.errors import BadInput
from tallymark.operate.demo.play import KILLS, Play
from tallymark.operate.demo.totals import Total, Totals, TotalsVerdict, orders_of, revenue_of
from tallymark.operate.demo.verdict import DemoVerdict

StoreUrl = Annotated[
    str | None, typer.Option("--store", help="A database for rows, totals and offsets; SQLite without it.")
]
Records = Annotated[int, typer.Option("--records", help="How many orders to produce.")]
MOST_KILLS = len(KILLS)
Kills = Annotated[int, typer.Option("--kills", min=0, max=MOST_KILLS, help="How often to kill the pipeline.")]
SHOWN = 3
"""How many wrong totals are named."""
Keep = Annotated[bool, typer.Option("--keep", help="Keep the tables; without --store in ./tallymark-demo.db.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the verdict as one JSON object.")]


def demo(
    store: StoreUrl = None,
    records: Records = 200_000,
    kills: Kills = MOST_KILLS,
    keep: Keep = False,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline on a real broker, kill it up to three times, and count what became of every record.

    Exits with 1 if a record is missing or duplicated, or a running total is wrong.
    """
    if records < 1000:
        raise BadInput(f"--records {records} is too few for a kill in the middle; take at least 1000")
    if importlib.util.find_spec("pyspark") is None:
        raise BadInput("the demo needs Spark and a Kafka broker: pip install 'tallymark[spark,sandbox]'")
    with Bars() as bars:
        verdict = Play(records, store, keep, kills).perform(Screen(records, bars))
    if as_json:
        show_json(as_object(verdict), indent=None)
    else:
        _show(verdict)
    if not verdict.holds:
        raise typer.Exit(FOUND)


def as_object(verdict: DemoVerdict) -> dict[str, Any]:
    tally = verdict.tally
    return {
        "records": verdict.total("records"),
        **{name: getattr(tally, name) for name in OUTCOMES},
        "missing": verdict.total("missing"),
        "duplicated": verdict.total("duplicated"),
        "totals": {"expected": _sums(verdict.totals.expected), "found": _sums(verdict.totals.found)},
        "wrong_totals": len(verdict.totals.wrong),
        "kills": verdict.kills,
        "seconds": round(verdict.seconds, 1),
    }


def _sums(totals: Totals) -> dict[str, int | str]:
    return {"customers": len(totals), "orders": orders_of(totals), "revenue": str(revenue_of(totals))}


def _show(verdict: DemoVerdict) -> None:
    rows = [
        {
            "partition": one.position.partition.number,
            "position": one.position.next_offset,
            **{name: getattr(one.position.tally, name) for name in OUTCOMES},
            "kafka": one.records,
            "rows": one.rows,
            "letters": one.letters,
            "verdict": _verdict(one.holds),
        }
        for one in verdict.partitions
    ]
    show(Rows(list(rows[0]), rows))
    _show_totals(verdict.totals)
    facts = as_object(verdict)
    say(
        f"\n{facts['records']:,} committed records: {facts['applied']:,} applied exactly once, "
        f"{facts['dead']:,} dead letters, {facts['missing']:,} missing, {facts['duplicated']:,} duplicated, "
        f"{facts['wrong_totals']:,} wrong totals; "
        f"killed {facts['kills']} times, {facts['seconds']} s",
        "bold green" if verdict.holds else "bold red",
    )


def _show_totals(totals: TotalsVerdict) -> None:
    say("")
    counted = {"totals of": "records in Kafka", **_sums(totals.expected), "wrong": None, "verdict": None}
    wrong, verdict = len(totals.wrong), _verdict(not totals.wrong)
    stored = {"totals of": "the table", **_sums(totals.found), "wrong": wrong, "verdict": verdict}
    show(Rows(list(stored), [counted, stored]))
    for customer in totals.wrong[:SHOWN]:
        expected, found = _described(totals.expected.get(customer)), _described(totals.found.get(customer))
        say(f"{customer}: {expected} in Kafka; {found} in the table", "red")


def _described(total: Total | None) -> str:
    if total is None:
        return "nothing"
    return f"{total.orders} orders of {total.revenue}, the largest {total.largest}, the last {total.last_status}"


def _verdict(holds: bool) -> Text:
    return Text("holds", "green") if holds else Text("broken", "red")


class Screen:
    """The progress of the demo, on stderr."""

    def __init__(self, records: int, bars: Bars) -> None:
        self._bars = bars
        self._fetch: Bar | None = None
        self._produce = bars.add("records in Kafka", total=records)
        self._account = bars.add("records accounted for", total=records)

    def note(self, said: str) -> None:
        self._bars.console.print(said, style="dim", highlight=False)

    def fetched(self, here: int, total: int) -> None:
        """Called only by the first demo on a machine."""
        if self._fetch is None:
            self._fetch = self._bars.add("jars downloaded", total=total)
            self.note("downloading Kafka and Spark's Kafka connector, once")
        self._fetch(here, total)

    def produced(self, records: int) -> None:
        self._produce(records)

    def accounted(self, tally: Tally) -> None:
        self._account(tally.applied + tally.dead)
