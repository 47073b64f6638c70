"""What the commands ``python -m bench.PART`` have in common: options, where results go, and how they end."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.harness.machine import sentence
from bench.harness.race import Outcome, say
from bench.harness.report import keep, races_as_json, replace_section, summary
from tallymark.errors import TallymarkError

RESULTS = Path(__file__).parents[1] / "results"


class Command:
    """One part of the benchmark. ``name`` is also the name of its section in a page."""

    def __init__(self, name: str, description: str | None) -> None:
        self.name = name
        self.options = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=description)
        self.options.add_argument("--write", type=Path, help=f"Replace the section {name} of this page by the report.")
        self.options.add_argument(
            "--json", type=Path, help=f"Keep all that was measured in this file; with --write: {name}.json in results."
        )

    def add_race_options(self, records: int, quick_records: int) -> None:
        """Options of a part that runs races with ``bench.harness.course``."""
        add = self.options.add_argument
        add("--quick", action="store_true", help="Few records, fewer races, and no targets.")
        add("--brokers", help="Race on this cluster instead of a sandbox; as --quick.")
        add("--store", help="Race on this database instead of a sandbox; as --quick.")
        add("--rounds", type=int, default=3, help="Rounds that count, after those that warm up.")
        add("--records", type=int, help=f"{records:,}, quick {quick_records:,}; of large ones half.")
        self._records = {False: records, True: quick_records}

    def parse_race(self) -> argparse.Namespace:
        chosen = self.parse()
        chosen.quick = bool(chosen.quick or chosen.brokers or chosen.store)
        chosen.records = chosen.records or self._records[chosen.quick]
        return chosen

    def parse(self) -> argparse.Namespace:
        chosen = self.options.parse_args()
        if chosen.write and not chosen.json:
            chosen.json = RESULTS / f"{self.name}.json"
        return chosen

    def publish(self, chosen: argparse.Namespace, report: str, results: Any) -> None:
        """Print the report, and write it and the results to the files that were chosen."""
        print(report)
        keep(chosen.json, results)
        if chosen.write:
            replace_section(chosen.write, self.name, report)

    def publish_races(self, chosen: argparse.Namespace, facts: dict[str, str], outcomes: Sequence[Outcome]) -> None:
        """Publish several races as one table."""
        self.publish(chosen, f"{sentence(facts)}\n\n{summary(outcomes)}", races_as_json(facts, outcomes))


def run(main: Callable[[], None]) -> None:
    """End with a sentence if something is wrong, and on SIGTERM as on Ctrl-C, so that everything is removed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except TallymarkError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(130)
