"""Decodes and shapes records that the driver has, by the layouts of their topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from tallymark.core import raw
from tallymark.core.drift import Fields, merged
from tallymark.core.records import DeadLetter, Reading
from tallymark.core.spans import Partition, Span
from tallymark.core.unmatched import NO_ROW, unmatched
from tallymark.formats.decoded import DecodedRecords
from tallymark.spark.layouts import Layout, Layouts
from tallymark.spark.tasks import joined


class GivenRecords:
    """Makes readings of records in the driver. With ``finds_unmatched``, a record without a row is dead."""

    def __init__(self, layouts: Layouts, *, finds_unmatched: bool) -> None:
        self._layouts, self._finds_unmatched = layouts, finds_unmatched

    def shaped(self, records: pa.Table, spans: Sequence[Span]) -> Reading:
        """Return the reading of these records, which are all of these spans."""
        return joined([self._alike(*part) for part in self.by_layout(records, spans)])

    def drift(self, letters: Sequence[DeadLetter]) -> Mapping[Partition, Fields]:
        """Return the fields of these records that the schema does not name."""
        records, spans = raw.of_letters(letters), raw.hulls((letter.partition, letter.offset) for letter in letters)
        found: Mapping[Partition, Fields] = {}
        for layout, part, _ in self.by_layout(records, spans):
            found = merged(found, DecodedRecords.of(part, layout.decoders).drift)
        return found

    def by_layout(self, records: pa.Table, spans: Sequence[Span]) -> Iterator[tuple[Layout, pa.Table, list[Span]]]:
        """Yield the records and the spans of each layout."""
        layouts = self._layouts.of_spans(spans)
        for layout, own in layouts.items():
            topics = pa.array({span.partition.topic for span in own}, pa.string())
            found = records if len(layouts) == 1 else records.filter(pc.is_in(records["topic"], value_set=topics))
            yield layout, found, own

    def _alike(self, layout: Layout, records: pa.Table, spans: Sequence[Span]) -> Reading:
        decoded = DecodedRecords.of(records, layout.decoders)
        alive = raw.leave_out(decoded.records, decoded.errors.keys())
        rows, refusals = layout.shaper.shape_arrow(alive, spans)
        if self._finds_unmatched:
            no_row = dict.fromkeys(unmatched(records, rows.values(), refusals), NO_ROW)
            decoded = replace(decoded, errors=no_row | dict(decoded.errors))
        letters = raw.letters(records, decoded.errors)
        seen = raw.seen(records, decoded.errors.keys())
        return Reading(seen, rows, letters, refusals, decoded.size, drift=decoded.drift)
