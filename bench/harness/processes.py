"""CPU time by process and by the whole machine, from /proc."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    parent: int
    name: str
    seconds: float
    """CPU time, with that of its children that have ended."""


def processes() -> dict[int, Process]:
    """All that run now."""
    found, tick = {}, os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = path.read_text().rpartition(")")
        except OSError:
            continue
        fields = tail.split()
        seconds = sum(map(int, fields[11:15])) / tick
        found[int(path.parent.name)] = Process(int(fields[1]), head.partition("(")[2], seconds)
    return found


def family(running: Mapping[int, Process], roots: Collection[int | None]) -> set[int]:
    """These processes and all that descend from them."""
    found = {pid for pid in roots if pid is not None and pid in running}
    while more := {pid for pid, one in running.items() if one.parent in found} - found:
        found |= more
    return found


def busy_seconds() -> float:
    """CPU time of the whole machine since it started: user, nice, system and interrupts."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    return sum(int(fields[number]) for number in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")
