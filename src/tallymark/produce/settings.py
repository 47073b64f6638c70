"""Producer profiles as librdkafka settings, and how records are encoded and partitioned.

Each setting has a single name here, even if librdkafka accepts several.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID

from confluent_kafka import KafkaException

from tallymark.core.times import LAST_MILLIS
from tallymark.errors import BadInput, TallymarkError, Unreachable
from tallymark.formats.value import Formatted
from tallymark.kafka.cluster import check_settings

Partitioner = Callable[[str, "bytes | None", int], int]
"""``function(topic, key, partitions)`` returns a partition number from 0 to ``partitions - 1``."""
ASK_SECONDS = 5.0
REFRESH_SECONDS = 60.0
"""How long it can take until an added partition is used."""
_M, _32 = 0x5BD1E995, 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32 bits of Java's ``Utils.murmur2`` as an unsigned number."""
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _32
        h = h * _M & _32 ^ (k ^ k >> 24) * _M & _32
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _32
    h = (h ^ h >> 13) * _M & _32
    return h ^ h >> 15


def java_partition(key: bytes, partitions: int) -> int:
    """Return the partition that Java's default partitioner chooses for this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def count_partitions(client: Any, explain: Callable[[Any, str], TallymarkError], topic: str) -> int:
    """Return the number of partitions from the cluster's metadata."""
    try:
        metadata = client.list_topics(topic, timeout=ASK_SECONDS).topics[topic]
    except KafkaException as error:
        raise explain(error.args[0], topic) from error
    if metadata.error is not None:
        raise explain(metadata.error, topic)
    return len(metadata.partitions)


class Choice:
    """Calls the user's partitioner and checks its result. The number of partitions comes from the cluster."""

    def __init__(self, partitioner: Partitioner, count: Callable[[str], int]) -> None:
        self._partitioner = partitioner
        self._count = count
        self._known: dict[str, tuple[int, float]] = {}

    def __call__(self, topic: str, key: str | bytes | None) -> int:
        partitions = self._partitions(topic)
        chosen: Any = self._partitioner(topic, key.encode() if isinstance(key, str) else key, partitions)
        if not isinstance(chosen, int) or not 0 <= chosen < partitions:
            raise BadInput(
                f"the partitioner returned {chosen!r} for topic {topic}; return a number from 0 to {partitions - 1}"
            )
        return chosen

    def _partitions(self, topic: str) -> int:
        count, until = self._known.get(topic, (0, 0.0))
        if monotonic() >= until:
            try:
                count = self._count(topic)
            except Unreachable:
                if not count:
                    raise
            self._known[topic] = count, monotonic() + REFRESH_SECONDS
        return count


Headers = Mapping[str, "str | bytes | None"] | Sequence[tuple[str, "str | bytes | None"]]
Encode = Callable[[Any], "bytes | str | None"]
NOTHING: frozenset[type] = frozenset({type(None)})
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
PLAIN: frozenset[type] = NOTHING | {bytes, str}
"""Types that the client accepts unchanged. It encodes text as UTF-8."""


class Outgoing(NamedTuple):
    """A record as passed to ``send``, or as changed by earlier interceptors."""

    topic: str
    key: str | bytes | None
    value: Any
    headers: Headers | None
    partition: int | None
    timestamp: datetime | int | None


def encode(value: Any) -> str | bytes:
    """Encode as compact JSON. Times are ISO 8601; decimals are strings, to keep all digits, and so are UUIDs."""
    if isinstance(value, (bytes, str)):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    try:
        return _JSON.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(
            f"a value of type {type(value).__name__} can't be written as JSON: {error}; encode it, or pass value="
        ) from None


def check_encode(value: Encode | Formatted | None) -> tuple[Encode, frozenset[type]]:
    """Return the function that encodes values, and the types of values that it does not encode."""
    if value is None or isinstance(value, Formatted):
        return encode, PLAIN
    if not callable(value):
        raise BadInput(
            f"Producer(value={value!r}) is not known; pass a function that encodes a value, or Avro(...), "
            "Protobuf(...) or Json(...)"
        )
    return value, NOTHING


def check_topic(topic: Any) -> str:
    if isinstance(topic, str) and TOPIC.fullmatch(topic):
        return topic
    raise BadInput(f"topic={topic!r} is not a topic name; use at most 249 letters, digits, '.', '_' and '-'")


def check_key(key: Any) -> str | bytes | None:
    if key is None or isinstance(key, (str, bytes)):
        return key
    raise BadInput(
        f"key={key!r} must be str, bytes or None, because clients partition by its bytes; in most cases pass str(key)"
    )


def epoch_millis(timestamp: datetime | int) -> int:
    """Return a timestamp as Kafka stores it."""
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise BadInput(f"timestamp={timestamp!r} has no time zone; add one, such as tzinfo=timezone.utc")
        timestamp = round(timestamp.timestamp() * 1000)
    if not isinstance(timestamp, int) or timestamp <= 0:
        raise BadInput(f"timestamp={timestamp!r} must be a datetime or milliseconds after 1970")
    if timestamp > LAST_MILLIS:
        raise BadInput(f"timestamp={timestamp} is later than the year 9999; give milliseconds, not microseconds")
    return timestamp


