"""A proxy that cuts a database connection at a chosen statement, before the request or the response passes.

One thread serves all sockets: closing a socket that another thread reads would send nothing.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from sqlalchemy.engine import make_url

Lose = Literal["request", "reply"]

COMMIT = {
    "postgresql": b"\x00\x00\x00\x0bCOMMIT\x00",
    "mysql": b"\x07\x00\x00\x00\x03COMMIT",
    "redis": b"EVALSHA",
}
"""COMMIT as the drivers send it; the bare word is also part of other statements."""


@dataclass(frozen=True)
class Cut:
    """Where to cut: ``request`` never reaches the server, ``reply`` never reaches the client.

    ``after`` must pass before, on the same connection. ``meanwhile`` is called when the server's side is cut and the
    client does not know yet. ``silently`` never lets the client know: it waits for an answer that does not come.
    """

    statement: bytes
    lose: Lose
    meanwhile: Callable[[], None] = lambda: None
    after: bytes = b""
    silently: bool = False


class Proxy:
    """A proxy in front of a database; ``url`` connects through it."""

    def __init__(self, url: str) -> None:
        target = make_url(url)
        assert target.host is not None
        assert target.port is not None
        self._target = (target.host, target.port)
        self.commit = COMMIT[target.get_backend_name()]
        self.done: list[Cut] = []
        self._due: deque[Cut] = deque()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._prepared: set[socket.socket] = set()
        self._waiting: dict[socket.socket, Cut] = {}
        self._unanswered: list[socket.socket] = []
        self._silent = False
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.url = target.set(port=self._listener.getsockname()[1]).render_as_string(hide_password=False)

    def arm(self, *cuts: Cut) -> None:
        """Cut at these in order, each at the next time its statement passes."""
        self._due.extend(cuts)

    def hush(self) -> None:
        """From now on accept connections and bytes, and do not respond."""
        self._silent = True

    def altered(self, data: bytes) -> bytes:
        """The part of the server's response that the client gets."""
        return data

    def __enter__(self) -> Proxy:
        for sock in (self._listener, self._woken):
            self._selector.register(sock, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wake.send(b"x")
        self._thread.join()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                sock: socket.socket = key.fileobj  # type: ignore[assignment]
                if sock is self._woken:
                    self._close_all()
                    return
                if sock is self._listener:
                    self._accept()
                elif sock in self._peers:
                    self._pass_on(sock)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._silent:
            self._unanswered.append(client)
            return
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        self._peers |= {client: server, server: client}
        self._clients.add(client)
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(sock, selectors.EVENT_READ)

    def _pass_on(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(1 << 16)
        except OSError:
            data = b""
        peer = self._peers[sock]
        cut = self._due.popleft() if sock in self._clients and self._due and self._is_due(sock, data) else None
        if not data:
            self._close(sock, peer)
        elif self._silent:
            return
        elif sock in self._waiting:
            self._cut(self._waiting.pop(sock), client=peer, server=sock)
        elif cut is not None and cut.lose == "request":
            self._cut(cut, client=sock, server=peer)
        else:
            if cut is not None:
                self._waiting[peer] = cut
            with contextlib.suppress(OSError):
                peer.sendall(data if sock in self._clients else self.altered(data))

    def _is_due(self, client: socket.socket, data: bytes) -> bool:
        cut = self._due[0]
        if cut.after and cut.after in data:
            self._prepared.add(client)
        return bool(data) and cut.statement in data and (not cut.after or client in self._prepared)

    def _cut(self, cut: Cut, client: socket.socket, server: socket.socket) -> None:
        self._close(server)
        cut.meanwhile()
        if cut.silently:
            self._selector.unregister(client)
            self._peers.pop(client)
            self._clients.discard(client)
            self._unanswered.append(client)
        else:
            self._close(client)
        self.done.append(cut)

    def _close(self, *socks: socket.socket) -> None:
        for sock in socks:
            self._selector.unregister(sock)
            self._peers.pop(sock, None)
            self._clients.discard(sock)
            self._prepared.discard(sock)
            self._waiting.pop(sock, None)
            sock.close()

    def _close_all(self) -> None:
        self._close(*list(self._peers))
        for sock in (self._listener, self._wake, self._woken, *self._unanswered):
            sock.close()
        self._selector.close()
