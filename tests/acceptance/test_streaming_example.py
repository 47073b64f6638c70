"""The example of a streaming query runs unchanged on real servers. It has its own assertions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.faults
def test_the_example_of_a_streaming_query_survives_the_failure_that_it_shows(
    brokers: str, database: Callable[[str], str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "examples" / "streaming.py"],
        env={**os.environ, "TALLYMARK_BROKERS": brokers, "TALLYMARK_STORE": database("postgresql")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "the query ended: True\nrows after the failure: [(10,)]\nrows after the repetition: [(10,)]\n" in done.stdout
    assert "orders of digit 3: [(2,), (3,)]" in done.stdout
