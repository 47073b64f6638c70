"""Servers with TLS and passwords. Their certificate names ``localhost``, not 127.0.0.1."""

from __future__ import annotations

import contextlib
import selectors
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from tallymark.local.sandbox.mariadb import MariaDB
from tallymark.local.sandbox.postgresql import PostgreSQL
from tallymark.local.sandbox.server import Server
from tests.support import databases
from tests.support.redis import OwnValkey

PASSWORD = "Canary pass/word@7f3a é€"
USER, WITH_CERTIFICATE = "shop", "guarded"
HBA = (
    "hostssl all guarded 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n"
    "hostssl all shop 127.0.0.1/32 scram-sha-256\n"
    "host all postgres 127.0.0.1/32 trust\n"
)


@dataclass(frozen=True)
class Files:
    """PEM files of an authority, and of the server and client certificates that it signed."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path

    @classmethod
    def make(cls, folder: Path) -> Files:
        folder.mkdir(mode=0o755, parents=True)
        made = cls(*(folder / f"{name}.pem" for name in ("ca", "server", "server-key", "client", "client-key")))
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(made.ca))
        for name, certificate, key in (
            ("localhost", made.server, made.server_key),
            ("client.test", made.client, made.client_key),
        ):
            issued = authority.issue_cert(name)
            issued.cert_chain_pems[0].write_to_path(str(certificate))
            issued.private_key_pem.write_to_path(str(key))
            key.chmod(0o600)
        return made


class SecurePostgreSQL(PostgreSQL):
    files: Files

    def command(self) -> list[str | Path]:
        if self.user:
            shutil.chown(self.files.server_key, self.user)
        return [
            *super().command(),
            "--ssl=on",
            f"--ssl-cert-file={self.files.server}",
            f"--ssl-key-file={self.files.server_key}",
            f"--ssl-ca-file={self.files.ca}",
        ]

    def make_cluster(self) -> None:
        super().make_cluster()
        (self.data / "pg_hba.conf").write_text(HBA)


class SecureMariaDB(MariaDB):
    files: Files

    def command(self) -> list[str | Path]:
        plain = [word for word in super().command() if word != "--skip-ssl"]
        files = self.files
        return [*plain, f"--ssl-cert={files.server}", f"--ssl-key={files.server_key}", f"--ssl-ca={files.ca}"]


class Terminator:
    """A TLS proxy in front of a plain server, as is common for Redis: ``port`` accepts TLS and forwards the content."""

    def __init__(self, target: int, files: Files, *, wants_certificate: bool = False, port: int = 0) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files.ca))
        self._context.load_cert_chain(files.server, files.server_key)
        self._context.verify_mode = ssl.CERT_REQUIRED if wants_certificate else ssl.CERT_NONE
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Terminator:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            self._context.wrap_socket(plain, server_side=True) as client,
            socket.create_connection(("127.0.0.1", self._target)) as server,
        ):
            _pass_on(client, server)


def _pass_on(client: ssl.SSLSocket, server: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ, server)
        selector.register(server, selectors.EVENT_READ, client)
        while True:
            for key, _ in selector.select():
                source: socket.socket = key.fileobj  # type: ignore[assignment]
                data = source.recv(1 << 16)
                # Bytes that are already decrypted do not wake the selector.
                while isinstance(source, ssl.SSLSocket) and source.pending():
                    data += source.recv(source.pending())
                if not data:
                    return
                key.data.sendall(data)


@dataclass(frozen=True)
class Secured:
    """``urls``: a user with a password, on ``localhost``. ``guarded``: a user that needs a certificate, too."""

    files: Files
    other: Files
    urls: dict[str, str]
    guarded: dict[str, str]
    admin: dict[str, str]


@contextmanager
def secured(directory: Path) -> Iterator[Secured]:
    """One server of each kind. PostgreSQL may run as another user, which needs access to the directory."""
    files, other = Files.make(directory / "ours"), Files.make(directory / "others")
    postgresql = SecurePostgreSQL(directory / "postgresql", temporary=True)
    mariadb = SecureMariaDB(directory / "mariadb", temporary=True)
    postgresql.files = mariadb.files = files
    valkey = OwnValkey(directory / "valkey", requirepass=PASSWORD)
    with ExitStack() as stack:
        with ThreadPoolExecutor() as pool:
            servers: tuple[Server, ...] = (postgresql, mariadb, valkey)
            for starting in [pool.submit(stack.enter_context, server) for server in servers]:
                starting.result()
        _make_users(postgresql.url, mariadb.url)
        usual = stack.enter_context(Terminator(valkey.port, files))
        strict = stack.enter_context(Terminator(valkey.port, files, wants_certificate=True))
        yield Secured(
            files,
            other,
            _urls(USER, postgresql.port, mariadb.port, usual.port),
            _urls(WITH_CERTIFICATE, postgresql.port, mariadb.port, strict.port),
            {"postgresql": postgresql.url, "mariadb": mariadb.url},
        )


def _urls(user: str, postgresql: int, mariadb: int, redis: int) -> dict[str, str]:
    return {
        "postgresql": f"postgresql://{user}@localhost:{postgresql}/shop",
        "mariadb": f"mysql://{user}@localhost:{mariadb}/shop",
        "redis": f"redis://default@localhost:{redis}/0",
    }


def _make_users(postgresql: str, mariadb: str) -> None:
    databases.execute(
        postgresql,
        *(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'" for name in (USER, WITH_CERTIFICATE)),
        f"GRANT {USER} TO {WITH_CERTIFICATE}",
    )
    databases.administer(postgresql, f"CREATE DATABASE shop OWNER {USER}")
    databases.execute(
        mariadb,
        "CREATE DATABASE shop",
        *(f"CREATE USER {name}@'%' IDENTIFIED BY '{PASSWORD}'" for name in (USER, WITH_CERTIFICATE)),
        *(f"GRANT ALL ON shop.* TO {name}@'%'" for name in (USER, WITH_CERTIFICATE)),
        f"ALTER USER {USER}@'%' REQUIRE SSL",
        f"ALTER USER {WITH_CERTIFICATE}@'%' REQUIRE X509",
    )
