"""MariaDB, from binaries that are published for embedding."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import subprocess
import zipfile
from pathlib import Path

from tallymark.local.sandbox.server import HOST, Server, run
from tallymark.local.sandbox.unpack import unpacked

DATABASE = "test"


class MariaDB(Server):
    """A new server on which root has no password and LOAD DATA LOCAL is allowed."""

    name = "mariadb"
    ready_line = "ready for connections"

    @property
    def url(self) -> str:
        return f"mysql://root@{HOST}:{self.port}/{DATABASE}"

    def prepare(self) -> None:
        self._base = unpacked("mariadb", _unpack)
        if not (self._data / "mysql").exists():
            self._make_data()

    def command(self) -> list[str | Path]:
        return [
            self._base / "bin" / "mariadbd",
            "--no-defaults",
            f"--basedir={self._base}",
            f"--datadir={self._data}",
            f"--bind-address={HOST}",
            f"--port={self.port}",
            f"--socket={self._socket}",
            f"--user={getpass.getuser()}",
            "--local-infile=1",
            "--skip-ssl",  # creating keys takes seconds, and connections are local
            "--skip-name-resolve",
            "--max-connections=200",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=64M",
        ]

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _socket(self) -> str:
        """Relative to the working directory, because the length of a socket path is limited."""
        return "mariadb.sock"

    def _make_data(self) -> None:
        making = self.directory / "making"
        shutil.rmtree(making, ignore_errors=True)
        run(
            self._base / "scripts" / "mariadb-install-db",
            "--no-defaults",
            f"--basedir={self._base}",
            f"--datadir={making}",
            # Two installations at once would remove each other's files from the shared directory.
            f"--tmpdir={self.directory}",
            f"--user={getpass.getuser()}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )
        (making / DATABASE).mkdir()
        making.rename(self._data)


def _unpack(jar: Path, directory: Path) -> None:
    with zipfile.ZipFile(jar) as archive:
        for info in archive.infolist():
            _, found, inside = info.filename.partition("/linux/")
            if found and not info.is_dir():
                _extract(archive, info, directory / inside)
    for folder in ("bin", "scripts"):
        for program in (directory / folder).iterdir():
            program.chmod(0o755)  # a zip file has no execute permissions
    _strip(directory / "bin" / "mariadbd")


def _extract(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(info) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)


def _strip(program: Path) -> None:
    """Remove 280 MB of debugging symbols, if ``strip`` is installed."""
    with contextlib.suppress(OSError):
        subprocess.run(["strip", str(program)], capture_output=True, check=False)
