"""The state that ``tallymark sandbox`` stores between commands: wanted servers, orders, and servers that run.

There are three files, each with one writer: the command line writes wanted servers and orders, the keeper the actual
state. The keeper is alive exactly as long as its lock is held; its pid alone may have been reused.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tallymark.local.cache import cache_dir, replace_file
from tallymark.local.sandbox.server import is_root
from tallymark.local.sandbox.unpack import programs_dir

SERVICES = ("kafka", "postgresql", "mariadb", "mysql", "valkey", "redis")

Wanted = dict[str, dict[str, Any]]
"""Start options of servers, by name."""

Orders = dict[str, tuple[str, int]]
"""Orders by service or node: ``start`` or ``stop``, and a number that is unique for every order."""


@dataclass(frozen=True)
class Node:
    """One of several processes of a service."""

    name: str
    state: str
    url: str
    pid: int | None
    log: str


@dataclass(frozen=True)
class Service:
    name: str
    state: str
    """starting, running, failed, ended (by itself) or stopped (on request)."""
    since: str
    url: str | None = None
    pid: int | None = None
    log: str | None = None
    error: str | None = None
    nodes: tuple[Node, ...] = ()


@dataclass(frozen=True)
class State:
    services: dict[str, Service] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables for clients of these servers. Secrets are given as file names."""
    obeyed: dict[str, int] = field(default_factory=dict)
    """The number of the last completed order, by service or node."""

    def as_json(self) -> dict[str, Any]:
        return {
            "services": [asdict(service) for service in self.services.values()],
            "environment": self.environment,
        }


def state_dir() -> Path:
    path = cache_dir() / "sandbox"
    path.mkdir(exist_ok=True)
    return path


def data_dir() -> Path:
    """Return the data directory. For root it is outside of root's home, because PostgreSQL runs as another user."""
    if not is_root():
        return state_dir() / "data"
    return programs_dir() / f"data-{hashlib.sha256(str(cache_dir()).encode()).hexdigest()[:12]}"


def lock_file() -> Path:
    return state_dir() / "keeper.lock"


def keeper_log() -> Path:
    return state_dir() / "keeper.log"


def keep_marker() -> Path:
    """Return the file that exists if data are kept after the servers stop. It holds their start options."""
    return data_dir() / "keep"


def keeper_pid() -> int | None:
    """Return the pid of the keeper if it is alive."""
    try:
        with lock_file().open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0) or None
    except FileNotFoundError:
        pass
    return None


def read_wanted() -> Wanted:
    return _read_wanted(_wanted_file())


def write_wanted(wanted: Wanted) -> None:
    replace_file(_wanted_file(), json.dumps(wanted))


def read_kept() -> Wanted:
    return _read_wanted(keep_marker())


def write_kept(wanted: Wanted) -> None:
    replace_file(keep_marker(), json.dumps(wanted))


def read_state() -> State:
    try:
        found = json.loads(_state_file().read_text())
    except FileNotFoundError:
        return State()
    services = [
        Service(**{**service, "nodes": tuple(Node(**node) for node in service["nodes"])})
        for service in found["services"]
    ]
    return State({service.name: service for service in services}, found["environment"], found["obeyed"])


def write_state(state: State) -> None:
    replace_file(_state_file(), json.dumps({**state.as_json(), "obeyed": state.obeyed}, indent=1))


def read_orders() -> Orders:
    try:
        found: dict[str, list[Any]] = json.loads(_orders_file().read_text())
    except FileNotFoundError:
        return {}
    return {name: (word, number) for name, (word, number) in found.items()}


def write_orders(orders: Orders) -> None:
    replace_file(_orders_file(), json.dumps(orders))


def forget() -> None:
    """Remove the state files of servers that no longer run."""
    for path in (_wanted_file(), _orders_file(), _state_file()):
        path.unlink(missing_ok=True)


def _read_wanted(path: Path) -> Wanted:
    try:
        found: Wanted = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found


def _wanted_file() -> Path:
    return state_dir() / "wanted.json"


def _orders_file() -> Path:
    return state_dir() / "orders.json"


def _state_file() -> Path:
    return state_dir() / "state.json"
