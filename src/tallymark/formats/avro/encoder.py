"""Encodes Python values as Avro, and says which field does not fit the schema.

Values are those that the decoders return, as docs/reference/avro.md lists them. A value is checked and its bytes are
appended in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from tallymark.errors import BadInput
from tallymark.formats.avro.columns import branch_names
from tallymark.formats.avro.compiler import Compiler, write_first
from tallymark.formats.avro.leaves import Output, Write, append_long, leaf, name_of
from tallymark.formats.avro.logical import logical_leaf
from tallymark.formats.avro.schema import Field, Schema, SchemaInvalid, parse
from tallymark.formats.misfit import Misfit


class AvroEncoder:
    """Encodes values of one schema: ``AvroEncoder('"long"')(42)``.

    ``references`` are the texts of the schemas that the schema uses, in an order in which each needs only earlier ones.
    """

    def __init__(self, text: str, references: Sequence[str] = ()) -> None:
        schema = writer_schema(text, references)
        self._name = name_of(schema)
        self._write = Values().compiled(schema)

    def __call__(self, value: Any) -> bytes:
        out = Output()
        try:
            self._write(value, out)
        except Misfit as misfit:
            raise BadInput(f"the value does not fit the Avro schema {self._name}: {misfit}") from None
        except RecursionError:
            raise BadInput("the value is nested too deeply to be written as Avro") from None
        return bytes(out)


def writer_schema(text: str, references: Sequence[str] = ()) -> Schema:
    """Parse a schema to write with."""
    try:
        return parse(text, references)
    except SchemaInvalid as error:
        raise BadInput(f"the schema is not valid Avro: {error}; correct it") from None


class Values(Compiler):
    """Encodes Python values."""

    def __init__(self, *, exact: bool = False) -> None:
        """With ``exact``, only values are accepted that become no others: a whole number is no double."""
        super().__init__()
        self._is_exact = exact
        self._exact = self if exact else Values(exact=True)

    def compiled(self, schema: Schema) -> Write:
        write = super().compiled(schema)
        if self._exact is not self:
            self._exact.complete()
        return write

    def leaf(self, schema: Schema) -> Write:
        return (logical_leaf if schema.logical else leaf)(schema, exact=self._is_exact)

    def entries_of(self, value: Any) -> Collection[tuple[Any, Any]] | None:
        # The decoders return maps as lists of pairs.
        if isinstance(value, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
            return value
        return super().entries_of(value)

    def missing(self, field: Field, record: Schema) -> Callable[[], bytes]:
        if self._is_exact:
            return partial(_refuse, field)
        return super().missing(field, record)

    def union(self, schema: Schema) -> Write:
        """Encode the value of a branch: in the struct of the decoders, or by itself.

        By itself, the first branch that it fits exactly is written, or else the first that it fits.
        """
        writes = list(map(self.write, schema.branches))
        exact = [] if self._is_exact else map(self._exact.write, schema.branches)
        alone = partial(write_first, [*enumerate(exact), *enumerate(writes)], name_of(schema))
        named = struct_branches(schema, writes)

        def write(value: Any, out: Output) -> None:
            if not isinstance(value, dict):
                return alone(value, out)
            name = branch_of(value, named)
            if name is None or len(value) < len(named):
                try:
                    return alone(value, out)
                except Misfit:
                    if name is None:
                        raise
            assert name is not None
            at, part = named[name]
            append_long(at, out)
            try:
                part(value[name], out)
            except Misfit as misfit:
                raise misfit.within(f".{name}") from None

        return write


def struct_branches(union: Schema, writes: Sequence[Write]) -> dict[str, tuple[int, Write]]:
    """Return index and function of each branch by its name in the struct of the decoders; none if it has none."""
    others = [at for at, branch in enumerate(union.branches) if branch.type != "null"]
    try:
        names = branch_names([union.branches[at] for at in others]) if len(others) > 1 else []
    except SchemaInvalid:
        return {}
    return {name: (at, writes[at]) for name, at in zip(names, others, strict=False)}


def branch_of(value: dict[str, Any], named: dict[str, Any]) -> str | None:
    """Return the one branch of a struct that is not None; None if it is no struct of these branches."""
    if not value.keys() <= named.keys():
        return None
    given = [name for name in value if value[name] is not None]
    return given[0] if len(given) == 1 else None


def _refuse(field: Field) -> bytes:
    raise Misfit(f"field {field.name} is missing")
