"""A share of a core for some processes and all that they start, by the kernel's control groups: root's to give."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tallymark.errors import BadInput

GROUPS = Path("/sys/fs/cgroup")
PERIOD = 20_000
"""Microseconds: who has used up its share waits for the next period."""


class Ration:
    """Processes that share so much of a core. What they start belongs to it, too."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def add(self, pid: int) -> None:
        (self._directory / "cgroup.procs").write_text(str(pid))


@contextmanager
def ration(cores: float) -> Iterator[Ration]:
    """As long as the block lasts, in which its processes have to end."""
    parent = GROUPS / "cpu" if (GROUPS / "cpu").is_dir() else GROUPS
    directory = parent / f"tallymark-bench-{uuid.uuid4().hex[:8]}"
    try:
        directory.mkdir()
    except OSError as error:
        raise BadInput(f"no share of a core can be given out here: {error}") from error
    try:
        _limit(directory, int(cores * PERIOD))
        yield Ration(directory)
    finally:
        with suppress(OSError):
            directory.rmdir()


def _limit(directory: Path, quota: int) -> None:
    """By the second version of control groups, or by the first."""
    try:
        if (directory / "cpu.cfs_quota_us").exists():
            (directory / "cpu.cfs_period_us").write_text(str(PERIOD))
            (directory / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (directory / "cpu.max").write_text(f"{quota} {PERIOD}")
    except OSError as error:
        raise BadInput(f"no share of a core can be given out here: {error}") from error
