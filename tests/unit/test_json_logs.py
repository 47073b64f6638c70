"""JSON logs have one line for each log record, with the facts of its message as fields."""

from __future__ import annotations

import json
import logging
import sys
from decimal import Decimal
from typing import Any

import numpy as np

from tallymark.cli.logs import JsonLines
from tallymark.core.spans import Partition, Span, Tally


def line(template: str, *values: Any, exception: bool = False) -> dict[str, Any]:
    trouble = None
    if exception:
        try:
            raise ValueError("two\nlines")
        except ValueError:
            trouble = sys.exc_info()
    record = logging.LogRecord("tallymark.run.loop", logging.WARNING, "", 0, template, values, trouble)
    text = JsonLines().format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_every_line_says_when_how_bad_who_and_what() -> None:
    found = line("nothing to tell")
    assert found.pop("time").endswith("Z")
    assert found == {"level": "warning", "logger": "tallymark.run.loop", "message": "nothing to tell"}


def test_named_values_are_fields_of_their_own_and_numbers_stay_numbers() -> None:
    found = line("rebalance=%s group=%s lost=%d seconds=%.2f: %s", "lost", "shop=1", 3, 0.125, "why")
    assert found["message"] == "rebalance=lost group=shop=1 lost=3 seconds=0.12: why"
    assert (found["rebalance"], found["group"], found["lost"], found["seconds"]) == ("lost", "shop=1", 3, 0.125)
    assert "why" not in found


def test_numbers_stay_numbers_wherever_they_are() -> None:
    tally = Tally(applied=3, dead=1)
    found = line(
        "committed tally=%s rows=%s records=%s amount=%s rate=%s span=%s",
        *(
            tally,
            {"orders": np.int64(3)},
            np.int64(4),
            Decimal("1.5"),
            float("nan"),
            Span(Partition("orders", 0), 1, 2),
        ),
    )
    assert found["tally"] == {"applied": 3, "dead": 1, "skipped": 0, "lost": 0, "absent": 0}
    assert (found["rows"], found["records"], found["amount"], found["rate"]) == ({"orders": 3}, 4, 1.5, "nan")
    assert isinstance(found["span"], str)


def test_percent_signs_and_names_that_are_taken_do_no_harm() -> None:
    found = line("100%% of group=%s message=%s level=%s", "shop", "other", 7)
    assert (found["group"], found["message"], found["level"]) == (
        "shop",
        "100% of group=shop message=other level=7",
        "warning",
    )


def test_an_exception_is_one_field() -> None:
    found = line("failed", exception=True)
    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("ValueError: two\nlines")
