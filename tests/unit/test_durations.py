"""Durations: one syntax for every option, setting and URL."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.budget import Budget
from tallymark.core.durations import LONGEST, parse_duration, parse_positive
from tallymark.core.skip_ahead import SkipAhead
from tallymark.errors import BadInput
from tallymark.kafka.membership import Group
from tallymark.kafka.source import Kafka
from tallymark.operate.health import duration
from tallymark.operate.reset import moment_or_ago
from tallymark.run.setup import Setup

UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds"}
amounts = st.dictionaries(st.sampled_from(list(UNITS)), st.integers(0, 5_000), min_size=1)


@given(amounts)
def test_the_units_add_up(amounts: dict[str, int]) -> None:
    in_order = [(unit, amounts[unit]) for unit in UNITS if unit in amounts]
    meant = timedelta(**{UNITS[unit]: amount for unit, amount in in_order})
    text = "".join(f"{amount}{unit}" for unit, amount in in_order)
    if meant > LONGEST:
        with pytest.raises(BadInput, match="is too long; write a duration of at most 36500d"):
            parse_duration(text, "x")
        return
    assert parse_duration(text, "x") == parse_duration(text.upper(), "x") == meant
    assert parse_duration(meant, "x") == meant
    assert parse_duration(meant.total_seconds(), "x") == parse_duration(f"{meant.total_seconds():f}", "x") == meant


@given(st.integers(0, 5_000), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_iso_8601_is_understood(days: int, hours: int, minutes: int, seconds: int) -> None:
    meant = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    assert parse_duration(f"P{days}DT{hours}H{minutes}M{seconds}S", "x") == meant


@given(st.integers(0, int(LONGEST.total_seconds())))
def test_what_status_shows_can_be_given(seconds: int) -> None:
    shown = parse_duration(duration(seconds), "x").total_seconds()
    assert shown <= seconds < shown + 3_600


@given(st.text() | st.text("0123456789.hmsdwpt-+ ", max_size=8) | st.integers() | st.floats() | st.timedeltas())
def test_anything_is_a_duration_or_one_sentence(value: Any) -> None:
    try:
        parsed = parse_duration(value, "--every")
    except BadInput as error:
        sentence = str(error)
    else:
        assert timedelta() <= parsed <= LONGEST
        return
    assert sentence.startswith(f"--every={value!r} is ")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("PT1H30M", timedelta(hours=1, minutes=30)),
        ("P2DT0.5S", timedelta(days=2, seconds=0.5)),
        ("P1W", timedelta(weeks=1)),
        ("1h30m", timedelta(minutes=90)),
        ("1.5h", timedelta(minutes=90)),
        ("500ms", timedelta(milliseconds=500)),
        ("90", timedelta(seconds=90)),
        ("0.5", timedelta(milliseconds=500)),
    ],
)
def test_examples(text: str, meant: timedelta) -> None:
    assert parse_duration(text, "x") == meant


@pytest.mark.parametrize(
    "value",
    [
        *("", "P", "PT", "P1M", "P1Y", "-2h", "1h ago", "5 m", "30m1h", "1s1m", "1h30", "1e3", ".5s", "5min", "٣s"),
        *(-1, math.nan, True, None, timedelta(seconds=-1)),
    ],
)
def test_what_is_no_duration_gets_one_sentence(value: Any) -> None:
    with pytest.raises(BadInput) as caught:
        parse_duration(value, "--every")
    assert str(caught.value) == f"--every={value!r} is not a duration; write one such as 1h30m, 15m, 500ms or 2d"


@pytest.mark.parametrize("value", ["9" * 30 + "d", "9" * 400, "36501d", math.inf, timedelta.max])
def test_no_duration_is_longer_than_a_century(value: Any) -> None:
    with pytest.raises(BadInput, match="is too long; write a duration of at most 36500d"):
        parse_duration(value, "x")


@pytest.mark.parametrize("value", ["0s", "0", 0, 0.0, timedelta()])
def test_some_durations_must_be_positive(value: Any) -> None:
    assert parse_duration(value, "x") == timedelta()
    with pytest.raises(BadInput, match=f"^x={value!r} must be positive".replace("(", r"\(").replace(")", r"\)")):
        parse_positive(value, "x")


def test_every_setting_takes_the_same_text() -> None:
    hour, source = timedelta(hours=1, minutes=30), Kafka("localhost:9092", "orders")
    assert Budget(window="1h30m") == Budget(window=5_400) == Budget(window=hour)
    assert SkipAhead(when_behind="1h30m", keep="1h30m", every="1h30m") == SkipAhead(hour, hour, hour)
    assert Group(drain="1h30m") == Group(drain=5_400) == Group(drain=hour)
    for patience in ("1h30m", 5_400, hour):
        assert Setup("g", source, "sqlite://", patience=patience).patience_seconds == 5_400


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda value: Budget(window=value), "Budget: window"),
        (lambda value: SkipAhead(every=value), "SkipAhead: every"),
        (lambda value: SkipAhead(when_behind=value), "SkipAhead: when_behind"),
        (lambda value: Group(drain=value), "Group: drain"),
        (lambda value: Setup("g", Kafka("localhost:9092", "orders"), "sqlite://", patience=value), "patience"),
    ],
)
def test_an_error_names_the_setting(make: Any, name: str) -> None:
    with pytest.raises(BadInput, match=f"^{name}='soon' is not a duration"):
        make("soon")


def test_a_plain_number_is_a_date_where_a_time_may_be_given() -> None:
    with pytest.raises(BadInput, match=r"--since: '90' is not a time; write .*, or 2h for two hours ago"):
        moment_or_ago("90", "--since")
