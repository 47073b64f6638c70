"""Waits for processes with a deadline, without sleeping blindly."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def eventually(holds: Callable[[], bool], seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.05)
    return holds()


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
