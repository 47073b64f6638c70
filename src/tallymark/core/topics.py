"""Names and patterns of topics, and the tables of topics: ``raw_{1}`` for those that match ``^shop\\.(.*)$``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tallymark.core.tables import PLACE, TableSpec
from tallymark.errors import BadInput

PATTERN = "^"
"""Prefix of topic patterns, as in librdkafka."""


def is_pattern(topic: str) -> bool:
    return topic.startswith(PATTERN)


def matches(name: str, topic: str) -> bool:
    """Whether a topic has this name, or matches this pattern."""
    return re.match(name, topic) is not None if is_pattern(name) else name == topic


def is_by_topic(spec: TableSpec) -> bool:
    """Whether a table gets only the records of some topics."""
    return spec.topics is not None or PLACE.search(spec.name) is not None


def table_of(spec: TableSpec, topic: str) -> TableSpec | None:
    """Return the table for the records of a topic; None if the table gets none of them."""
    if spec.topics is not None and not matches(spec.topics, topic):
        return None
    values = {"topic": topic, **_groups(spec.topics or "", topic)}
    for place in PLACE.findall(spec.name):
        if values.get(place) is None:
            raise BadInput(
                f"table {spec.name}: topic {topic} has nothing for {{{place}}}; correct topics={spec.topics!r}"
            )
    return replace(spec, name=PLACE.sub(lambda place: values[place[1]] or "", spec.name))


def _groups(pattern: str, topic: str) -> Mapping[str, str | None]:
    """The groups of a pattern by number and by name."""
    found = re.match(pattern, topic) if is_pattern(pattern) else None
    if found is None:
        return {}
    return {**{str(n): text for n, text in enumerate(found.groups(), 1)}, **found.groupdict()}
