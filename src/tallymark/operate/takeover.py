"""Imports offsets from a Kafka group, from the checkpoint of a Structured Streaming query, or from a file.

Spark writes the end offsets of batch N to ``offsets/N`` before the batch, and an empty commit to ``commits/N`` after
it. So the newest batch that has both files is done, and the next batch begins at its offsets. A batch that has only
offsets was begun; the checkpoint does not show whether its sink has written it.

A line of a file is ``topic,partition,offset``. In an export of several groups, the group comes first.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from confluent_kafka import ConsumerGroupTopicPartitions

from tallymark.core.claims import FirstClaim, PositionChanges
from tallymark.core.journal import Decision, Run
from tallymark.core.plan import check_identity
from tallymark.core.spans import Log, Partition, Position, Span
from tallymark.errors import BadInput, BeyondEnd, PositionMoved
from tallymark.kafka.brokers import TIMEOUT, Brokers
from tallymark.operate.reset import Planned

VERSION, NO_OFFSET = "v1", "-"
Offsets = Mapping[Partition, int]


@dataclass(frozen=True)
class Checkpoint:
    """The progress of a query. ``sources`` are the offsets of its last committed batch, None for non-Kafka sources."""

    name: str
    batch: int
    sources: Sequence[Offsets | None]
    begun: int | None = None
    begun_sources: Sequence[Offsets | None] = ()

    def offsets(self, source: int | None = None) -> Offsets:
        """Return the offsets of one source, or of all Kafka sources."""
        return _merged(self.name, self._chosen(self.sources, source))

    def unsure(self, source: int | None = None) -> list[Span]:
        """Return the spans of a batch that was begun but not committed. Its sink may have written them."""
        done = self.offsets(source)
        ends = _merged(self.name, self._chosen(self.begun_sources, source)) if self.begun is not None else {}
        return [
            Span(partition, done.get(partition, 0), end)
            for partition, end in sorted(ends.items())
            if end > done.get(partition, 0)
        ]

    def _chosen(self, sources: Sequence[Offsets | None], source: int | None) -> list[Offsets]:
        if source is not None and not 0 <= source < len(sources):
            raise BadInput(f"{self.name} has no source {source}; its sources are 0..{len(sources) - 1}")
        chosen = [offsets for offsets in (sources if source is None else [sources[source]]) if offsets is not None]
        if not chosen:
            raise BadInput(
                f"{self.name}: its {'sources are' if source is None else f'source {source} is'} not from Kafka"
            )
        return chosen


def read_checkpoint(place: str) -> Checkpoint:
    """Read the checkpoint in this folder, without writing to it or contacting the query."""
    folder = _folder(place)
    offsets, commits = _batches(folder / "offsets"), _batches(folder / "commits")
    if not offsets:
        raise BadInput(f"{folder} is not a checkpoint of Structured Streaming: its folder offsets has no batch")
    done = max((batch for batch in commits if batch in offsets), default=None)
    if done is None:
        raise BadInput(f"{folder}: no batch was committed, so there is no offset to import; use start= instead")
    begun = offsets[-1] if offsets[-1] > done else None
    later = [] if begun is None else _sources(folder / "offsets" / str(begun))
    return Checkpoint(str(folder), done, _sources(folder / "offsets" / str(done)), begun, later)


def _folder(place: str) -> Path:
    scheme, host, path = urlsplit(place)[:3]
    if scheme not in ("", "file") or host not in ("", "localhost"):
        raise BadInput(f"{place}: only a local folder can be read; copy the checkpoint to this machine first")
    return Path(unquote(path) if scheme else place)


def _batches(folder: Path) -> list[int]:
    try:
        files = list(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise BadInput(f"{folder} can't be read: {error.strerror}") from None
    return sorted(int(file.name) for file in files if file.name.isdecimal())


def _sources(file: Path) -> list[Offsets | None]:
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} can't be read: {getattr(error, 'strerror', None) or error}") from None
    if not lines or lines[0] != VERSION:
        raise BadInput(f"{file} has format {lines[0] if lines else 'none'}; only {VERSION} can be read")
    return [_source(line, file) for line in lines[2:]]


def _source(line: str, file: Path) -> Offsets | None:
    """Parse the offsets of a Kafka source, ``{"topic": {"0": 17}}``. Returns None for other sources."""
    if line == NO_OFFSET:
        return {}
    try:
        offsets = dict(_flat(json.loads(line)))
    except (ValueError, AttributeError, TypeError):
        return None
    if any(offset < 0 for offset in offsets.values()):
        raise BadInput(f"{file} has a negative offset, which Structured Streaming never writes")
    return offsets


def _flat(topics: Any) -> Iterator[tuple[Partition, int]]:
    for topic, partitions in topics.items():
        for number, offset in partitions.items():
            if not isinstance(offset, int):
                raise TypeError(offset)
            yield Partition(topic, int(number)), offset


def _merged(name: str, sources: Sequence[Offsets]) -> Offsets:
    merged: dict[Partition, int] = {}
    for source in sources:
        for partition, offset in source.items():
            if merged.setdefault(partition, offset) != offset:
                raise BadInput(f"{name}: two of its sources read {partition.topic}; choose one with --source")
    return merged


SURELY_PLAIN = 24
"""Kafka's tool always quotes names that are longer than this; shorter names it quotes only where needed."""


