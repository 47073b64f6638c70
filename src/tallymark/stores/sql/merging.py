"""SQL expressions that combine a stored row with a new one, for ``write="merge"``; core/merging.py has the rules."""

from __future__ import annotations

from collections.abc import Mapping

from tallymark.core.merging import BY_VERSION
from tallymark.core.tables import TableSpec

_CHOICE = "CASE WHEN {when} THEN {given} ELSE {there} END"
EXPRESSIONS: Mapping[str, str] = {
    "sum": "COALESCE({there} + {given}, {there}, {given})",
    "count": "COALESCE({there}, 0) + COALESCE({given}, 0)",
    "min": _CHOICE.replace("{when}", "{there} IS NULL OR {given} < {ordered}"),
    "max": _CHOICE.replace("{when}", "{there} IS NULL OR {given} > {ordered}"),
    "first": "COALESCE({there}, {given})",
    "newest": "{given}",
    "oldest": "{there}",
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
        form = (own or {}).get(name, EXPRESSIONS[function])
        if spec.version and function in BY_VERSION:
            at = spec.version
            when = WHEN[function].format(there=there[at], given=given[at], ordered=ordered[at])
            found[name] = f"CASE WHEN {when} THEN {given[name]} ELSE {there[name]} END"
        else:
            found[name] = form.format(there=there[name], given=given[name], ordered=ordered[name])
    return found
