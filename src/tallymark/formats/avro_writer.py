"""Writes Python values as Avro, with fastavro."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from tallymark.errors import BadInput
from tallymark.formats.avro_checks import Checks, Unfit, name_of

PARSED, NAMED = "__fastavro_parsed", "__named_schemas"


class AvroWriter:
    """Writes values of one schema: ``AvroWriter('"long"')(42)``.

    A value that does not fit the schema is refused with the path of the field. ``references`` are the texts of the
    schemas that the schema uses, in an order in which each needs only earlier ones.
    """

    def __init__(self, text: str, references: Sequence[str] = ()) -> None:
        fastavro = require_fastavro()
        named: dict[str, Any] = {}
        try:
            for reference in references:
                fastavro.parse_schema(json.loads(reference), named)
            self._schema = _parsed(fastavro.parse_schema(json.loads(text), named), named)
            for schema in (self._schema, *named.values()):
                _decode_defaults(schema)
            self._check = Checks(named).of(self._schema)
        except Exception as error:  # noqa: BLE001 - fastavro raises anything for what is no schema
            raise BadInput(f"the schema is not valid Avro: {type(error).__name__}: {error}; correct it") from None
        self._write = fastavro.schemaless_writer

    def __call__(self, value: Any) -> bytes:
        try:
            self._check(value)
            content = BytesIO()
            self._write(content, self._schema, value)
        except Unfit as unfit:
            raise BadInput(f"the value does not fit the Avro schema {name_of(self._schema)}: {unfit}") from None
        except UnicodeEncodeError:
            raise BadInput("the value has text with half of a surrogate pair, which Avro can't write") from None
        except RecursionError:
            raise BadInput("the value is nested too deeply to be written as Avro") from None
        except (ValueError, TypeError, ArithmeticError, LookupError) as error:
            raise BadInput(f"the value can't be written as Avro schema {name_of(self._schema)}: {error}") from None
        return content.getvalue()


def require_fastavro() -> Any:
    """Import fastavro, or say how to install it."""
    try:
        import fastavro
    except ModuleNotFoundError:
        raise BadInput("Avro is written with fastavro, which is not installed: pip install 'tallymark[avro]'") from None
    return fastavro


def _parsed(schema: Any, named: dict[str, Any]) -> Any:
    """Let fastavro find the types that a schema uses by name: by itself it keeps them for records alone."""
    if isinstance(schema, list):
        return [_parsed(branch, named) for branch in schema]
    if isinstance(schema, str):
        return _parsed(named[schema], named) if schema in named else schema
    return {**schema, PARSED: True, NAMED: named}


def _decode_defaults(schema: Any) -> None:
    """Replace defaults of bytes, which are text in JSON, because fastavro writes them as they are."""
    for field in schema.get("fields", ()) if isinstance(schema, dict) else ():
        kind = field["type"][0] if isinstance(field["type"], list) else field["type"]
        kind = kind["type"] if isinstance(kind, dict) else kind
        if kind in ("bytes", "fixed") and isinstance(field.get("default"), str):
            field["default"] = field["default"].encode("latin-1")
