"""Finds the messages that a format names, in files and in the schemas of subjects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tallymark.errors import BadInput
from tallymark.formats.protobuf.columns import arrow_type
from tallymark.formats.protobuf.compiler import CONFLUENT, compiled, compiled_file
from tallymark.formats.protobuf.indexes import Indexes
from tallymark.formats.protobuf.schema import Files, Message, SchemaInvalid, parse
from tallymark.formats.registry import Registered

T = TypeVar("T")


def declared_message(path: str, message: str | None, *, column: bool = True) -> Message:
    """Return the message of a ``.proto`` file or of a FileDescriptorSet: the one with this name, or the only one.

    With ``column`` it must have a column.
    """
    try:
        files = _declared_files(path)
        return _checked(files.message(message) if message else files.only(), column=column)
    except SchemaInvalid as error:
        raise BadInput(f"Protobuf(schema={path!r}) can't be used: {error}") from None


def declared_text(path: str) -> str:
    """Return the text of a ``.proto`` file for a registry, whose subjects have one file each."""
    instead = "or register it with its references, and leave out schema= to write with the latest schema of the subject"
    if not path.endswith(".proto"):
        raise BadInput(f"Protobuf(schema={path!r}) is no .proto file, which registries have; name one, {instead}")
    try:
        imported = [name for name in _declared_files(path).imports if name not in CONFLUENT]
    except SchemaInvalid as error:
        raise BadInput(f"Protobuf(schema={path!r}) can't be used: {error}") from None
    if imported:
        raise BadInput(
            f"Protobuf(schema={path!r}) imports {imported[0]}, which a registry has under a subject of its own; write "
            f"a file without imports, {instead}"
        )
    return Path(path).read_text("utf-8-sig")


def subject_message(subject: str, found: Registered, message: str | None = None) -> Message:
    """Return the message of a subject, which must have a column: the one with this name, or the first."""
    return _of_subject(subject, found, lambda files: _checked(_named(files, message), column=True))


def written_message(subject: str, found: Registered, message: str | None = None) -> tuple[Message, Indexes]:
    """Return the message of a subject and its indexes. It may contain itself."""

    def choose(files: Files) -> tuple[Message, Indexes]:
        chosen = _named(files, message)
        return chosen, files.indexes(chosen.name)

    return _of_subject(subject, found, choose)


def _of_subject(subject: str, found: Registered, choose: Callable[[Files], T]) -> T:
    if found.kind != "PROTOBUF":
        raise BadInput(f"subject {subject} is not Protobuf but {found.kind}; use the format of its values")
    try:
        return choose(parse(compiled(found.text, found.imports)))
    except SchemaInvalid as error:
        raise BadInput(f"subject {subject} can't be used: {error}") from None


def _named(files: Files, name: str | None) -> Message:
    return files.message(name) if name else files.first()


def _declared_files(path: str) -> Files:
    try:
        return parse(compiled_file(Path(path)) if path.endswith(".proto") else Path(path).read_bytes())
    except OSError as error:
        raise SchemaInvalid(error.strerror or "the file can't be read") from None


def _checked(message: Message, *, column: bool) -> Message:
    if column:
        arrow_type(message)
    return message
