"""The reference is current, and complete."""

from __future__ import annotations

import re

import pytest

import tallymark
from tallymark.errors import TallymarkError
from tallymark.stores.sql.ledger.tables import SINCE, metadata
from tests.support.command import REPOSITORY
from tests.support.pages import blocks
from tools import pictures, reference

LEDGER = (REPOSITORY / "docs" / "reference" / "ledger.md").read_text()
OUTDATED = "python -m tools.reference writes it"


def test_the_commands_are_those_of_the_parsers() -> None:
    assert reference.COMMANDS.read_text() == reference.commands(), OUTDATED


def test_the_signatures_and_texts_of_python_are_those_of_the_code() -> None:
    page = reference.PYTHON.read_text()
    assert page == reference.python(page), OUTDATED


def test_the_pictures_are_those_that_are_drawn() -> None:
    drawn = {name: str(draw()) for name, draw in pictures.DRAWN.items()}
    assert {name: (pictures.PICTURES / name).read_text() for name in drawn} == drawn, (
        "python -m tools.pictures draws them"
    )


def test_every_public_name_has_an_example() -> None:
    code = "".join(block.text for block in blocks(reference.PYTHON) if block.kind == "python")
    assert {name for name in tallymark.__all__ if not re.search(rf"\btm\.{name}\b", code)} == set()


def test_every_public_name_that_is_no_error_has_a_section() -> None:
    sections = re.findall(r"^## (\w+)\n\n<!-- \1 -->$", reference.PYTHON.read_text(), re.MULTILINE)
    names = [name for name in tallymark.__all__ if not issubclass(getattr(tallymark, name), TallymarkError)]
    assert sorted({*sections} - {"Settings", "Errors"}) == sorted(names)


@pytest.mark.parametrize("table", metadata.sorted_tables, ids=lambda table: table.name)
def test_every_column_of_the_ledger_is_described(table) -> None:  # type: ignore[no-untyped-def]
    section = LEDGER.split(f"## {table.name}\n", 1)[1].partition("\n## ")[0]
    described = re.findall(r"^\| `(\w+)` \|.*?(?:Since version (\d+))?\.? \|$", section, re.MULTILINE)
    since = [(column.name, str(column.info.get(SINCE, ""))) for column in table.columns]
    assert described == since
