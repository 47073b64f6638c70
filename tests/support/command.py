"""The command ``tallymark``: in this process, which is fast, or as a process of its own, for signals and pipes."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from tallymark.cli import main

BINARY = Path(sys.executable).with_name("tallymark")
REPOSITORY = Path(__file__).parents[2]
DEADLINE = 240.0


def in_process(*arguments: str | Path, given: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, with ``given`` as its input."""
    streams = [io.TextIOWrapper(io.BytesIO(given.encode())), *(io.TextIOWrapper(io.BytesIO()) for _ in range(2))]
    _, out, err = streams
    with _streams(*streams), mock.patch.dict(os.environ, {"COLUMNS": "200", **environment}), _own_logging():
        try:
            main([str(one) for one in arguments])
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
    return subprocess.CompletedProcess(arguments, code, _text(out), _text(err))


def tallymark(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, as a process."""
    return subprocess.run(
        [BINARY, *arguments],
        env=_environment(environment),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def started(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    """Start the command as a process, and return."""
    return subprocess.Popen(
        [BINARY, *arguments],
        env=_environment(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def _streams(*streams: io.TextIOWrapper) -> Iterator[None]:
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


@contextmanager
def _own_logging() -> Iterator[None]:
    """The command configures the root logger only if it has no handlers yet."""
    root, ours = logging.getLogger(), logging.getLogger("tallymark")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200", **more}
