"""The user's declaration of a Kafka source: brokers, topics and value format."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tallymark.core.retry import PATIENCE
from tallymark.core.tls import Tls
from tallymark.core.topics import is_pattern, matches
from tallymark.errors import BadInput
from tallymark.formats.decoders import Decoders
from tallymark.formats.value import Bytes, Debezium, Format
from tallymark.kafka.cluster import Cluster, Sasl, check_settings

REFUSED = {
    "bootstrap.servers": "use the first argument of Kafka()",
    "group.id": "use group=",
    "group.instance.id": "use membership=Group(instance=...)",
    "group.protocol": "use membership=Group(protocol=...)",
    "partition.assignment.strategy": "use membership=Group(strategy=...)",
    "group.remote.assignor": "use membership=Group(strategy=...)",
    "auto.offset.reset": "use start=; positions are never reset silently",
    "enable.auto.commit": "positions are committed to the store with the rows",
    "enable.auto.offset.store": "positions are committed to the store with the rows",
    "auto.commit.interval.ms": "positions are committed to the store with the rows",
    "isolation.level": "records of aborted transactions must not be read",
    "enable.partition.eof": "records are counted by the end-of-partition events",
}
"""Client settings that would break the guarantees of tallymark or have their own parameter, with the reason."""


@dataclass(frozen=True)
class Kafka:
    """Topics of a cluster, by name or by pattern. A pattern starts with ``^``.

    >>> Kafka("localhost:9092", "orders", value=Json("id BIGINT, amount DOUBLE"))
    >>> Kafka("localhost:9092", "^orders-.*", settings={"session.timeout.ms": 10_000})
    >>> shop = Sasl("SCRAM-SHA-512", "shop", password_file="/run/secrets/kafka")
    >>> Kafka("kafka:9093", "orders", security=shop, tls=Tls(ca="ca.pem"))

    A mapping of topics has a format for each: ``{"orders": Avro(...), "^audit-.*": Json(...)}``. Of several names that
    match a topic, its own name counts, then the first pattern.

    ``settings`` are librdkafka settings. They apply to members and consumers, but not to Spark, which has its own
    client. ``security`` and ``tls`` apply to all clients; without both, they come from the environment.
    """

    brokers: str
    topics: str | Sequence[str] | Mapping[str, Format]
    value: Format = field(default_factory=Bytes)
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    security: Sasl | None = None
    tls: Tls | bool | None = None
    key: Format = field(default_factory=Bytes)
    cluster: Cluster = field(init=False, repr=False, compare=False)
    formats: Mapping[str, Format] = field(init=False, repr=False, default_factory=dict)
    """The formats of values by topic name or pattern; empty if all values have the same one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cluster", Cluster(self.brokers, self.security, self.tls))
        names = (self.topics,) if isinstance(self.topics, str) else tuple(self.topics)
        formats = dict(self.topics) if isinstance(self.topics, Mapping) else {}
        if formats and self.value != Bytes():
            raise BadInput("Kafka(): the topics have a format each; leave out value=")
        if not names or not all(isinstance(name, str) and name for name in names):
            raise BadInput("Kafka() needs a topic, such as Kafka('localhost:9092', 'orders')")
        for name in names:
            _check_pattern(name)
        if isinstance(self.key, Debezium):
            raise BadInput(
                "Kafka(key=...): Debezium() is for values; write the format of its keys, such as Json('id BIGINT')"
            )
        check_settings(self.settings, REFUSED, "Kafka(settings=...)")
        object.__setattr__(self, "topics", tuple(sorted(set(names))))
        object.__setattr__(self, "formats", formats)

    @property
    def topic_names(self) -> tuple[str, ...]:
        """Names and patterns."""
        return tuple(self.topics)

    @property
    def has_changes(self) -> bool:
        """Whether values are change events, which may lack a value that an earlier event of the row has."""
        return any(isinstance(value, Debezium) for value in (self.value, *self.formats.values()))

    def decoders(
        self,
        topic: str | None = None,
        stop: threading.Event | None = None,
        patience: float = PATIENCE,
        *,
        finds: bool = False,
    ) -> Decoders:
        """Create what decodes the records of one topic, or of all topics.

        A registry that does not answer is waited for, until ``stop`` is set. With ``finds``, the decoders find fields
        that the schema does not name.
        """
        if topic is not None:
            return Decoders.of(self.value_of(topic), self.key, [topic], stop, patience, finds=finds)
        formats = list(self.formats.values()) or [self.value]
        if any(other != formats[0] for other in formats):
            raise BadInput(
                f"the topics {', '.join(self.formats)} have different formats, and a handler takes one; "
                "listen to each of them separately"
            )
        return Decoders.of(formats[0], self.key, self.topic_names, stop, patience, finds=finds)

    def value_of(self, topic: str) -> Format:
        """Return the format of a topic's values."""
        found = self.formats.get(topic)
        return found or next((value for name, value in self.formats.items() if matches(name, topic)), self.value)


def _check_pattern(topic: str) -> None:
    try:
        re.compile(topic if is_pattern(topic) else "")
    except re.error as error:
        raise BadInput(f"Kafka(): topic pattern {topic!r} is not a regular expression: {error}") from None
