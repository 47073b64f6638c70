"""What is slow to import is imported when it is needed: not by ``import tallymark``, by the help or by completion."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SLOW = {
    *("confluent_kafka", "numpy", "pandas", "psycopg", "pyarrow", "pydantic", "pymysql", "pyspark", "redis"),
    "sqlalchemy",
}
MAIN = """
from tallymark.cli import main
try:
    main([{}])
except SystemExit as left:
    assert not left.code
"""
COMPLETION = {"_TALLYMARK_COMPLETE": "complete_bash", "COMP_WORDS": "tallymark re", "COMP_CWORD": "1"}


@pytest.mark.parametrize(
    ("script", "environment", "shown", "slow"),
    [
        ("import tallymark; print(tallymark.BadInput.__name__)", {}, "BadInput", SLOW),
        (MAIN.format("'--help'"), {}, "Exactly-once Kafka to database", SLOW),
        # Typer itself uses pydantic there.
        (MAIN.format(""), COMPLETION, "reset", SLOW - {"pydantic"}),
    ],
    ids=["import", "help", "completion"],
)
def test_nothing_slow_is_imported_before_something_runs(
    script: str, environment: dict[str, str], shown: str, slow: set[str]
) -> None:
    ask = f"{script}\nimport sys; print('\\nimported', *{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", ask], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    *said, imported = done.stdout.splitlines()
    assert any(shown in line for line in said)
    assert "tallymark" in imported.split()
    assert slow & set(imported.split()) == set()


def test_every_public_name_can_be_listed_and_imported() -> None:
    script = """
import tallymark
print(set(tallymark.__all__) - set(dir(tallymark)))
from tallymark import *
print(App.__module__, Unreachable.__module__)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\ntallymark.service.app tallymark.errors\n"
