"""The endpoint that Prometheus scrapes. Runs of one process that name the same port share it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tallymark import share
from tallymark.errors import BadInput
from tallymark.setup import Setup
from tallymark.steps import OnStep

try:
    from prometheus_client import CollectorRegistry, start_http_server

    from tallymark.observe.gauges import Gauges, Watch
    from tallymark.observe.instruments import Instruments
except ModuleNotFoundError as error:
    raise BadInput(f"metrics_port= needs {error.name}, which is missing: pip install 'tallymark[metrics]'") from None

log = logging.getLogger(__name__)

_lock = threading.Lock()
_servers: dict[tuple[str, int], tuple[Server, int]] = {}
"""Those that run, and how many use each."""


class Server:
    """An endpoint with a registry of its own, from the first run that uses it to the last."""

    def __init__(self, host: str, port: int) -> None:
        registry = CollectorRegistry()
        self._instruments = Instruments(registry)
        self._gauges = Gauges()
        registry.register(self._gauges)
        self._lock = threading.Lock()
        try:
            self._http, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            words = error.strerror or error
            raise BadInput(
                f"metrics_port={port} on {host}: {words}; take another port, or 0 for any that is free"
            ) from None
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._http.server_port}/metrics"
        log.info("serving metrics url=%s", self.url)

    @contextmanager
    def watching(self, setup: Setup, run: str) -> Iterator[OnStep]:
        """What to call at the steps of this run; its group is looked after meanwhile."""
        with self._lock:
            watch = self._gauges.watches.get(setup.group) or Watch(setup)
            self._gauges.watches = {**self._gauges.watches, setup.group: watch}
            watch.add(run)
        rebalanced = self._instruments.rebalanced(setup.group, run)
        share.told.append(rebalanced)
        try:
            yield self._instruments.watch(setup.group)
        finally:
            share.told.remove(rebalanced)
            with self._lock:
                over = watch.remove(run)
                if over:
                    self._gauges.watches = {
                        group: one for group, one in self._gauges.watches.items() if one is not watch
                    }
            if over:
                watch.end()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@contextmanager
def shared(host: str, port: int) -> Iterator[Server]:
    """The endpoint at this address, which somebody in this process may have opened already."""
    key = host, port
    with _lock:
        server, users = _servers.get(key) or (Server(host, port), 0)
        _servers[key] = server, users + 1
    try:
        yield server
    finally:
        with _lock:
            _, users = _servers.pop(key)
            if users > 1:
                _servers[key] = server, users - 1
            else:
                server.close()
