"""The code on every page of the documentation fits the public API, the loader of TOML files, and the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tallymark.cli.toml.build import load_pipeline
from tallymark.cli.toml.complaints import validated
from tallymark.cli.toml.document import read
from tallymark.cli.toml.model import Defaults
from tallymark.errors import BadInput
from tests.support.code import commands, mistake_in_command, mistakes_in_python, whole_file
from tests.support.command import REPOSITORY
from tests.support.pages import Block, blocks, called

PAGES = sorted({*REPOSITORY.glob("docs/**/*.md"), *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md"))})
PAGES += [REPOSITORY / "examples" / "README.md", REPOSITORY / "ops" / "README.md"]
VARIABLE = re.compile(r"\$\{(\w+)\}")
BROKERS_OF_ALL = re.compile(r"(?:(?!\[).*\n)*brokers\b")
"""Brokers outside of a table: the file is a ``tallymark.toml``."""
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))


@each_page
def test_python_uses_the_public_api(page: Path) -> None:
    wrong = [said for block in blocks(page) if block.kind == "python" for said in mistakes_in_python(block)]
    assert wrong == []


@each_page
def test_toml_is_loaded(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [said for block in blocks(page) if block.kind == "toml" if (said := refusal(block, tmp_path, monkeypatch))]
    assert wrong == []


@each_page
def test_commands_have_the_options_that_they_are_given(page: Path) -> None:
    lines = [line for block in blocks(page) if block.kind == "console" for line in called(block)]
    given = [arguments for line in lines for arguments in commands(line)]
    assert [(arguments, said) for arguments in given if (said := mistake_in_command(arguments))] == []


@pytest.mark.parametrize(
    ("code", "mistake"),
    [
        ("tm.Jsn('id BIGINT')", "tm.Jsn does not exist"),
        ("tm.Kafka('localhost:9092', 'orders', vlaue=tm.Bytes())", "tm.Kafka has no argument vlaue"),
        ("@pipeline.tabel('orders')\ndef rows(records): ...", "pipeline.tabel does not exist"),
        ("totals = tm.Sink('totals', store='')\ntotals.table('totals', kye='id')", "totals.table has no argument kye"),
        ("with producer.transactions(): pass", "producer.transactions does not exist"),
        ("from tallymark.errors import Fencd", "tallymark.errors has no Fencd"),
        ("def rows(records)", "expected ':'"),
    ],
)
def test_mistakes_in_python_are_found(code: str, mistake: str) -> None:
    (found,) = mistakes_in_python(Block("python", None, code))
    assert found.partition(": ")[2] == mistake


@pytest.mark.parametrize("text", ["[tables.orders]\nsql = 'SELECT 1'\nkyes = 'id'\n", "grop = 'x'\n", "brokers = 1\n"])
def test_mistakes_in_toml_are_found(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(Block("toml", None, text), tmp_path, monkeypatch)


def test_mistakes_in_commands_are_found() -> None:
    line = "X=1 tallymark run a.toml --untill caught-up | tallymark consum orders > out  # tallymark nothing"
    found = " ".join(mistake_in_command(arguments) or "" for arguments in commands(line))
    assert re.findall(r"No such (\w+):? '?([\w-]+)", found) == [("option", "--untill"), ("command", "consum")]


def refusal(block: Block, directory: Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Why a block is not loaded: a part of a pipeline's file, or the defaults of ``tallymark.toml``."""
    for name in VARIABLE.findall(block.text):
        monkeypatch.setenv(name, "localhost")
    file, secret = directory / "page.toml", directory / "secret"
    secret.write_text("secret")
    block = Block(block.kind, block.name, re.sub(r"/run/secrets/\w+", str(secret), block.text))
    try:
        if BROKERS_OF_ALL.match(block.text):
            file.write_text(block.text)
            validated(Defaults, read(file))
        else:
            file.write_text(whole_file(block))
            load_pipeline(file)
    except BadInput as error:
        return f"{block.text}\n{error}"
    return None
