"""The metrics as Prometheus scrapes them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


class Scrape:
    """One response of an endpoint."""

    def __init__(self, port: int | None = None, *, url: str | None = None) -> None:
        with urlopen(url or f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            self.text: str = answer.read().decode()
        self._families = list(text_string_to_metric_families(self.text))

    @property
    def names(self) -> set[str]:
        """All names that rules and dashboards may use, whether or not there are samples yet."""
        made = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
        return {f"{family.name}{suffix}" for family in self._families for suffix in made.get(family.type, ("",))}

    def samples(self, name: str, **labels: str) -> dict[tuple[str, ...], float]:
        """Values by the labels that were not given, in the order of their names."""
        return {
            tuple(value for label, value in sorted(sample.labels.items()) if label not in labels): sample.value
            for family in self._families
            for sample in family.samples
            if sample.name == name and _has(sample.labels, labels)
        }

    def total(self, name: str, **labels: str) -> float:
        return sum(self.samples(name, **labels).values())


def _has(found: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(found.get(name) == value for name, value in wanted.items())
