"""Messages of Protobuf schemas, read from the descriptors that the official compiler writes.

Only descriptors are taken from the official library. It is an extra (``tallymark[protobuf]``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from tallymark.errors import BadInput

WELL_KNOWN = "google/protobuf/"
"""The folder of files that the library has itself."""
TYPES = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    7: "fixed32",
    8: "bool",
    9: "string",
    10: "group",
    11: "message",
    12: "bytes",
    13: "uint32",
    14: "enum",
    15: "sfixed32",
    16: "sfixed64",
    17: "sint32",
    18: "sint64",
}
"""The names of the types by their numbers in ``descriptor.proto``."""
LIBRARY = ("google.protobuf.descriptor_pb2", "google.protobuf.descriptor_pool", "google.protobuf.message")
SHOWN = 10
"""Maximum number of messages that an error message lists."""


class SchemaInvalid(ValueError):
    """A schema is not valid, or has no column type. The message is one phrase."""


@dataclass(eq=False, slots=True)
class Message:
    """A message type. ``name`` is the full name. Only messages may contain themselves."""

    name: str
    is_map: bool = False
    """Whether it is the entry of a map: its fields are the key and the value."""
    fields: tuple[Field, ...] = field(default=(), repr=False)

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, eq=False, slots=True)
class Field:
    """A field of a message."""

    name: str
    number: int
    type: str
    is_repeated: bool = False
    has_presence: bool = False
    """Whether a field that was not set is known to be missing: ``optional``, messages, members of a oneof."""
    message: Message | None = field(default=None, repr=False)
    symbols: Mapping[int, str] = field(default_factory=dict, repr=False)
    """The names of an enum's numbers; of several names, the first."""
    oneof: str = ""
    default: Any = None
    """The value of a field that was not set; None if there is none. That of an enum is its number."""
    numbers: Mapping[str, int] = field(default_factory=dict, repr=False)
    """The numbers of an enum's names."""
    is_packed: bool = False
    is_required: bool = False

    @property
    def is_map(self) -> bool:
        return self.message is not None and self.message.is_map


class Files:
    """The files of one schema: those that define it, and those that they import."""

    def __init__(self, mains: Sequence[Any], others: Sequence[Any]) -> None:
        """``mains`` are the library's descriptors of the files that no other file imports."""
        self._mains, self._others = mains, others
        self._messages: dict[str, Message] = {}

    @property
    def names(self) -> list[str]:
        """The full names of the messages at the top level, in the order of the files."""
        return [kind.full_name for kind in self._top_level]

    @property
    def imports(self) -> list[str]:
        """The names of the files that the schema imports, except for those that every compiler has."""
        used = {name for file in self._mains for name in (one.name for one in file.dependencies)}
        return sorted(name for name in used if not name.startswith(WELL_KNOWN))

    def message(self, name: str) -> Message:
        """Return the message with this full name; of a name without a package, the only one with this name."""
        own, imported = (
            {kind.full_name: kind for file in files for kind in _all(file.message_types_by_name.values())}
            for files in (self._mains, self._others)
        )
        exact = own.get(name) or imported.get(name)
        ending = [kind for full, kind in own.items() if full.endswith(f".{name}")]
        found = [exact] if exact else ending
        if len(found) != 1:
            raise SchemaInvalid(f"it has {'several' if found else 'no'} messages {name}, but {listed(list(own))}")
        return self._read(found[0])

    def first(self) -> Message:
        """Return the first message."""
        return self.at((0,))

    def only(self) -> Message:
        """Return the only message at the top level."""
        if len(self.names) != 1:
            raise SchemaInvalid(f"it has {listed(self.names)}: name one with message=")
        return self.first()

    def at(self, indexes: Sequence[int]) -> Message:
        """Return the message with these indexes: that of a message at the top level, then those of nested ones."""
        kinds = self._top_level
        found = None
        for index in indexes:
            if not 0 <= index < len(kinds):
                raise SchemaInvalid(f"it has no message with the indexes {list(indexes)}")
            found = kinds[index]
            kinds = list(found.nested_types)
        if found is None:
            raise SchemaInvalid("it has no message without indexes")
        return self._read(found)

    def indexes(self, name: str) -> tuple[int, ...]:
        """Return the indexes of the message with this full name, as ``at`` takes them."""
        waiting: list[tuple[tuple[int, ...], Any]] = [((at,), kind) for at, kind in enumerate(self._top_level)]
        while waiting:
            places, kind = waiting.pop()
            if kind.full_name == name:
                return places
            waiting += [((*places, at), inner) for at, inner in enumerate(kind.nested_types)]
        raise SchemaInvalid(
            f"message {name} is imported, so it has no message indexes: name one of {listed(self.names)}"
        )

    @property
    def _top_level(self) -> list[Any]:
        return [kind for file in self._mains for kind in file.message_types_by_name.values()]

    def _read(self, kind: Any) -> Message:
        """Read a message and those that its fields need; a loop, because a message may lead to many others."""
        waiting: list[Any] = []
        root = self._known(kind, waiting)
        while waiting:
            one = waiting.pop()
            self._messages[one.full_name].fields = tuple(self._field(part, waiting) for part in one.fields)
        return root

    def _known(self, kind: Any, waiting: list[Any]) -> Message:
        found = self._messages.get(kind.full_name)
        if found is None:
            found = self._messages[kind.full_name] = Message(kind.full_name, kind.GetOptions().map_entry)
            waiting.append(kind)
        return found

    def _field(self, part: Any, waiting: list[Any]) -> Field:
        kind = TYPES[part.type]
        presence = part.has_presence and not part.is_repeated
        # Of a oneof, all members but one are missing, also if they declare a default.
        has_default = part.has_default_value and part.containing_oneof is None
        if part.is_repeated or kind in ("message", "group"):
            has_default = False
        elif not presence:
            has_default = True
        symbols: dict[int, str] = {}
        names = () if part.enum_type is None else part.enum_type.values
        for value in names:
            symbols.setdefault(value.number, value.name)
        return Field(
            part.name,
            part.number,
            kind,
            part.is_repeated,
            presence,
            None if part.message_type is None else self._known(part.message_type, waiting),
            symbols,
            part.containing_oneof.name if part.containing_oneof is not None else "",
            part.default_value if has_default else None,
            {value.name: value.number for value in names},
            part.is_packed,
            part.is_required,
        )


