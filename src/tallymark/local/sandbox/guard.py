"""A process that supervises a server, and ends it when the parent process dies for any reason.

A parent-death signal (PR_SET_PDEATHSIG) depends on the thread that forked, and is lost when the user changes. A pipe
has neither problem: it closes with the process that held it. This runs as a script with only the standard library, and
takes the specification of the server as JSON in the first argument. It prints the server's pid, then reads commands
from standard input: T asks the server to stop, K kills it, end of file stops it and removes its data if they are
temporary.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from typing import Any

GRACE_SECONDS = 5.0
ORPHAN_CHECK_SECONDS = 0.5


def main() -> int:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    parent = os.getppid()
    wake = _wake_on_exit_of_child()
    server = _start(spec)
    print(server.pid, flush=True)
    while server.poll() is None:
        ready, _, _ = select.select([0, wake], [], [], ORPHAN_CHECK_SECONDS)
        # The pipe alone is not enough: a fork of the parent may hold it open after the parent's death.
        order = os.read(0, 1) if 0 in ready else b""
        if os.getppid() != parent or (0 in ready and not order):
            _end(server, spec)
        elif order:
            _signal(server, spec["stop_signal"] if order == b"T" else signal.SIGKILL)
        if wake in ready:
            os.read(wake, 512)
    return 0


def _wake_on_exit_of_child() -> int:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer)
    return reader


def _start(spec: dict[str, Any]) -> subprocess.Popen[bytes]:
    as_user = {"user": spec["user"], "group": spec["group"], "extra_groups": []} if spec["user"] else {}
    with open(spec["log"], "ab") as log:  # noqa: PTH123 - pathlib would double the time to start
        return subprocess.Popen(
            spec["command"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=spec["directory"],
            env={**os.environ, **spec["environment"]},
            start_new_session=True,
            **as_user,
        )


def _end(server: subprocess.Popen[bytes], spec: dict[str, Any]) -> None:
    """Stop the server, and kill it only if needed: a regular stop frees resources such as shared memory."""
    _signal(server, spec["stop_signal"])
    try:
        server.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        _signal(server, signal.SIGKILL)
        server.wait()
    if spec["temporary"]:
        _remove(spec["directory"])


def _remove(directory: str) -> None:
    import shutil

    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(directory))  # noqa: PTH106, PTH120 - as above


def _signal(server: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, number)


if __name__ == "__main__":
    sys.exit(main())
