"""SQL expressions that combine a stored row with a new one, for ``write="merge"``; core/merging.py has the rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from tallymark.core.merging import BY_VERSION
from tallymark.core.tables import TableSpec
from tallymark.errors import DataRefused

_CHOICE = "CASE WHEN {when} THEN {given} ELSE {there} END"
_APPEND = "CASE WHEN {given} IS NULL THEN {there} WHEN {there} IS NULL THEN {given} ELSE {joined} END"
# In strict mode, text in place of a number is an error: JSON_MERGE_PRESERVE would make an array of any value.
_NO_ARRAY = "JSON_ARRAY(CONCAT('no JSON array: ', COALESCE(JSON_TYPE({there}), 'not valid')) + 0)"
_COUNT = "(JSON_LENGTH({there}) + JSON_LENGTH({given}))"
# Not '$[last-9 to last]': for a constant path MariaDB takes the length of the first row's array for all rows.
_LAST = f"CONCAT('$[', GREATEST({_COUNT} - {{bound}}, 0), ' to ', {_COUNT} - 1, ']')"
# MariaDB returns NULL instead of an array that is larger than a packet.
_MYSQL = f"""CASE WHEN COALESCE(JSON_TYPE({{there}}), '') <> 'ARRAY' THEN {_NO_ARRAY} WHEN {_COUNT} = 0 THEN {{given}}
ELSE COALESCE(JSON_EXTRACT(JSON_MERGE_PRESERVE({{there}}, {{given}}), {_LAST}), {_NO_ARRAY}) END"""
_POSTGRESQL = """(SELECT COALESCE({json}_agg(element ORDER BY part, place), '[]') FROM (SELECT * FROM (
SELECT 1 AS part, * FROM {json}_array_elements({there}) WITH ORDINALITY AS old (element, place) UNION ALL
SELECT 2, * FROM {json}_array_elements({given}) WITH ORDINALITY) AS every
ORDER BY part DESC, place DESC LIMIT {bound}) AS kept)"""
_VALID = "CASE WHEN typeof({there}) = 'text' AND json_valid({there}) THEN {there} END"
APPEND: Mapping[str, str] = {
    "json": _APPEND.replace("{joined}", _POSTGRESQL.replace("{json}", "json")),
    "jsonb": _APPEND.replace("{joined}", _POSTGRESQL.replace("{json}", "jsonb")),
    "sqlite": _APPEND.replace("{joined}", f"tallymark_append({_VALID}, {{given}}, {{bound}})"),
}
"""How other databases than MySQL append arrays: PostgreSQL to columns of two types, and SQLite."""
NO_ARRAY = (
    "no JSON array",
    "_array_elements",
    "function 'json_type'",
    "function json_type",
    "function raised exception",
)
"""Parts of the messages with which the databases refuse to append to a stored value."""
EXPRESSIONS: Mapping[str, str] = {
    "sum": "COALESCE({there} + {given}, {there}, {given})",
    "count": "COALESCE({there}, 0) + COALESCE({given}, 0)",
    "min": _CHOICE.replace("{when}", "{there} IS NULL OR {given} < {ordered}"),
    "max": _CHOICE.replace("{when}", "{there} IS NULL OR {given} > {ordered}"),
    "first": "COALESCE({there}, {given})",
    "newest": "{given}",
    "oldest": "{there}",
    "append": _APPEND.replace("{joined}", _MYSQL),
}
WHEN: Mapping[str, str] = {
    "newest": "{there} IS NULL OR {given} >= {ordered}",
    "oldest": "({there} IS NULL AND {given} IS NOT NULL) OR {given} < {ordered}",
}
"""Conditions on the version under which the new value replaces the stored one."""


def assignments(
    spec: TableSpec,
    there: Mapping[str, str],
    given: Mapping[str, str],
    ordered: Mapping[str, str],
    own: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the new value of each column, the version last, because the other columns compare with it.

    ``there`` and ``given`` are the expressions of the stored and the new value, ``ordered`` of the stored one in the
    order of its bytes. ``own`` has the expressions of a database that needs others, by column.
    """
    found = {}
    for name, function in sorted(spec.functions.items(), key=lambda each: each[0] == spec.version):
        form, bound = (own or {}).get(name, EXPRESSIONS[function]), spec.bounds.get(name, 0)
        if spec.version and function in BY_VERSION:
            at = spec.version
            when = WHEN[function].format(there=there[at], given=given[at], ordered=ordered[at])
            found[name] = f"CASE WHEN {when} THEN {given[name]} ELSE {there[name]} END"
        else:
            found[name] = form.format(there=there[name], given=given[name], ordered=ordered[name], bound=bound)
    return found


@contextmanager
def naming_arrays(spec: TableSpec) -> Iterator[None]:
    """Say that the stored value is at fault if nothing can be appended to it."""
    try:
        yield
    except DBAPIError as error:
        if spec.bounds and any(words in str(error.orig) for words in NO_ARRAY):
            names = " or ".join(spec.bounds)
            what = "is no JSON array, as append needs it, or is too large"
            raise DataRefused(f"the stored value of column {names} {what}") from error
        raise
