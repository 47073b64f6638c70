"""Turns the errors of pydantic into sentences: file, line, key, what is wrong, and what is allowed."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tallymark.cli.toml.document import Document, Keys
from tallymark.cli.toml.model import SECTIONS
from tallymark.errors import BadInput

M = TypeVar("M", bound=BaseModel)

WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "time_delta_type": "a time",
}
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
MISSING = ("missing", "missing_argument")


def validated(model: type[M], document: Document) -> M:
    """The document as the model. Raises ``BadInput`` with a sentence for each wrong value."""
    try:
        # Only for JSON, pydantic's strict mode accepts a table as a dataclass.
        return model.model_validate_json(json.dumps(document.values, default=str))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=True)
    raise BadInput("\n".join(_sentences(model, document, found)))


def _sentences(model: type[BaseModel], document: Document, found: Iterable[Any]) -> list[str]:
    by_key: dict[Keys, list[Any]] = {}
    for one in found:
        by_key.setdefault(_keys(document.written, one["loc"], one["type"]), []).append(one)
    meant = {(*keys[:-1], _meant(model, keys)) for keys, ones in by_key.items() if ones[0]["type"] in UNKNOWN}
    # If a value may have several shapes, the error about the shape that it has says more.
    shown = [keys for keys in by_key if keys not in meant and not any(_inside(keys, other) for other in by_key)]
    shown.sort(key=document.line)
    return [
        f"{document.where(keys)}: {document.as_written(_sentence(model, document, keys, by_key[keys]))}"
        for keys in shown
    ]


def _inside(keys: Keys, other: Keys) -> bool:
    return len(other) > len(keys) and other[: len(keys)] == keys


def _keys(value: Any, location: Sequence[Any], kind: str) -> Keys:
    """The keys in the file: pydantic's location without the names of its validators."""
    keys: list[str] = []
    for number, part in enumerate(location, start=1):
        last = number == len(location) and kind in MISSING
        if isinstance(value, dict) and (part in value or last):
            keys.append(str(part))
            value = value.get(part)
    return tuple(keys)


def _sentence(model: type[BaseModel], document: Document, keys: Keys, ones: Sequence[Any]) -> str:
    name, first = ".".join(keys), ones[0]
    if first["type"] == "refused":
        return str(first["ctx"]["said"])
    if first["type"] in MISSING:
        return f"{name} is missing"
    if first["type"] in UNKNOWN:
        meant = _meant(model, keys)
        advice = f"did you mean {meant}?" if meant else f"known here are {', '.join(known_names(model, keys[:-1]))}"
        return f"{name} is not known; {advice}"
    written = _at(document.written, keys)
    if first["type"] == "literal_error":
        ones = ones[:1]
    is_literal = any(one["type"] == "literal_error" for one in ones)
    given = json.dumps(written, ensure_ascii=False, default=str) if is_literal else _kind(written)
    return f"{name} must be {' or '.join(dict.fromkeys(map(_wanted, ones)))}, not {given}"


def _wanted(one: Mapping[str, Any]) -> str:
    if one["type"] == "literal_error":
        return str(one["ctx"]["expected"]).replace("'", "")
    return str(one.get("ctx", {}).get("wanted") or WANTED.get(one["type"], "a table"))


def known_names(model: type[BaseModel], table: Keys) -> list[str]:
    """The keys that a table of the file can have."""
    described = SECTIONS.get(("tables", "*") if table[:1] == ("tables",) else table, model)
    if dataclasses.is_dataclass(described):
        return [one.name for one in dataclasses.fields(described)]
    fields: Mapping[str, Any] = getattr(described, "model_fields", {})
    return [one.alias or name for name, one in fields.items()]


def _meant(model: type[BaseModel], keys: Keys) -> str:
    """The known name that is most similar to the last of these keys, if there is one."""
    return next(iter(difflib.get_close_matches(keys[-1], known_names(model, keys[:-1]), n=1)), "")


def _at(value: Any, keys: Keys) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _kind(value: Any) -> str:
    return next((said for kind, said in KINDS.items() if isinstance(value, kind)), "a table")
