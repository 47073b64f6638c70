"""Runs the real binary on a terminal of a given size, reads the screen and sends keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from pathlib import Path
from types import TracebackType

from tests.support.background import wait_for
from tests.support.command import BINARY, DEADLINE

CTRL_C = b"\x03"
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A process with a terminal."""

    def __init__(self, *arguments: str | Path, columns: int, lines: int = 50, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [BINARY, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=inherited | {"TERM": "xterm-256color"} | environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def screen(self) -> list[str]:
        """The lines of the last complete screen."""
        pages = [page for page in self.output.split("\x1b[H") if page.count("\n") > 3]
        return [line.rstrip() for line in CONTROL.sub("", pages[-1]).splitlines()] if pages else []

    def shows(self, *words: str) -> None:
        wait_for(
            lambda: all(any(word in line for line in self.screen) for word in words), DEADLINE, f"it shows {words}"
        )

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def ended(self) -> int:
        code = self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        return code

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(DEADLINE)
        os.close(self._ours)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:
                return
            if not data:
                return
            self.output += data.decode(errors="replace")
