"""Which partition a key goes to: as Java's default partitioner has it, or a function of the user's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException

from tallymark.errors import BadInput, TallymarkError, Unreachable

Partitioner = Callable[[str, "bytes | None", int], int]
"""``function(topic, key, partitions)``: the number of a partition, from 0 to below ``partitions``."""
ASK_SECONDS = 5.0
REFRESH_SECONDS = 60.0
"""How long it may take until a partition that was added is used."""
_M, _32 = 0x5BD1E995, 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32 bits of Java's ``Utils.murmur2``, as a number without a sign."""
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
    """Where Java's default partitioner puts a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def count_partitions(client: Any, explain: Callable[[Any, str], TallymarkError], topic: str) -> int:
    """How many the cluster says there are."""
    try:
        found = client.list_topics(topic, timeout=ASK_SECONDS).topics[topic]
    except KafkaException as error:
        raise explain(error.args[0], topic) from error
    if found.error is not None:
        raise explain(found.error, topic)
    return len(found.partitions)


class Choice:
    """Asks a user's partitioner, and checks what it says. The number of partitions comes from the cluster."""

    def __init__(self, partitioner: Partitioner, count: Callable[[str], int]) -> None:
        self._partitioner = partitioner
        self._count = count
        self._known: dict[str, tuple[int, float]] = {}

    def __call__(self, topic: str, key: str | bytes | None) -> int:
        partitions = self._partitions(topic)
        chosen: Any = self._partitioner(topic, key.encode() if isinstance(key, str) else key, partitions)
        if not isinstance(chosen, int) or not 0 <= chosen < partitions:
            raise BadInput(
                f"the partitioner chose {chosen!r} for topic {topic}: write a number from 0 to {partitions - 1}"
            )
        return chosen

    def _partitions(self, topic: str) -> int:
        count, until = self._known.get(topic, (0, 0.0))
        if time.monotonic() >= until:
            try:
                count = self._count(topic)
            except Unreachable:
                if not count:
                    raise
            self._known[topic] = count, time.monotonic() + REFRESH_SECONDS
        return count
