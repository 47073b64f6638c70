"""The HTTP endpoint that Prometheus scrapes. Runs of one process with the same host and port share it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tallymark.core.progress import OnStep
from tallymark.errors import BadInput
from tallymark.run import rebalance_log
from tallymark.run.setup import Setup

try:
    from prometheus_client import CollectorRegistry, start_http_server

    from tallymark.run.observe.gauges import Gauges, Watch
    from tallymark.run.observe.instruments import Instruments
except ModuleNotFoundError as error:
    raise BadInput(
        f"metrics_port= needs {error.name}, which is not installed: pip install 'tallymark[metrics]'"
    ) from None

log = logging.getLogger(__name__)

_lock = threading.Lock()
_servers: dict[tuple[str, int], tuple[MetricsServer, int]] = {}
"""The running servers, and the number of users of each."""


class MetricsServer:
    """An endpoint with its own registry, open from its first run to its last."""

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
                f"metrics_port={port} on {host}: {words}; choose another port, or 0 for any free port"
            ) from None
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._http.server_port}/metrics"
        log.info("serving metrics url=%s", self.url)

    @contextmanager
    def watching(self, setup: Setup, run: str) -> Iterator[OnStep]:
        """The callback for the steps of this run; the group's gauges are refreshed inside the block."""
        with self._lock:
            watch = self._gauges.watches.get(setup.group) or Watch(setup)
            self._gauges.watches = {**self._gauges.watches, setup.group: watch}
            watch.add(run)
        rebalanced = self._instruments.rebalanced(setup.group, run)
        rebalance_log.listeners.append(rebalanced)
        try:
            yield self._instruments.watch(setup.group)
        finally:
            rebalance_log.listeners.remove(rebalanced)
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
def shared(host: str, port: int) -> Iterator[MetricsServer]:
    """The endpoint at this address; opened if this process has not opened it yet."""
    key = host, port
    with _lock:
        server, users = _servers.get(key) or (MetricsServer(host, port), 0)
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
