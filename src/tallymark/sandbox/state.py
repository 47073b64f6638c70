"""What ``tallymark sandbox`` remembers between commands: which servers are wanted, and which the keeper runs.

Two files, each with one writer: the command line writes what is wanted, the keeper writes what is.
The keeper is alive exactly as long as its lock is held: a pid alone may be somebody else's by now.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tallymark.cache import cache_dir, replace_file
from tallymark.sandbox.server import is_root
from tallymark.sandbox.unpack import programs_dir

SERVICES = ("kafka", "postgresql", "mariadb", "valkey")


@dataclass(frozen=True)
class Service:
    name: str
    state: str
    """starting, running, failed or ended."""
    since: str
    url: str | None = None
    pid: int | None = None
    log: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class State:
    services: dict[str, Service] = field(default_factory=dict)

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(service) for service in self.services.values()]


def state_dir() -> Path:
    path = cache_dir() / "sandbox"
    path.mkdir(exist_ok=True)
    return path


def data_dir() -> Path:
    """The servers' data; outside root's home when root asks, since PostgreSQL then runs as another user."""
    if not is_root():
        return state_dir() / "data"
    return programs_dir() / f"data-{hashlib.sha256(str(cache_dir()).encode()).hexdigest()[:12]}"


def lock_file() -> Path:
    return state_dir() / "keeper.lock"


def keeper_log() -> Path:
    return state_dir() / "keeper.log"


def keep_marker() -> Path:
    """Exists when the data are to outlive the servers."""
    return data_dir() / "keep"


def keeper_pid() -> int | None:
    """The pid of the living keeper, if there is one."""
    try:
        with lock_file().open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0) or None
    except FileNotFoundError:
        pass
    return None


def read_wanted() -> list[str]:
    try:
        return list(json.loads(_wanted_file().read_text()))
    except FileNotFoundError:
        return []


def write_wanted(names: list[str]) -> None:
    replace_file(_wanted_file(), json.dumps(names))


def read_state() -> State:
    try:
        services = json.loads(_state_file().read_text())
    except FileNotFoundError:
        return State()
    return State({service["name"]: Service(**service) for service in services})


def write_state(state: State) -> None:
    replace_file(_state_file(), json.dumps(state.as_json(), indent=1))


def forget() -> None:
    """Remove what described servers that no longer run."""
    for path in (_wanted_file(), _state_file()):
        path.unlink(missing_ok=True)


def _wanted_file() -> Path:
    return state_dir() / "wanted.json"


def _state_file() -> Path:
    return state_dir() / "state.json"
