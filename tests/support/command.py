"""The real binary, as a user starts it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

BINARY = Path(sys.executable).with_name("tallymark")
REPOSITORY = Path(__file__).parents[2]
DEADLINE = 120.0


def tallymark(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [BINARY, *arguments],
        env=_environment(environment),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def started(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    """Start the command and go on."""
    return subprocess.Popen(
        [BINARY, *arguments],
        env=_environment(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.1)


def _environment(more: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200", **more}
