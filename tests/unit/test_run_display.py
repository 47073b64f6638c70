"""Progress of a run without a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tallymark.cli.progress import Bars, RunBar
from tallymark.core.progress import Progress, Step
from tallymark.core.spans import Tally


def test_through_a_pipe_progress_is_a_line_in_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tallymark.cli.progress.time.monotonic", lambda: now)
    said = io.StringIO()
    with Bars(console=Console(file=said, width=200)) as bars:
        display = RunBar("shop", bars)
        for _ in range(50):
            display(Step.DONE, Progress("batch", 10, 90, tally=Tally(applied=10)))
            now += 0.5

    lines = said.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == ["shop: 10 applied", "shop: 210 applied", "shop: 410 applied"]
