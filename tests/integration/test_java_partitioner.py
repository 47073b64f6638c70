"""The stored hashes and partitions of keys are those that the real Java client computes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tallymark.local.jars import fetch
from tallymark.local.java import java_home

TESTS = Path(__file__).parent.parent
VECTORS: list[list[int | str]] = json.loads((TESTS / "data" / "murmur2.json").read_text())


@pytest.mark.skipif(not (java_home() / "bin" / "javac").exists(), reason="needs a JDK that compiles")
def test_the_vectors_are_what_the_java_client_computes() -> None:
    keys = "".join(f"{vector[0]}\n" for vector in VECTORS)
    classpath = os.pathsep.join(map(str, fetch("kafka")))

    done = subprocess.run(
        [java_home() / "bin" / "java", "-cp", classpath, TESTS / "support" / "Murmur2.java"],
        input=keys,
        capture_output=True,
        text=True,
        check=True,
    )

    assert [[int(word) for word in line.split()] for line in done.stdout.splitlines()] == [v[1:] for v in VECTORS]
