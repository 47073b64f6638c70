"""The steps that skip what the reader does not have."""

from __future__ import annotations

from tallymark.formats.avro.program import Step
from tallymark.formats.avro.schema import Schema

FIXED = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class Skipping:
    """Skips the types of one writer. ``skips`` has the fields of its records."""

    def __init__(self) -> None:
        self.skips: dict[str, list[Step]] = {}
        self._waiting: list[Schema] = []
        self._empty: dict[Schema, bool] = {}

    def step(self, schema: Schema) -> Step:
        found = self._step(schema)
        # A loop, because a record may lead to many others.
        while self._waiting:
            record = self._waiting.pop()
            if record.name not in self.skips:
                self.skips[record.name] = [self._step(field.schema) for field in record.fields]
        return found

    def is_empty(self, schema: Schema) -> bool:
        """Whether values of this type take no bytes."""
        if schema.type == "record":
            if schema not in self._empty:
                # Ends the recursion: a record that is its own field has no values.
                self._empty[schema] = True
                self._empty[schema] = all(self.is_empty(field.schema) for field in schema.fields)
            return self._empty[schema]
        return schema.type == "null" or (schema.type == "fixed" and schema.size == 0)

    def _step(self, schema: Schema) -> Step:
        if self.is_empty(schema):
            return {"skip": "fixed", "size": 0}
        if schema.type == "record":
            self._waiting.append(schema)
            return {"skip": "record", "name": schema.name}
        if schema.type == "union":
            return {"skip": "union", "branches": [self._step(branch) for branch in schema.branches]}
        if schema.type in ("array", "map"):
            return {"skip": schema.type, "items" if schema.type == "array" else "values": self._step(schema.item)}
        if schema.type in ("int", "long", "enum"):
            return {"skip": "varint"}
        if schema.type in ("bytes", "string"):
            return {"skip": "bytes"}
        return {"skip": "fixed", "size": schema.size if schema.type == "fixed" else FIXED[schema.type]}