def parse(content: bytes) -> Files:
    """Read a FileDescriptorSet, as ``protoc --descriptor_set_out --include_imports`` writes it."""
    descriptors, pools, messages = _library()
    try:
        files = descriptors.FileDescriptorSet.FromString(content).file
    except messages.DecodeError as error:
        raise SchemaInvalid(f"it is not a FileDescriptorSet: {error}") from None
    if not files:
        raise SchemaInvalid("it is not a FileDescriptorSet: it has no files")
    by_name = {file.name: file for file in files}
    pool = pools.DescriptorPool()
    imported = {name for file in files for name in file.dependency}
    try:
        _add_all(pool, by_name)
        mains, others = (
            [pool.FindFileByName(name) for name in by_name if (name in imported) == is_imported]
            for is_imported in (False, True)
        )
        return Files(mains, others)
    except (TypeError, KeyError) as error:
        raise SchemaInvalid(f"its descriptors do not fit together: {error.args[0]}") from None


def _add_all(pool: Any, by_name: Mapping[str, Any]) -> None:
    """Add files, each after those that it imports."""
    done: set[str] = set()
    waiting = [(name, False) for name in reversed(list(by_name))]
    while waiting:
        name, is_ready = waiting.pop()
        if is_ready:
            pool.Add(by_name[name]) if name in by_name else pool.AddSerializedFile(_own_file(name))
        elif name not in done:
            done.add(name)
            waiting.append((name, True))
            if name in by_name:
                waiting += [(used, False) for used in by_name[name].dependency]


def _own_file(name: str) -> bytes:
    """The descriptor of a file that the library has itself."""
    if name.startswith(WELL_KNOWN):
        try:
            module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        except ImportError:
            pass
        else:
            found: bytes = module.DESCRIPTOR.serialized_pb
            return found
    raise SchemaInvalid(f"it lacks {name}, which it imports; write it with --include_imports")


def _library() -> tuple[Any, Any, Any]:
    """The modules of the library for descriptors, pools of them, and messages."""
    try:
        descriptors, pools, messages = map(import_module, LIBRARY)
    except ImportError:
        raise BadInput("Protobuf() needs protobuf, which is not installed: pip install 'tallymark[protobuf]'") from None
    return descriptors, pools, messages


def _all(kinds: Sequence[Any]) -> Iterator[Any]:
    """Yield messages and those that are defined inside them, but no entries of maps."""
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop(0)
        if not kind.GetOptions().map_entry:
            yield kind
            waiting += list(kind.nested_types)


def listed(names: Sequence[str]) -> str:
    """Write names for an error message."""
    if not names:
        return "no messages"
    more = f" and {len(names) - SHOWN} others" if len(names) > SHOWN else ""
    return f"the message{'s' if len(names) > 1 else ''} {', '.join(names[:SHOWN])}{more}"


def listed_symbols(enum: Field) -> str:
    """Write the names of an enum for an error message."""
    return ", ".join(list(enum.numbers)[:SHOWN]) + (", ..." if len(enum.numbers) > SHOWN else "")
