"""Runs the real binary as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from tallymark.cli.main import app
from tallymark.errors import TallymarkError

BINARY = Path(sys.executable).with_name("tallymark")
REPOSITORY = Path(__file__).parents[2]
DEADLINE = 240.0


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


def in_process(*arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run the same command in this process, for cases that are similar to others."""
    result = CliRunner().invoke(app, [str(one) for one in arguments], input=given)
    if isinstance(result.exception, TallymarkError):
        return subprocess.CompletedProcess(arguments, 1, result.stdout, f"error: {result.exception}\n")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)


def started(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    """Start the command without waiting for it."""
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
