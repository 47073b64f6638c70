"""Timestamps of records: any number that a producer may write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE

from tallymark.core.times import LAST_MILLIS, timestamp
from tallymark.errors import BadInput, TallymarkError
from tallymark.kafka.lag import TopicRetention
from tallymark.produce.delivery import Delivery, Interceptors, Reports
from tallymark.produce.settings import epoch_millis
from tallymark.service.records import Records

LAST = datetime.max.replace(microsecond=999_000, tzinfo=UTC)
ABSURD = 1_700_000_000_000_000


class Message:
    def __init__(self, millis: int, kind: int = TIMESTAMP_CREATE_TIME) -> None:
        self._time = kind, millis

    def timestamp(self) -> tuple[int, int]:
        return self._time

    def __getattr__(self, name: str) -> Any:
        return lambda: {"topic": "orders", "partition": 0, "offset": 7}.get(name)


@pytest.mark.parametrize(
    ("millis", "time"),
    [
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (1_700_000_000_123, datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)),
        (LAST_MILLIS, LAST),
        (LAST_MILLIS + 1, None),
        (ABSURD, None),
        (ABSURD * 1000, None),
        (2**63 - 1, None),
        (-1, None),
    ],
)
def test_a_time_that_no_calendar_has_is_none(millis: int, time: datetime | None) -> None:
    assert timestamp(Message(millis)) == time
    records = Records([Message(millis)], pa.array([None], pa.binary()))
    assert records.to_arrow()["timestamp"].to_pylist() == [time]
    assert records[0].timestamp == time


def test_a_record_may_have_no_time() -> None:
    assert timestamp(Message(0, TIMESTAMP_NOT_AVAILABLE)) is None


@pytest.mark.parametrize("millis", [ABSURD, 2**63 - 1, -5])
def test_a_delivery_report_survives_any_time_in_the_log(millis: int) -> None:
    told: list[Any] = []
    reports = Reports(no_failure, no_wait, Interceptors(()), told.append, None, print)
    delivery = Delivery(reports, lambda metadata, error: told.append((metadata, error)), None)
    delivery(None, Message(millis))
    assert told == [("orders", 0, 7, None), (("orders", 0, 7, None), None)]
    assert delivery.result() == ("orders", 0, 7, None)


def no_failure(*_: object) -> TallymarkError:
    raise AssertionError("nothing has failed")


def no_wait(*_: object) -> None:
    raise AssertionError("there is nothing to wait for")


@pytest.mark.parametrize("timestamp", [LAST_MILLIS + 1, ABSURD, 2**63])
def test_a_producer_refuses_microseconds_at_once(timestamp: int) -> None:
    with pytest.raises(BadInput, match="later than the year 9999; give milliseconds"):
        epoch_millis(timestamp)
    assert epoch_millis(LAST_MILLIS) == LAST_MILLIS


def test_the_last_of_all_times_expires_late() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert TopicRetention(timedelta(days=7), None).left(LAST, now) == LAST - now + timedelta(days=7)
