"""The offsets in the checkpoint of a Structured Streaming query.

Before a batch Spark writes to ``offsets/N`` where it will end, and after it an empty word to ``commits/N``. So the
newest batch that has both is done, and the next one begins at its offsets. A batch that has only offsets was begun:
nobody can tell from here whether its sink has written it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tallymark.errors import BadInput
from tallymark.spans import Partition, Span

VERSION, NO_OFFSET = "v1", "-"
Offsets = Mapping[Partition, int]


@dataclass(frozen=True)
class Checkpoint:
    """Where a query has come to. ``sources`` are those of its batch ``batch``, None where one is not Kafka."""

    name: str
    batch: int
    sources: Sequence[Offsets | None]
    begun: int | None = None
    begun_sources: Sequence[Offsets | None] = ()

    def offsets(self, source: int | None = None) -> Offsets:
        """The offsets of one source, or of all that are Kafka's."""
        return _merged(self.name, self._chosen(self.sources, source))

    def unsure(self, source: int | None = None) -> list[Span]:
        """What the batch that was begun would have read: maybe it is written, maybe not."""
        done = self.offsets(source)
        ends = _merged(self.name, self._chosen(self.begun_sources, source)) if self.begun is not None else {}
        return [Span(one, done.get(one, 0), end) for one, end in sorted(ends.items()) if end > done.get(one, 0)]

    def _chosen(self, sources: Sequence[Offsets | None], source: int | None) -> list[Offsets]:
        if source is not None and not 0 <= source < len(sources):
            raise BadInput(f"{self.name} has no source {source}; it has {len(sources)}, the first one is 0")
        found = [one for one in (sources if source is None else [sources[source]]) if one is not None]
        if not found:
            raise BadInput(f"{self.name}: its {'sources are' if source is None else f'source {source} is'} not Kafka's")
        return found


def read_checkpoint(place: str) -> Checkpoint:
    """The checkpoint in this folder. Nothing is written there, and the query is not asked."""
    folder = _folder(place)
    offsets, commits = _batches(folder / "offsets"), _batches(folder / "commits")
    if not offsets:
        raise BadInput(f"{folder} is no checkpoint of Structured Streaming: there is no batch in its folder offsets")
    done = max((one for one in commits if one in offsets), default=None)
    if done is None:
        raise BadInput(
            f"{folder}: no batch of it was committed, so there is no offset to take over; use start= instead"
        )
    begun = offsets[-1] if offsets[-1] > done else None
    later = [] if begun is None else _sources(folder / "offsets" / str(begun))
    return Checkpoint(str(folder), done, _sources(folder / "offsets" / str(done)), begun, later)


def _folder(place: str) -> Path:
    scheme, host, path = urlsplit(place)[:3]
    if scheme not in ("", "file") or host not in ("", "localhost"):
        raise BadInput(f"{place}: only a folder of this machine can be read; copy the checkpoint here first")
    return Path(unquote(path) if scheme else place)


def _batches(folder: Path) -> list[int]:
    try:
        found = list(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise BadInput(f"{folder} can't be read: {error.strerror}") from None
    return sorted(int(file.name) for file in found if file.name.isdecimal())


def _sources(file: Path) -> list[Offsets | None]:
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} can't be read: {getattr(error, 'strerror', None) or error}") from None
    if not lines or lines[0] != VERSION:
        raise BadInput(f"{file} is written as {lines[0] if lines else 'nothing'}; only {VERSION} can be read")
    return [_source(line, file) for line in lines[2:]]


def _source(line: str, file: Path) -> Offsets | None:
    """What Kafka's source writes is ``{"topic": {"0": 17}}``. Others write other things."""
    if line == NO_OFFSET:
        return {}
    try:
        found = dict(_flat(json.loads(line)))
    except (ValueError, AttributeError, TypeError):
        return None
    if any(offset < 0 for offset in found.values()):
        raise BadInput(f"{file} holds an offset below zero, which Structured Streaming never writes")
    return found


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
