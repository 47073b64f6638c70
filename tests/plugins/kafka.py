"""Kafka for tests: every test has its own topics and group on the shared broker."""

from __future__ import annotations

import uuid

import pytest

from tests.support.kafka import Topics


@pytest.fixture(scope="session")
def brokers(servers: dict[str, str]) -> str:
    return servers["kafka"]


@pytest.fixture(scope="session")
def topics(brokers: str) -> Topics:
    """Creates topics and writes to them."""
    return Topics(brokers)


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"
