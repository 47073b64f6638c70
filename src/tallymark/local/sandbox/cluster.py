"""A Kafka cluster of several nodes. Each has its own directory, and can be killed and started separately."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tallymark.errors import BadInput
from tallymark.local.sandbox.kafka import KafkaBroker, random_id
from tallymark.local.sandbox.secure import SecureKafka, Security

if TYPE_CHECKING:
    from typing import Self

SIZES = (1, 3, 5)
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}


class KafkaCluster:
    """A cluster of combined brokers and controllers, with their data in ``directory``-1, ``directory``-2, ..."""

    leaves_traces = False
    pid: int | None = None

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 3,
        secure: bool = False,
        settings: Mapping[str, str] | None = None,
        fast: bool = True,
        temporary: bool = False,
    ) -> None:
        check_size(brokers)
        places = {node: directory.absolute().with_name(f"{directory.name}-{node}") for node in range(1, brokers + 1)}
        # In the directory of a node, so that it is removed with the node.
        self.security = Security(places[1] / "security") if secure else None
        kind: Callable[..., KafkaBroker] = (
            partial(SecureKafka, security=self.security) if self.security else KafkaBroker
        )
        theirs = {"settings": {**SETTINGS, **(settings or {})}, "fast": fast, "temporary": temporary}
        self.nodes = [kind(place, node=node, **theirs) for node, place in places.items()]
        self.log = self.nodes[0].log
        voters, cluster_id = ",".join(node.voter for node in self.nodes), random_id()
        for node in self.nodes:
            node.voters, node.cluster_id = voters, cluster_id

    @property
    def brokers(self) -> str:
        return ",".join(node.brokers for node in self.nodes)

    @property
    def url(self) -> str:
        return self.brokers

    @property
    def variables(self) -> dict[str, str]:
        return {**self.nodes[0].variables, "TALLYMARK_BROKERS": self.brokers}

    @property
    def running(self) -> bool:
        """Whether any node runs."""
        return any(node.running for node in self.nodes)

    def start(self) -> Self:
        """Start all stopped nodes, then wait: no node is ready before a majority has started."""
        try:
            for node in self.nodes:
                node.launch()
            for node in self.nodes:
                node.wait()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Kill all nodes: no node remains to take over leadership, and written data survive the end of a process."""
        self.kill()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def check_size(brokers: int) -> None:
    if brokers not in SIZES:
        raise BadInput(f"a sandbox can't have {brokers} Kafka brokers: choose 1, 3 or 5")
