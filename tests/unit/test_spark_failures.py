"""The cause of a Spark failure; text that comes from a record is not evidence."""

from __future__ import annotations

import pytest

from tallymark.errors import AccessDenied, BatchTooLarge, ReadFailed, Unreachable
from tallymark.spark.errors import FunctionFailed
from tests.support.spark_errors import explain

KAFKA = "org.apache.kafka.common.errors"


@pytest.mark.parametrize("name", ["TimeoutException", "SaslAuthenticationException", "TopicAuthorizationException"])
def test_a_value_that_quotes_kafka_is_still_the_function_s_failure(name: str) -> None:
    worker = f"Job aborted\nTraceback (most recent call last):\n  File x\nValueError: bad line: {KAFKA}.{name}\n\n"
    assert isinstance(explain(worker, "orders"), FunctionFailed)
    cast = f"[CAST_INVALID_INPUT] The value '{KAFKA}.{name}' of the type STRING can't be cast. SQLSTATE: 22018"
    assert isinstance(explain(cast, "orders"), FunctionFailed)


@pytest.mark.parametrize("table", [None, "orders"])
def test_what_does_not_fit_the_driver_is_read_in_smaller_batches(table: str | None) -> None:
    full = explain("Job aborted: java.lang.OutOfMemoryError: Java heap space", table)
    assert isinstance(full, BatchTooLarge)
    large = explain("Total size is bigger than spark.driver.maxResultSize", table)
    assert isinstance(large, BatchTooLarge)


def test_what_the_brokers_say_is_told_apart() -> None:
    denied = explain(f"{KAFKA}.TopicAuthorizationException: Not authorized: [orders]", "orders")
    assert isinstance(denied, AccessDenied)
    assert "the brokers at b:1 refused Spark's client" in str(denied)
    assert isinstance(explain(f"{KAFKA}.TimeoutException: x"), Unreachable)
    assert isinstance(explain("out of luck"), ReadFailed)
    assert isinstance(explain("out of luck", "orders"), FunctionFailed)
