"""What a user says about the Kafka side: brokers, topics, and how a value is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tallymark.errors import BadInput


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
    """Topics of a cluster.

    >>> Kafka("localhost:9092", "orders", value=Json("id BIGINT, amount DOUBLE"))
    """

    brokers: str
    topics: str | Sequence[str]
    value: Json | Bytes = Bytes()

    def __post_init__(self) -> None:
        if not self.brokers.strip():
            raise BadInput("Kafka() needs the address of a broker, such as 'localhost:9092'")
        names = (self.topics,) if isinstance(self.topics, str) else tuple(self.topics)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise BadInput("Kafka() needs a topic, such as Kafka('localhost:9092', 'orders')")
        object.__setattr__(self, "topics", tuple(sorted(set(names))))

    @property
    def topic_names(self) -> tuple[str, ...]:
        return tuple(self.topics)