def _default(value: Any) -> str:
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_default)


ALIASES = {
    "request.required.acks": "acks",
    "message.send.max.retries": "retries",
    "delivery.timeout.ms": "message.timeout.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
}
"""Alternative names of settings, and the name used here."""
WITHOUT_END = 2_147_483_647
REFUSED = {
    "bootstrap.servers": "the brokers are the first argument of Producer()",
    "metadata.broker.list": "the brokers are the first argument of Producer()",
    "transactional.id": "pass transactional_id= instead",
    "default.topic.config": "write its settings directly in settings=",
    "delivery.report.only.error": "the producer needs the report of every record",
    "on_delivery": "pass on_delivery= to send(), or on_success= and on_error= to Producer()",
    "dr_cb": "pass on_delivery= to send(), or on_success= and on_error= to Producer()",
    "error_cb": "calls that wait raise the errors",
    "stats_cb": "its exceptions would be raised by send(); use statistics()",
    "throttle_cb": "its exceptions would be raised by send(); use the metrics of the brokers",
}
"""Settings that have their own argument, or that would hide the outcome of a record, and why."""
BASE = {
    "partitioner": "murmur2_random",
    # Reconnect soon after a broker returns: the default is 10 s.
    "reconnect.backoff.max.ms": 1000,
    # librdkafka would write to stderr; relevant problems are returned as errors.
    "log_level": 0,
}
"""Settings of every profile. Keys are partitioned as by Java's default partitioner."""
_ALL, _YES = ("all", "-1"), ("true", "1")
_IDEMPOTENT = {
    "acks": (_ALL, "without the acknowledgement of all in-sync replicas, a failed broker loses records"),
    "enable.idempotence": (_YES, "without idempotence, a retry repeats and reorders records"),
    "retries": ((str(WITHOUT_END),), "its retries are unlimited; limit the wait with buffer_seconds= and timeouts"),
    "max.in.flight.requests.per.connection": (
        tuple("12345"),
        "with more than 5 requests in flight, brokers can't keep the order",
    ),
    "queuing.strategy": (("fifo",), "other strategies reorder records"),
}


@dataclass(frozen=True)
class Profile:
    """Settings by librdkafka's names. ``fixed`` limits settings to allowed values, each with the reason.

    ``stops_on_failure``: the first record that fails permanently stops the producer, so that no later record overtakes
    it.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    stops_on_failure: bool = False

    def effective(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the client's settings: the profile and the user's settings, which must not contradict the profile."""
        own = _renamed(settings)
        for name, value in own.items():
            allowed, why = self.fixed.get(name, ((), ""))
            if why and str(value).lower() not in allowed:
                raise BadInput(f"profile {self.name} does not allow {name}={value}: {why}")
        return {**BASE, **_renamed(self.settings), **own}


NO_LOSS = Profile(
    "no-loss",
    {
        "acks": "all",
        "enable.idempotence": True,
        "enable.gapless.guarantee": True,
        "retries": WITHOUT_END,
        "max.in.flight.requests.per.connection": 5,
        "message.timeout.ms": 0,
    },
    {
        **_IDEMPOTENT,
        "message.timeout.ms": (
            ("0",),
            "a record that times out is lost; limit the wait with buffer_seconds= and timeouts",
        ),
        # Without it, the client sends the records after a refused batch before it reports the refusal.
        "enable.gapless.guarantee": (_YES, "without it, later records overtake a failed record"),
    },
    stops_on_failure=True,
)
FAST = Profile("fast", {"acks": 1, "compression.type": "lz4", "linger.ms": 20})
PROFILES = {profile.name: profile for profile in (NO_LOSS, FAST)}


def transactional(transactional_id: str) -> Profile:
    """Return the transactional profile. A failure aborts the whole transaction, but does not stop the producer."""
    settings = {"acks": "all", "enable.idempotence": True, "transactional.id": transactional_id}
    return Profile("transactional", settings, _IDEMPOTENT)


def choose(profile: str | Profile, transactional_id: str | None) -> Profile:
    """Return the profile for these arguments of ``Producer``."""
    if isinstance(profile, str) and profile not in PROFILES:
        raise BadInput(f"profile={profile!r} is not known; write {' or '.join(PROFILES)}")
    chosen = PROFILES[profile] if isinstance(profile, str) else profile
    check(chosen.settings, f"Profile({chosen.name!r})")
    if transactional_id is None:
        return chosen
    if chosen is not NO_LOSS:
        raise BadInput(f"transactional_id= and profile {chosen.name} exclude each other; leave out profile=")
    return transactional(transactional_id)


def _renamed(settings: Mapping[str, Any]) -> dict[str, Any]:
    renamed: dict[str, Any] = {}
    for name, value in settings.items():
        known = ALIASES.get(name, name)
        if known in renamed:
            raise BadInput(f"Producer(settings=...): {name} and {known} are the same setting; write one of them")
        renamed[known] = value
    return renamed


def check(settings: Mapping[str, Any], where: str = "Producer(settings=...)") -> None:
    """Raise for settings in ``REFUSED``."""
    check_settings(settings, REFUSED, where)
