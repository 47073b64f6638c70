"""Parses durations such as 1h30m, for every option, setting and URL that takes one."""

from __future__ import annotations

import re
from datetime import timedelta

from tallymark.errors import BadInput

Duration = timedelta | str | float
"""What a setting accepts: a timedelta, text such as "1h30m", "15m", "500ms" or "2d", or a number of seconds."""

_NUMBER = r"(\d+(?:\.\d+)?)"
_TIME = "".join(f"(?:{_NUMBER}{unit})?" for unit in ("H", "M", "S"))
_DATE = "".join(f"(?:{_NUMBER}{unit})?" for unit in ("W", "D"))
_FORMS = [
    re.compile(form, re.ASCII | re.IGNORECASE)
    for form in (f"{_DATE}{_TIME}(?:{_NUMBER}MS)?", f"P{_DATE}(?:T{_TIME})?", f"()()()(){_NUMBER}")
]
LONGEST = timedelta(days=36_500)
"""About a century, so that it can be subtracted from the current time."""
_UNITS = ("weeks", "days", "hours", "minutes", "seconds", "milliseconds")


def parse_duration(value: Duration, name: str) -> timedelta:
    """Return a duration that is not negative, or raise an error that names the option or setting.

    Text is in units from weeks to milliseconds, such as ``1h30m``, an ISO 8601 duration, such as ``PT1H30M``, or a
    number of seconds.
    """
    try:
        duration = _parsed(value) if isinstance(value, str) else _given(value)
    except OverflowError:
        duration = timedelta.max
    if duration is not None and duration > LONGEST:
        raise BadInput(f"{name}={value!r} is too long; write a duration of at most {LONGEST.days}d")
    if duration is None or duration < timedelta():
        raise BadInput(f"{name}={value!r} is not a duration; write one such as 1h30m, 15m, 500ms or 2d")
    return duration


def parse_positive(value: Duration, name: str) -> timedelta:
    """Return a duration that is longer than none."""
    duration = parse_duration(value, name)
    if not duration:
        raise BadInput(f"{name}={value!r} must be positive; write a duration such as 1h30m, 15m, 500ms or 2d")
    return duration


def _parsed(text: str) -> timedelta | None:
    matches = (form.fullmatch(text) for form in _FORMS)
    amounts = next((match.groups() for match in matches if match and any(match.groups())), None)
    if amounts is None:
        return None
    return timedelta(**{unit: float(amount) for unit, amount in zip(_UNITS, amounts, strict=False) if amount})


def _given(value: timedelta | float) -> timedelta | None:
    if isinstance(value, timedelta):
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return timedelta(seconds=value) if is_number else None
