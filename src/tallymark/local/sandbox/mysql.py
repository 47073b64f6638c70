"""MySQL, from Debian's packages or from the ``mysqld`` in TALLYMARK_MYSQLD."""

from __future__ import annotations

import getpass
import os
import shutil
from pathlib import Path

from tallymark.local.sandbox.debian import fetch_debian, with_own_loader
from tallymark.local.sandbox.server import HOST, Server, run

DATABASE = "test"
PROGRAM = "TALLYMARK_MYSQLD"
PACKAGE = "mysql-server-core"
FIRST_STATEMENTS = f"""CREATE USER root@'{HOST}';
GRANT ALL ON *.* TO root@'{HOST}' WITH GRANT OPTION;
CREATE DATABASE {DATABASE};
"""


class MySQL(Server):
    """A new server on which root has no password and LOAD DATA LOCAL is allowed."""

    name = "mysql"
    ready_line = "ready for connections"
    start_seconds = 120.0

    @property
    def url(self) -> str:
        return f"mysql://root@{HOST}:{self.port}/{DATABASE}"

    def prepare(self) -> None:
        self._program = mysqld()
        if not self._data.exists():
            self._make_data()

    def command(self) -> list[str | Path]:
        return [
            *self._program,
            *self._common(self._data),
            f"--bind-address={HOST}",
            f"--port={self.port}",
            # Relative to the working directory, because the length of a socket path is limited.
            "--socket=mysql.sock",
            "--mysqlx=OFF",
            "--local-infile=1",
            "--skip-name-resolve",
            "--max-connections=200",
            "--tls-version=",  # connections are local
        ]

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _common(self, data: Path) -> list[str]:
        return [
            f"--datadir={data}",
            f"--user={getpass.getuser()}",
            "--secure-file-priv=NULL",
            "--disable-log-bin",
            "--performance-schema=OFF",
            "--innodb-doublewrite=OFF",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=64M",
            "--innodb-redo-log-capacity=64M",
        ]

    def _make_data(self) -> None:
        making = self.directory / "making"
        shutil.rmtree(making, ignore_errors=True)
        first = self.directory / "first.sql"
        first.write_text(FIRST_STATEMENTS)
        run(*self._program, "--initialize-insecure", f"--init-file={first}", *self._common(making), cwd=self.directory)
        making.rename(self._data)


def mysqld() -> list[str | Path]:
    """Return the command that starts the server, which is downloaded on first use."""
    if own := os.environ.get(PROGRAM):
        return [own, "--no-defaults"]
    root = fetch_debian(PACKAGE)
    share = root / "usr" / "share" / "mysql"
    places = [f"--basedir={root / 'usr'}", f"--lc-messages-dir={share}", f"--character-sets-dir={share / 'charsets'}"]
    return [*with_own_loader(root, "usr/sbin/mysqld"), "--no-defaults", *places]
