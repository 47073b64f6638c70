"""Offsets in a file, as ``kafka-consumer-groups --export`` writes them and ``--from-file`` reads them.

A line is ``topic,partition,offset``. Where the tool was asked about several groups, the group stands before it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping

from tallymark.errors import BadInput
from tallymark.spans import Partition

SURELY_PLAIN = 24
"""Characters of a name up to which Kafka's tool looks whether it needs quotes. It puts longer ones between quotes."""


def write_offsets(offsets: Mapping[Partition, int]) -> str:
    """The file of one group."""
    return "".join(f"{_quoted(one.topic)},{one.number},{offset}\n" for one, offset in sorted(offsets.items()))


def read_offsets(lines: Iterable[str], group: str, name: str) -> dict[Partition, int]:
    """The offsets of this group. ``name`` is that of the file, for what is wrong with it."""
    found: dict[Partition, int] = {}
    reader = csv.reader(lines)
    for cells in reader:
        place = f"{name} line {reader.line_num}"
        if cells and (row := _row(cells, group, place)):
            partition, offset = row
            if found.setdefault(partition, offset) != offset:
                raise BadInput(f"{place}: {partition} stands there twice, with {found[partition]} and {offset}")
    if not found:
        raise BadInput(f"{name} has no offsets of group {group}")
    return found


def _row(cells: list[str], group: str, place: str) -> tuple[Partition, int] | None:
    try:
        topic, number, offset = cells[-3:]
        row = Partition(topic.strip(), _natural(number)), _natural(offset)
    except ValueError:
        row = None
    if row is None or len(cells) > 4 or not row[0].topic:
        raise BadInput(f"{place}: {','.join(cells)!r} is not topic,partition,offset or group,topic,partition,offset")
    return row if len(cells) == 3 or cells[0].strip() == group else None


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _quoted(topic: str) -> str:
    return f'"{topic}"' if len(topic) > SURELY_PLAIN else topic
