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


def test_importing_tallymark_and_writing_a_pipeline_or_an_app_wakes_no_spark() -> None:
    script = """
import sys
import tallymark as tm
app = tm.App(brokers="localhost:9", store="sqlite:///x.db")
app.listen("t", group="g", value=tm.Json("id INT"))(lambda record, db: None)
pipeline = tm.Pipeline(group="g", source=tm.Kafka("localhost:9", "t", value=tm.Json("id INT")), store="sqlite:///x.db")
pipeline.table("t")(lambda records: records)
print(sorted(name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j", "psycopg", "pymysql", "pandas")))
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == "[]\n"


def test_json_is_decoded_without_spark() -> None:
    code = "import sys, tallymark.formats.json; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
