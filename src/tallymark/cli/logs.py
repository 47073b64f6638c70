"""Logging of the command line: warnings to stderr, more on request; text or JSON. The library configures nothing."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, Literal

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"
Format = Literal["text", "json"]

_PLACE = re.compile(r"%(?:\((?P<key>\w+)\))?[-#0 +]*\d*(?:\.\d+)?(?P<kind>[a-zA-Z%])")
_NAME = re.compile(r"([A-Za-z_]\w*)=$")


class JsonLines(logging.Formatter):
    """A JSON object for each line of the log. What the message has as ``name=value`` is a field, too."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in facts(record).items():
            # The fields of every line keep their meaning.
            fields.setdefault(name, value)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def facts(record: logging.LogRecord) -> dict[str, Any]:
    """The values after ``name=`` in the message. Numbers stay numbers."""
    if not isinstance(record.msg, str) or not isinstance(record.args, tuple):
        return {}
    found, values = {}, iter(record.args)
    for place in _PLACE.finditer(record.msg):
        if place["kind"] == "%":
            continue
        value = next(values, None)
        if named := _NAME.search(record.msg, 0, place.start()):
            found[named[1]] = _plain(value)
    return found


def _plain(value: object) -> Any:
    """A value for JSON: numbers as numbers, also in mappings and tallies, and everything else as text."""
    if is_dataclass(value) and not isinstance(value, type):
        counts = {one.name: getattr(value, one.name) for one in fields(value)}
        return counts if counts and all(isinstance(count, int) for count in counts.values()) else str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real | Decimal) and math.isfinite(value):
        return float(value)
    return str(value)


def configure(verbose: int, form: Format = "text") -> None:
    level = LEVELS[min(verbose, len(LEVELS) - 1)]
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("tallymark").setLevel(level)
    # py4j logs every connection that breaks while Spark shuts down, some of them to the root logger.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    handler.addFilter(lambda record: record.name != "root" or record.module != "java_gateway")


def is_json() -> bool:
    """Whether the log is JSON."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def write_line(level: int, template: str, *values: object) -> None:
    """Write a line of JSON to stderr, whatever the level of the log."""
    record = logging.LogRecord("tallymark", level, "", 0, template, values, None)
    print(JsonLines().format(record), file=sys.stderr)
