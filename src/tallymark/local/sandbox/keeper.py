"""The process that owns the servers of ``tallymark sandbox up`` after that command has returned.

It starts the wanted servers, stops the others, writes their state to a file, and stops all servers when it ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NoReturn, TextIO

from tallymark.errors import TallymarkError
from tallymark.local.sandbox.box import Sandbox
from tallymark.local.sandbox.cluster import KafkaCluster
from tallymark.local.sandbox.server import Server
from tallymark.local.sandbox.state import (
    Node,
    Service,
    State,
    data_dir,
    lock_file,
    read_orders,
    read_wanted,
    write_state,
)

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
LOCK_SECONDS = 2.0


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    lock = _take_lock()
    if lock is None:
        log.error("another keeper holds the lock path=%s", lock_file())
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    with lock, Sandbox(data_dir()) as box:
        keeper = Keeper(box)
        while True:
            keeper.look()
            time.sleep(LOOK_SECONDS)


class Keeper:
    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self.services: dict[str, Service] = {}
        self.obeyed: dict[str, int] = {}
        self._written: State | None = None

    def look(self) -> None:
        """Run one round: start and stop servers as wanted."""
        wanted = read_wanted()
        for name in [name for name in self.services if name not in wanted]:
            self._drop(name)
        for name, options in wanted.items():
            if name not in self.services:
                self._start(name, options)
        for name, (word, number) in read_orders().items():
            if self.obeyed.get(name) != number:
                self._obey(name, word)
                self.obeyed[name] = number
        for name, service in self.services.items():
            if service.state == "running":
                self.services[name] = seen(service, self.box.servers[name])
        self._write()

    def _start(self, name: str, options: dict[str, Any]) -> None:
        self._bring_up(name, lambda: getattr(self.box, name)(**options))

    def _bring_up(self, name: str, start: Callable[[], Server | KafkaCluster]) -> None:
        self.services[name] = Service(name, "starting", _now())
        self._write()
        try:
            server = start()
        except TallymarkError as error:
            log.error("server did not start name=%s error=%s", name, error)
            self.services[name] = Service(name, "failed", _now(), error=str(error))
        else:
            log.info("server started name=%s url=%s pid=%s", name, server.url, server.pid)
            service = Service(name, "running", _now(), server.url, server.pid, str(server.log))
            self.services[name] = seen(service, server)

    def _obey(self, name: str, word: str) -> None:
        """Stop or start a service or a node. Its data and its address stay the same."""
        service, server = name, self.box.servers.get(name)
        node = None
        for of, cluster in self.box.servers.items():
            if isinstance(cluster, KafkaCluster) and name in (
                nodes := {member.directory.name: member for member in cluster.nodes}
            ):
                service, server, node = of, cluster, nodes[name]
        if server is None:
            # Its first start failed: the next round creates it again.
            self.services.pop(name, None)
        elif word == "stop":
            (node or server).stop()
            if not server.running:
                now = Service(service, "stopped", _now(), server.url, None, str(server.log))
                self.services[service] = replace(now, nodes=_nodes(server))
        elif node is not None:
            self._bring_up(service, lambda: (node.start(), server)[1])
        else:
            self._bring_up(service, server.start)
        log.info("order executed name=%s order=%s", name, word)

    def _drop(self, name: str) -> None:
        del self.services[name]
        if server := self.box.servers.pop(name, None):
            server.stop()
        log.info("server removed name=%s", name)

    def _write(self) -> None:
        environment = {key: value for server in self.box.servers.values() for key, value in server.variables.items()}
        now = State(dict(self.services), environment, dict(self.obeyed))
        if now != self._written:
            write_state(now)
            self._written = now


def seen(service: Service, server: Server | KafkaCluster) -> Service:
    """Return the service with its present state."""
    nodes = _nodes(server)
    if server.running:
        return replace(service, nodes=nodes)
    return replace(service, state="ended", since=_now(), pid=None, nodes=nodes)


def _nodes(server: Server | KafkaCluster) -> tuple[Node, ...]:
    return tuple(map(_seen_node, server.nodes)) if isinstance(server, KafkaCluster) else ()


def _seen_node(node: Server) -> Node:
    state, pid = ("running", node.pid) if node.running else ("ended", None)
    return Node(node.directory.name, state, node.url, pid, str(node.log))


def _take_lock() -> TextIO | None:
    """Take the lock and write this pid to it. Retries, because ``keeper_pid()`` holds the lock for a moment."""
    file = lock_file().open("a+")
    deadline = time.monotonic() + LOCK_SECONDS
    while time.monotonic() < deadline:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            return file
    file.close()
    return None


def _leave(*_: object) -> NoReturn:
    """Exit, even during a start. Further signals are ignored, so that they do not interrupt the cleanup."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    raise SystemExit(0)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main())
