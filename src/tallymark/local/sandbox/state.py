"""What ``tallymark sandbox`` remembers between commands: which servers are wanted and how, and which the keeper runs.

Three files, each with one writer: the command line writes what is wanted and what it orders, the keeper what is.
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

SERVICES = ("kafka", "postgresql", "mariadb", "mysql", "valkey", "redis")

Wanted = dict[str, dict[str, Any]]
"""Servers by name, and the options they are started with."""

Orders = dict[str, tuple[str, int]]
"""For a service or a node: ``start`` or ``stop``, and a number that is another one for every order."""


@dataclass(frozen=True)
class Node:
    """One of several processes that are a service."""

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
    """What a client of these servers needs in its environment; secrets by the files they are in."""
    obeyed: dict[str, int] = field(default_factory=dict)
    """The last order that was carried out, for each that got one."""

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
    """The servers' data; outside root's home when root asks, since PostgreSQL then runs as another user."""
    if not is_root():
        return state_dir() / "data"
    return programs_dir() / f"data-{hashlib.sha256(str(cache_dir()).encode()).hexdigest()[:12]}"


def lock_file() -> Path:
    return state_dir() / "keeper.lock"


def keeper_log() -> Path:
    return state_dir() / "keeper.log"


def keep_marker() -> Path:
    """Exists when the data are to outlive the servers, and tells what they were."""
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
    """Remove what described servers that no longer run."""
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
