"""A share of a core for processes and their children, by the kernel's control groups. It needs root."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tallymark.errors import BadInput

GROUPS = Path("/sys/fs/cgroup")
PERIOD = 20_000
"""Microseconds. A process that has used up its share waits for the next period."""


class Ration:
    """Processes that share a part of a core with all their children."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def add(self, pid: int) -> None:
        (self._directory / "cgroup.procs").write_text(str(pid))


@contextmanager
def ration(cores: float) -> Iterator[Ration]:
    """Limit processes until the block ends; they have to end before it."""
    parent = GROUPS / "cpu" if (GROUPS / "cpu").is_dir() else GROUPS
    directory = parent / f"tallymark-bench-{uuid.uuid4().hex[:8]}"
    try:
        _limit(directory, int(cores * PERIOD))
        yield Ration(directory)
    finally:
        with suppress(OSError):
            directory.rmdir()


def _limit(directory: Path, quota: int) -> None:
    """By the second version of control groups, or by the first."""
    try:
        directory.mkdir()
        if (directory / "cpu.cfs_quota_us").exists():
            (directory / "cpu.cfs_period_us").write_text(str(PERIOD))
            (directory / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (directory / "cpu.max").write_text(f"{quota} {PERIOD}")
    except OSError as error:
        raise BadInput(f"the CPU time of workers can't be limited: {error}; run as root with control groups") from error