def write_offsets(offsets: Mapping[Partition, int]) -> str:
    """Format the offsets of one group as a file."""
    return "".join(
        f"{_quoted(partition.topic)},{partition.number},{offset}\n" for partition, offset in sorted(offsets.items())
    )


def read_offsets(lines: Iterable[str], group: str, name: str) -> dict[Partition, int]:
    """Parse the offsets of this group. ``name`` is the file name for error messages."""
    offsets: dict[Partition, int] = {}
    reader = csv.reader(lines)
    for cells in reader:
        place = f"{name} line {reader.line_num}"
        if cells and (row := _row(cells, group, place)):
            partition, offset = row
            if offsets.setdefault(partition, offset) != offset:
                raise BadInput(f"{place}: {partition} appears twice, with {offsets[partition]} and {offset}")
    if not offsets:
        raise BadInput(f"{name} has no offsets of group {group}")
    return offsets


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


def committed(brokers: Brokers, group: str) -> dict[Partition, int]:
    """Return the offsets that a Kafka group has committed."""
    groups = [ConsumerGroupTopicPartitions(group)]
    answers = brokers.ask(lambda admin: admin.list_consumer_group_offsets(groups, request_timeout=TIMEOUT))
    return {
        Partition(entry.topic, entry.partition): entry.offset
        for answer in answers.values()
        for entry in answer.topic_partitions
        if entry.offset >= 0
    }


def adopt(
    imported: Mapping[Partition, int], logs: Mapping[Partition, Log], positions: Mapping[Partition, Position]
) -> list[Planned]:
    """Plan the import of these offsets. Pure. Partitions without an imported offset are unchanged."""
    return [_adopted(log, imported.get(partition), positions.get(partition)) for partition, log in sorted(logs.items())]


def _adopted(log: Log, offset: int | None, position: Position | None) -> Planned:
    if position is not None:
        check_identity(position, log.topic_id, log.cluster_id)
    if offset is None:
        current = position.next_offset if position else None
        return Planned(log, position, current, current)
    if offset > log.end:
        raise BeyondEnd(
            f"{log.partition}: offset {offset} is past the end of the log at {log.end}; "
            "the offsets belong to another topic or cluster: check --brokers"
        )
    if position is not None and position.next_offset != offset:
        raise BadInput(
            f"{log.partition} already has position {position.next_offset}, and the import has {offset}; "
            "an import does not change positions: move it with tallymark reset"
        )
    return Planned(log, position, offset, offset)


def lag(planned: Planned) -> int | None:
    return None if planned.new is None else planned.log.end - planned.new


def meaning(planned: Planned, going_on: Collection[str]) -> str:
    """Describe what the next run will do. ``going_on`` are the topics with a position in any partition by then."""
    if planned.new is None and planned.partition.topic in going_on:
        return "not imported: starts at the earliest offset"
    if planned.new is None:
        return "not imported: starts where start= says"
    if not planned.changes:
        return "unchanged"
    gone = planned.log.start - planned.new
    if gone > 0:
        return f"{gone:,} offsets before {planned.log.start} are deleted and unread: on_loss= decides what happens"
    return f"continues at {planned.new}"


def adopting(plan: Sequence[Planned], imported: Mapping[Partition, int], reason: str) -> Decision:
    """Return a decision that creates the positions of the plan, unless different positions exist by then."""
    logs = {planned.partition: planned.log for planned in plan}

    def decide(positions: Mapping[Partition, Position], _: Sequence[Run]) -> PositionChanges:
        try:
            again = adopt(imported, logs, positions)
        except BadInput as moved:
            raise PositionMoved(f"{moved}; nothing was changed") from None
        return PositionChanges(
            {
                planned.partition: FirstClaim(
                    planned.new, planned.log.topic_id, planned.log.cluster_id, reason, planned.log.leader_epoch
                )
                for planned in again
                if planned.old is None and planned.new is not None
            }
        )

    return decide


def check_stopped(brokers: Brokers, group: str) -> None:
    """Refuse to import from a Kafka group with members: what it reads after the import would be read twice."""
    members = brokers.members(group)
    if members:
        names = ", ".join(sorted({f"{member.client}{member.host}" for member in members}))
        count = f"{len(members)} member{'s' * (len(members) != 1)}"
        raise BadInput(
            f"Kafka group {group} has {count} ({names}), which can't be fenced; stop them first, or use "
            "--while-running: records that they read from now on are read here again"
        )
