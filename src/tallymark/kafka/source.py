"""What a user says about the Kafka side: brokers, topics, and how a value is decoded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tallymark.cluster import Cluster, Sasl, Tls, check_settings
from tallymark.errors import BadInput

PATTERN = "^"
"""What a topic starts with that is a pattern, as Kafka's own clients have it."""
REFUSED = {
    "bootstrap.servers": "the brokers are the first argument of Kafka()",
    "group.id": "it is group=",
    "group.instance.id": "it is membership=Group(instance=...)",
    "group.protocol": "it is membership=Group(protocol=...)",
    "partition.assignment.strategy": "it is membership=Group(strategy=...)",
    "group.remote.assignor": "it is membership=Group(strategy=...)",
    "auto.offset.reset": "it is start=, and never a silent jump",
    "enable.auto.commit": "positions live in the store and commit with the rows",
    "enable.auto.offset.store": "positions live in the store and commit with the rows",
    "auto.commit.interval.ms": "positions live in the store and commit with the rows",
    "isolation.level": "records of aborted transactions must not be read",
    "enable.partition.eof": "the ends of partitions are needed to count right",
}
"""Settings of Kafka's clients that would break what tallymark promises, or that have their own place, and why."""


@dataclass(frozen=True)
class Json:
    """Values are JSON objects with these fields, as a Spark DDL schema: ``id BIGINT, customer STRING, at TIMESTAMP``.

    A value that is no JSON object, or has a field of another type, becomes a dead letter. Fields that the schema does
    not name are left out; fields that are missing are NULL.
    """

    schema: str

    def __post_init__(self) -> None:
        if not self.schema.strip():
            raise BadInput("Json() needs a schema string, such as Json('id BIGINT, name STRING')")


@dataclass(frozen=True)
class Bytes:
    """Values are left as they are: ``value`` is BINARY."""


@dataclass(frozen=True)
class Kafka:
    """Topics of a cluster, by name or by a pattern, which starts with ``^``.

    >>> Kafka("localhost:9092", "orders", value=Json("id BIGINT, amount DOUBLE"))
    >>> Kafka("localhost:9092", "^orders-.*", settings={"session.timeout.ms": 10_000})
    >>> shop = Sasl("SCRAM-SHA-512", "shop", password_file="/run/secrets/kafka")
    >>> Kafka("kafka:9093", "orders", security=shop, tls=Tls(ca="ca.pem"))

    ``settings`` are those of librdkafka, by its own names. They are for members and consumers: Spark reads with a
    client of its own. ``security`` and ``tls`` are for all clients; without both, the environment is asked.
    """

    brokers: str
    topics: str | Sequence[str]
    value: Json | Bytes = Bytes()
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    security: Sasl | None = None
    tls: Tls | bool | None = None
    cluster: Cluster = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cluster", Cluster(self.brokers, self.security, self.tls))
        names = (self.topics,) if isinstance(self.topics, str) else tuple(self.topics)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise BadInput("Kafka() needs a topic, such as Kafka('localhost:9092', 'orders')")
        for name in names:
            _check_pattern(name)
        check_settings(self.settings, REFUSED, "Kafka(settings=...)")
        object.__setattr__(self, "topics", tuple(sorted(set(names))))

    @property
    def topic_names(self) -> tuple[str, ...]:
        """Names and patterns."""
        return tuple(self.topics)


def is_pattern(topic: str) -> bool:
    return topic.startswith(PATTERN)


def _check_pattern(topic: str) -> None:
    try:
        re.compile(topic if is_pattern(topic) else "")
    except re.error as error:
        raise BadInput(f"Kafka(): topic pattern {topic!r} is not a regular expression: {error}") from None
