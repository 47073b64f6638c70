"""Looks at processes from outside."""

from __future__ import annotations

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
