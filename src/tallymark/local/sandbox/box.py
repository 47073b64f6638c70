"""The sandbox: servers that start on first use and are gone with everything they wrote when the block ends."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast, overload

from tallymark.sandbox.cluster import KafkaCluster
from tallymark.sandbox.kafka import Kafka
from tallymark.sandbox.mariadb import MariaDB
from tallymark.sandbox.mysql import MySQL
from tallymark.sandbox.postgresql import PostgreSQL
from tallymark.sandbox.secure import SecureKafka
from tallymark.sandbox.server import Server
from tallymark.sandbox.valkey import Redis, Valkey

if TYPE_CHECKING:
    from typing_extensions import Self

S = TypeVar("S", bound=Server | KafkaCluster)


class Sandbox:
    """Use as a context manager; ``directory=None`` means a temporary one that is removed at the end.

    >>> with Sandbox() as box:
    ...     print(box.kafka().brokers, box.postgresql().url)
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.temporary = directory is None
        self.directory = Path(directory or tempfile.mkdtemp(prefix="tallymark-")).absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        # A server that refuses root runs as another user, who has to get in here.
        self.directory.chmod(0o755)
        self.servers: dict[str, Server | KafkaCluster] = {}
        self._lock = threading.Lock()

    @overload
    def kafka(self) -> Kafka: ...

    @overload
    def kafka(self, *, secure: bool, brokers: int) -> Kafka | KafkaCluster: ...

    def kafka(self, *, secure: bool = False, brokers: int = 1) -> Kafka | KafkaCluster:
        """One open broker unless told otherwise; a sandbox has one Kafka, of the kind that was asked for first."""
        if brokers == 1:
            return self._started("kafka", SecureKafka if secure else Kafka)
        return self._started("kafka", partial(KafkaCluster, brokers=brokers, secure=secure))

    def postgresql(self) -> PostgreSQL:
        return self._started("postgresql", PostgreSQL)

    def mariadb(self) -> MariaDB:
        return self._started("mariadb", MariaDB)

    def mysql(self) -> MySQL:
        return self._started("mysql", MySQL)

    def valkey(self) -> Valkey:
        return self._started("valkey", Valkey)

    def redis(self) -> Redis:
        return self._started("redis", Redis)

    def close(self) -> None:
        """Stop all servers, and remove their data if the directory is temporary."""
        with self._lock:
            for server in reversed(list(self.servers.values())):
                if self.temporary and not server.leaves_traces:
                    server.kill()
                else:
                    server.stop()
            self.servers.clear()
        if self.temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self, name: str, make: Callable[..., S]) -> S:
        """The one server of that name. It is started once: a test that stopped it wants it stopped."""
        with self._lock:
            if name not in self.servers:
                self.servers[name] = make(self.directory / name, temporary=self.temporary).start()
            return cast("S", self.servers[name])
