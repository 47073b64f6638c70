"""Parses durations, such as ``90m`` or ``PT1H30M``."""

from __future__ import annotations

import re
from datetime import timedelta

from tallymark.errors import BadInput

_ISO = re.compile(r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
_SHORT = re.compile(r"(?:(\d+)W)?(?:(\d+)D)?(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?")


def parse_duration(text: str) -> timedelta:
    """Parse an ISO 8601 duration such as ``PT1H30M`` or ``P2D``, or a short form such as ``90m`` or ``1h30m``."""
    match = _ISO.fullmatch(text.upper()) or _SHORT.fullmatch(text.upper())
    amounts = match.groups() if match else ()
    if not any(amounts):
        raise BadInput(f"{text!r} is not a duration; write PT1H30M, P2D, 90m or 2h")
    weeks, days, hours, minutes, seconds = (float(amount or 0) for amount in amounts)
    try:
        return timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        raise BadInput(f"{text!r} is longer than there are records") from None
