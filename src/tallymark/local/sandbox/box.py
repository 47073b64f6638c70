"""The sandbox: servers that start on first use, and are removed with their data when the block ends."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast, overload

from tallymark.local.sandbox.cluster import KafkaCluster
from tallymark.local.sandbox.kafka import KafkaBroker
from tallymark.local.sandbox.mariadb import MariaDB
from tallymark.local.sandbox.mysql import MySQL
from tallymark.local.sandbox.postgresql import PostgreSQL
from tallymark.local.sandbox.secure import SecureKafka
from tallymark.local.sandbox.server import Server
from tallymark.local.sandbox.valkey import Redis, Valkey

if TYPE_CHECKING:
    from typing import Self

S = TypeVar("S", bound=Server | KafkaCluster)


class Sandbox:
    """Use as a context manager. Without ``directory``, data are in a temporary directory that is removed at the end.

    >>> with Sandbox() as box:
    ...     print(box.kafka().brokers, box.postgresql().url)
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.temporary = directory is None
        self.directory = Path(directory or tempfile.mkdtemp(prefix="tallymark-")).absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        # A server that refuses to run as root runs as another user, which needs access to this directory.
        self.directory.chmod(0o755)
        self.servers: dict[str, Server | KafkaCluster] = {}
        self._lock = threading.Lock()

    @overload
    def kafka(self) -> KafkaBroker: ...

    @overload
    def kafka(self, *, secure: bool, brokers: int) -> KafkaBroker | KafkaCluster: ...

    def kafka(self, *, secure: bool = False, brokers: int = 1) -> KafkaBroker | KafkaCluster:
        """Start a single broker without security by default. A sandbox has one Kafka: later calls return the first."""
        if brokers == 1:
            return self._started("kafka", SecureKafka if secure else KafkaBroker)
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
        """Return the server of that name. It is started only once, because a test may have stopped it on purpose."""
        with self._lock:
            if name not in self.servers:
                self.servers[name] = make(self.directory / name, temporary=self.temporary).start()
            return cast("S", self.servers[name])
