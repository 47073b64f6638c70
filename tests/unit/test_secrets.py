"""Secrets come from a variable, or from a file that a variable names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallymark.core.credentials import from_environment, read_secret
from tallymark.errors import BadInput

CANARY = "Canary-7f3a"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TALLYMARK_THING", "TALLYMARK_THING_FILE"):
        monkeypatch.delenv(name, raising=False)


def test_a_variable_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert from_environment("THING") is None
    monkeypatch.setenv("TALLYMARK_THING", f" {CANARY}\n")
    assert from_environment("THING") == f" {CANARY}\n"


def test_a_variable_without_a_value_is_not_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TALLYMARK_THING", "")
    assert from_environment("THING") is None
    monkeypatch.setenv("TALLYMARK_THING_FILE", str(_file(tmp_path, CANARY.encode())))
    assert from_environment("THING") == CANARY


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_file_holds_it_and_one_newline_at_its_end_is_not_part_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str
) -> None:
    monkeypatch.setenv("TALLYMARK_THING_FILE", str(_file(tmp_path, f"{CANARY} é\n{end}".encode())))
    assert from_environment("THING") == (f"{CANARY} é\n" if end else f"{CANARY} é")


def test_two_places_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TALLYMARK_THING", CANARY)
    monkeypatch.setenv("TALLYMARK_THING_FILE", str(_file(tmp_path, CANARY.encode())))
    with pytest.raises(BadInput, match=r"^TALLYMARK_THING and TALLYMARK_THING_FILE are both set") as raised:
        from_environment("THING")
    assert CANARY not in str(raised.value)


def test_a_file_that_is_not_there_is_named_with_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TALLYMARK_THING_FILE", str(tmp_path / "missing"))
    with pytest.raises(BadInput, match=r"^TALLYMARK_THING_FILE: the file .*missing can't be read: No such file"):
        from_environment("THING")


@pytest.mark.parametrize("content", [b"", b"\n", CANARY.encode() + b"\xff", CANARY.encode() + b"\0"])
def test_a_file_with_no_text_is_refused_without_quoting_it(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(BadInput, match=r"^password_file: .*secret is empty or not UTF-8 text") as raised:
        read_secret(_file(tmp_path, content), "password_file")
    assert CANARY not in f"{raised.value!r} {raised.value.__context__!r} {raised.value.__cause__!r}"


def _file(folder: Path, content: bytes) -> Path:
    path = folder / "secret"
    path.write_bytes(content)
    return path
