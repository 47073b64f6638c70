"""What the records of each topic become: how they are decoded, and the tables that get them.

Topics with the same formats and the same tables share a layout. A topic gets its layout when it is read first.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tallymark.core.replica import with_key
from tallymark.core.spans import Span
from tallymark.core.tables import PLACE, TableSpec
from tallymark.core.topics import is_by_topic, is_pattern, table_of
from tallymark.errors import BadInput
from tallymark.formats import schema as ddl
from tallymark.formats.debezium.changes import check_replica
from tallymark.formats.decoders import Decoders
from tallymark.formats.value import Avro, Debezium, Format, Protobuf, check_follows, is_latest
from tallymark.kafka.source import Kafka
from tallymark.spark.functions import TableFunction
from tallymark.spark.plans import column
from tallymark.spark.replica import of_changes
from tallymark.spark.rows import Shaper
from tallymark.spark.tasks import Tasks
from tallymark.stores.arrow import SCHEMAS_MARK

log = logging.getLogger(__name__)

Table = tuple[TableSpec, TableFunction]


@dataclass(frozen=True, eq=False)
class Layout:
    """Decodes and shapes the records of topics that are alike."""

    decoders: Decoders
    shaper: Shaper
    tasks: Tasks

    @property
    def is_outgrown(self) -> bool:
        """Whether records have fields for which a table may get columns that it lacks."""
        return self.decoders.is_outgrown and any(spec.follows for spec, _ in self.shaper.tables)


New = Callable[[Decoders, Sequence[Table], str | None], Layout]
"""Creates a layout from decoders and tables, for one topic or for several."""


class Layouts:
    """The layouts of a source. Several threads may ask for them."""

    def __init__(
        self, source: Kafka, tables: Sequence[Table], decoders: Callable[[str | None], Decoders], new: New
    ) -> None:
        self._source, self._tables, self._decoders, self._new = source, tables, decoders, new
        self._by_topic: dict[str, Layout] = {}
        self._by_content: dict[tuple[Format, tuple[TableSpec, ...]], Layout] = {}
        self._made_from: dict[Layout, tuple[Sequence[Table], str | None, str | None]] = {}
        self._lock = threading.Lock()
        self._has_begun = False
        formats = [source.value, source.key]
        self.is_shared = (
            not source.formats
            and not any(is_by_topic(spec) for spec, _ in tables)
            and (_is_plain(source) or not any(map(_has_own_subject, formats)))
        )
        """Whether all topics have the same layout."""
        self._shared: Layout | None = None

    @property
    def known(self) -> list[Layout]:
        """The layouts of the topics that were asked for."""
        if self.is_shared:
            return [self._the_same]
        return list(dict.fromkeys(self._by_topic.values()))

    def begin(self, topics: Callable[[], Sequence[str]]) -> None:
        """Create the layouts of the topics that there are."""
        for topic in () if self.is_shared else topics():
            self.of(topic)
        self._has_begun = True

    @property
    def tables(self) -> list[TableSpec]:
        """The tables of the known layouts."""
        return list(dict.fromkeys(spec for layout in self.known for spec, _ in layout.shaper.tables))

    def schemas(self) -> dict[str, pa.Schema]:
        """The columns of every table. A table that gets several topics has the same columns for each of them."""
        names = Counter(spec.name for spec in self.tables)
        if twice := sorted(name for name, count in names.items() if count > 1):
            raise BadInput(
                f"more than one function fills table {', '.join(twice)}, and its rows would be there more than once; "
                "give their tables other names, or use one function with a pattern of topics="
            )
        return _columns(self.known)

    def follow(self, spans: Sequence[Span]) -> bool:
        """Ask for the latest schemas if records of these spans have fields that their layouts lack.

        Layouts with new columns take the place of those. Returns whether there are any: the spans must be read again.
        """
        grown = [self._grown(layout) for layout in self.of_spans(spans) if layout.is_outgrown]
        return any(grown)

    def of(self, topic: str) -> Layout:
        """Return the layout of a topic."""
        if self.is_shared:
            return self._the_same
        found = self._by_topic.get(topic)
        if found is None:
            with self._lock:
                found = self._by_topic.get(topic) or self._create(topic)
                if self._has_begun:
                    # Otherwise the start compares all layouts.
                    _columns([*self.known, found])
                self._by_topic[topic] = found
        return found

    def of_spans(self, spans: Sequence[Span]) -> Mapping[Layout, list[Span]]:
        """Return the spans of each layout."""
        found: dict[Layout, list[Span]] = {}
        for span in spans:
            found.setdefault(self.of(span.partition.topic), []).append(span)
        return found

    @property
    def _the_same(self) -> Layout:
        with self._lock:
            if self._shared is None:
                names = self._source.topic_names
                only = names[0] if _is_plain(self._source) else None
                self._shared = self._made(self._tables, None, only)
            return self._shared

    def _create(self, topic: str) -> Layout:
        named = [(table_of(spec, topic), function) for spec, function in self._tables]
        tables = [(spec, function) for spec, function in named if spec is not None]
        if not tables:
            raise BadInput(f"topic {topic} has no table; add one with topics=, or leave the topic out")
        value = self._source.value_of(topic)
        is_alone = any(map(_has_own_subject, (value, self._source.key))) or any(
            PLACE.search(spec.name) for spec, _ in self._tables
        )
        if is_alone:
            return self._made(tables, topic, topic)
        content = value, tuple(spec for spec, _ in tables)
        if content not in self._by_content:
            self._by_content[content] = self._made(tables, topic, None)
        return self._by_content[content]

    def _made(self, tables: Sequence[Table], topic: str | None, only: str | None) -> Layout:
        """Create the layout of a topic, or of all topics. ``only`` is the one topic that it is for."""
        decoders = self._decoders(topic)
        made = self._new(decoders, [self._with_changes(table, decoders, topic) for table in tables], only)
        self._made_from[made] = tables, topic, only
        return made

    def _grown(self, layout: Layout) -> bool:
        """Put a layout with the columns of the latest schemas in the place of this one, if it has more."""
        decoders = layout.decoders.grown()
        if decoders is None:
            return False
        tables, topic, only = self._made_from[layout]
        columns = layout.shaper.schemas
        made = self._new(
            decoders,
            [
                (spec, function if spec.follows else _of(columns[spec.name].names, function))
                for spec, function in (self._with_changes(table, decoders, topic) for table in tables)
            ],
            only,
        )
        # What the functions refuse is found before the layout is used.
        for name, schema in made.shaper.schemas.items():
            if changed := [field.name for field in columns[name] if field not in list(schema)]:
                raise BadInput(
                    f"table {name}: its function changes column {changed[0]} when records have the new fields of "
                    f"{decoders.origin}; start the run again, or correct the function"
                )
        _columns([made if one is layout else one for one in self.known])
        log.info("following schemas=%s instead=%s", decoders.origin, layout.decoders.origin)
        with self._lock:
            self._made_from[made] = self._made_from.pop(layout)
            self._shared = made if self._shared is layout else self._shared
            self._by_topic.update({topic: made for topic, one in self._by_topic.items() if one is layout})
            self._by_content.update({content: made for content, one in self._by_content.items() if one is layout})
        return True

    def _with_changes(self, table: Table, decoders: Decoders, topic: str | None) -> Table:
        """The table; a replica has a key, and a function that gets the rows of change events."""
        spec, function = table
        value = self._source.value if topic is None else self._source.value_of(topic)
        if spec.follows:
            check_follows(spec.name, value, self._source.key)
        if not spec.is_replica:
            return table
        check_replica(spec.name, value)
        key = decoders.key.type if decoders.key else None
        spec = with_key(spec, [field.name for field in key] if key is not None and pa.types.is_struct(key) else ())
        return spec, of_changes(spec.key, function)


def _columns(layouts: Sequence[Layout]) -> dict[str, pa.Schema]:
    """The columns of every table; refuses a table that would get other columns from one layout than from another."""
    found: dict[str, pa.Schema] = {}
    for layout in layouts:
        for spec, _ in layout.shaper.tables:
            schema = _described(layout.shaper.schemas[spec.name], layout.decoders)
            found[spec.name] = _both(spec, found.get(spec.name, schema), schema)
    return found


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {ddl.name(field.type)}" for field in schema)


def _is_plain(source: Kafka) -> bool:
    """Whether the source is a single topic."""
    return len(source.topic_names) == 1 and not is_pattern(source.topic_names[0])


def _has_own_subject(source: Format) -> bool:
    """Whether each topic has another reader's schema."""
    found = source.inner if isinstance(source, Debezium) else source
    return is_latest(source) and isinstance(found, (Avro, Protobuf)) and found.subject is None


def _of(names: Sequence[str], function: TableFunction) -> TableFunction:
    """Return the function of a table that keeps these columns."""
    return lambda records: function(records).select(*map(column, names))


def _described(schema: pa.Schema, decoders: Decoders) -> pa.Schema:
    """Return the columns with the schemas that they come from, for errors."""
    origin = decoders.origin
    return schema.with_metadata({SCHEMAS_MARK: origin.encode()}) if origin else schema


def _both(spec: TableSpec, known: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return the columns of a table that gets rows with these columns from different topics.

    Only a table that follows the schemas may lack some in the rows of a topic: one topic is the first to get them.
    """
    common = [field for field in other if field.name in known.names]
    needed = {*spec.key, *([spec.version] if spec.version else [])}
    may_differ = spec.follows and needed <= set(known.names) & set(other.names)
    if all(field.equals(known.field(field.name)) for field in common) and (may_differ or known.equals(other)):
        return pa.schema([*known, *(field for field in other if field not in common)], metadata=known.metadata)
    raise BadInput(
        f"table {spec.name} would get other columns from some topics than from others: {_listed(other)} instead of "
        f"{_listed(known)}; give it topics=, or name it by the topic, such as {{topic}}"
    )
