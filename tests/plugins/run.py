"""Runs for tests: a topic that tests only read, and a proxy before the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.support.kafka import Topics
from tests.support.proxy import Proxy
from tests.support.truth import Record

PARTITIONS = 3


@pytest.fixture(scope="session")
def topic(topics: Topics) -> str:
    """A topic with 60 records, an undecodable record in each partition, and an aborted transaction. Tests only read it.

    A module whose tests need another topic overrides this fixture.
    """
    name = topics.create(PARTITIONS)
    topics.send(name, ({"id": number} for number in range(60)), partitions=PARTITIONS)
    topics.send(name, [b"garbage"] * PARTITIONS, partitions=PARTITIONS)
    topics.send_in_transaction(name, {0: [{"id": 0, "aborted": True}]}, commit=False)
    return name


@pytest.fixture(scope="module")
def committed(topics: Topics, topic: str) -> Mapping[Record, bytes | None]:
    """The committed records of the topic."""
    return topics.committed(topic)


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    """A proxy before the store at ``url``."""
    with Proxy(url) as proxy:
        yield proxy
