"""A Kafka Connect worker on loopback, with one plugin, that takes connectors by REST.

It runs standalone: offsets of a sink are in its consumer group in either mode, and those of a source are in a file.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from bench import JARS
from tallymark.errors import TallymarkError
from tallymark.local.cache import replace_file
from tallymark.local.jars import fetch
from tallymark.local.java import java
from tallymark.local.sandbox.kafka import LOGGING
from tallymark.local.sandbox.server import HOST, Server

CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
PLUGIN = ("debezium", "jdbc")
"""Sets of jars that the plugin consists of."""
MEMORY = ("-Xms512m", "-Xmx1g")
START_SECONDS = 30.0

Config = Mapping[str, str]


class Worker(Server):
    """Its data are temporary, and nothing in them outlives a connector."""

    name = "connect"
    ready_line = "Kafka Connect started"
    start_seconds: ClassVar[float] = 120.0

    def __init__(self, brokers: str, plugin: Iterable[Path] = (), **settings: str) -> None:
        """``plugin``: the jars of the connectors, if they are not the sink. ``settings``: with ``_`` for dots."""
        super().__init__(Path(tempfile.mkdtemp(prefix="tallymark-connect-")), temporary=True)
        self.brokers = brokers
        self._plugin = list(plugin)
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def prepare(self) -> None:
        self._jars = [*fetch("connect", lock=JARS), *fetch("kafka")]
        plugin = self.directory / "plugins" / "connectors"
        shutil.rmtree(plugin, ignore_errors=True)
        plugin.mkdir(parents=True)
        for jar in self._plugin or [jar for name in PLUGIN for jar in fetch(name, lock=JARS)]:
            (plugin / jar.name).symlink_to(jar)
        settings = {
            "bootstrap.servers": self.brokers,
            "listeners": self.url,
            "plugin.path": str(plugin.parent),
            "plugin.discovery": "service_load",
            "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
            "value.converter": CONVERTER,
            "offset.storage.file.filename": str(self.offsets),
            **self._settings,
        }
        replace_file(self._properties, "".join(f"{key}={value}\n" for key, value in settings.items()))

    def command(self) -> list[str | Path]:
        classpath = os.pathsep.join(map(str, self._jars))
        # Times without a zone are UTC for all contenders.
        options = (*MEMORY, "-Duser.timezone=UTC", *LOGGING, "-cp", classpath)
        return [java(), *options, "org.apache.kafka.connect.cli.ConnectStandalone", self._properties]

    def discard(self) -> None:
        """End it at once: what its connectors have not committed is not needed."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @contextmanager
    def connector(self, name: str, config: Config) -> Iterator[None]:
        """A connector that is at work until the block ends."""
        try:
            self.add(name, config)
            yield
        finally:
            with suppress(Missing):
                self.remove(name)

    def add(self, name: str, config: Config) -> None:
        """Start a connector that is at work until the worker ends."""
        self._ask("POST", "/connectors", {"name": name, "config": dict(config)})
        self._wait_for(name)

    def remove(self, name: str) -> None:
        self._ask("DELETE", f"/connectors/{name}")

    def check(self, name: str) -> None:
        """Raise if a task of the connector has failed."""
        told = self._ask("GET", f"/connectors/{name}/status")
        for one in (told["connector"], *told["tasks"]):
            if one["state"] == "FAILED":
                reasons = [line for line in one.get("trace", "").splitlines() if not line.startswith("\tat ")]
                raise TallymarkError(f"connector {name} failed: {' '.join(reasons)[:600]}")

    @property
    def offsets(self) -> Path:
        """The file with the positions of source connectors."""
        return self.directory / "offsets"

    @property
    def _properties(self) -> Path:
        return self.directory / "worker.properties"

    def _wait_for(self, name: str) -> None:
        """Tasks are started after the request for the connector has been answered."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                told = self._ask("GET", f"/connectors/{name}/status")
            except Missing:
                told = {"tasks": []}
            if told["tasks"] and all(task["state"] != "UNASSIGNED" for task in told["tasks"]):
                return self.check(name)
            time.sleep(0.05)
        raise TallymarkError(f"connector {name} had no tasks after {START_SECONDS:.0f} s: see {self.log}")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with _direct.open(request, timeout=60) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            raise (Missing if error.code == 404 else TallymarkError)(
                f"Connect refused {method} {path}: {said}"
            ) from None
        return json.loads(text) if text else None


class Missing(TallymarkError):
    """Connect does not know it, or not yet."""


class Shared:
    """One worker for all contenders that need it: the first to come starts it, the last to leave ends it."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._users = 0

    @property
    def worker(self) -> Worker:
        if self._worker is None:
            raise TallymarkError("no Connect worker runs: start the contender before its laps")
        return self._worker

    def enter(self, brokers: str) -> None:
        if self._worker is None:
            worker = Worker(brokers)
            worker.start()
            self._worker = worker
        elif self._worker.brokers != brokers:
            raise TallymarkError(f"the Connect worker that runs reads from {self._worker.brokers}, not from {brokers}")
        self._users += 1

    def leave(self) -> None:
        self._users = max(0, self._users - 1)
        if self._worker is not None and not self._users:
            self._worker.discard()
            self._worker = None

    def keep(self, brokers: str) -> None:
        """Enter for as long as this process lives: a worker that is started anew for every turn is never warm."""
        if not self._users:
            self.enter(brokers)
            atexit.register(self.leave)


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Loopback needs no proxy, whatever the environment says."""
