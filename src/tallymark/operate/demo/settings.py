"""What the processes of the demo have in common: addresses and names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DemoSettings:
    brokers: str
    topic: str
    store: str
    group: str
    table: str
    batch: int

    @property
    def totals(self) -> str:
        return f"{self.table}_totals"
