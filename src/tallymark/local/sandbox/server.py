"""The base class of sandbox servers: a process with a log and a port, a start that waits, and a reliable stop."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tallymark.errors import SandboxError

if TYPE_CHECKING:
    from typing import Self

HOST = "127.0.0.1"
GUARD = Path(__file__).with_name("guard.py")
QUOTED_LINES = 8
_given: set[int] = set()
"""Ports assigned to servers that may not have started yet."""


class Server(ABC):
    """A server on loopback. It keeps its data and its port across restarts."""

    name: ClassVar[str]
    ready_line: ClassVar[str]
    """A text in the log that shows that the server accepts clients."""
    start_seconds: ClassVar[float] = 60.0
    stop_seconds: ClassVar[float] = 20.0
    stop_signal: ClassVar[int] = signal.SIGTERM
    leaves_traces: ClassVar[bool] = False
    """Whether a killed server leaves resources outside of its directory, such as shared memory."""
    user: str | None = None
    group: str | None = None

    def __init__(self, directory: Path, *, temporary: bool = False) -> None:
        """``temporary``: the data are removed if this process dies before it stops the server."""
        self.directory = directory.absolute()
        self.temporary = temporary
        self.log = self.directory / f"{self.name}.log"
        self.port = free_port()
        self.pid: int | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def prepare(self) -> None:
        """Prepare binaries, data directory and settings for ``command()``. Called before every start."""

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """Return the command of the server. It must run in the foreground and log to standard output or error."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The address in the form that clients accept."""

    @property
    def running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables for tallymark to connect to this server. Secrets are given as file names."""
        return {}

    def start(self) -> Self:
        """Start, and return when the server accepts clients."""
        if self.running:
            return self
        try:
            self.launch()
            self.wait()
        except BaseException:
            self.kill()
            raise
        return self

    def launch(self) -> None:
        """Start without waiting, for servers that depend on each other. Call ``wait()`` afterwards."""
        if self.running:
            return
        self._wait_until_gone(self.stop_seconds)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.prepare()
        self._launch()

    def wait(self) -> None:
        """Return when the server accepts clients."""
        self._wait_until_ready()

    def stop(self) -> None:
        """Ask the server to stop; kill it if it takes too long."""
        self._order(b"T")
        try:
            self._wait_until_gone(self.stop_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the server, as in a crash."""
        self._order(b"K")
        try:
            self._wait_until_gone(self.stop_seconds)
        except subprocess.TimeoutExpired:
            raise SandboxError(f"{self.name} (pid {self.pid}) did not end after SIGKILL: see {self.log}") from None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def environment(self) -> dict[str, str]:
        return {}

    def _launch(self) -> None:
        self.log.touch()
        self._log_start = self.log.stat().st_size
        spec = {
            "command": [str(word) for word in self.command()],
            "directory": str(self.directory),
            "environment": self.environment(),
            "group": self.group,
            "log": str(self.log),
            "stop_signal": int(self.stop_signal),
            "temporary": self.temporary,
            "user": self.user,
        }
        with self.log.open("ab") as errors:
            self._guard = subprocess.Popen(
                [sys.executable, "-S", "-E", "-s", GUARD, json.dumps(spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert self._guard.stdout is not None
        pid = self._guard.stdout.readline()
        if not pid:
            self._guard.wait()
            raise self._failure("could not be run")
        self.pid = int(pid)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.start_seconds
        while self.ready_line not in self._logged():
            if not self.running:
                raise self._failure("ended while it started")
            if time.monotonic() > deadline:
                raise self._failure(f"was not ready after {self.start_seconds:.0f} s")
            time.sleep(0.02)

    def _logged(self) -> str:
        """Return the log since the latest start."""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def _failure(self, what: str) -> SandboxError:
        return SandboxError(f"{self.name} {what}; the end of its log {self.log} is:\n{_end_of(self._logged())}")

    def _order(self, order: bytes) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.write(order)
                self._guard.stdin.flush()

    def _wait_until_gone(self, seconds: float) -> None:
        if self._guard is None:
            return
        self._guard.wait(seconds)
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._guard, self.pid = None, None


def free_port() -> int:
    """Return a free port below the ephemeral range.

    In the ephemeral range, a client that retries while its server is down can connect to itself and occupy the port.
    """
    for port in random.sample(range(15_000, 32_000), 200):
        if port in _given:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                _given.add(port)
                return port
    raise SandboxError(f"no free port on {HOST} between 15000 and 32000: stop some servers")


def run(*command: str | Path, user: str | None = None, group: str | None = None, cwd: Path | None = None) -> str:
    """Run a program and return its output. If it fails, the error quotes the output."""
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=cwd,
        user=user,
        group=group,
        extra_groups=[] if user else None,
        check=False,
    )
    if done.returncode:
        output = _end_of(done.stdout + done.stderr)
        raise SandboxError(f"{Path(command[0]).name} failed with status {done.returncode}:\n{output}")
    return done.stdout


def _end_of(text: str) -> str:
    """Return the last lines, without Java's stack frames, which would displace the reason."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return "\n".join(lines[-QUOTED_LINES:])


def is_root() -> bool:
    return os.geteuid() == 0
