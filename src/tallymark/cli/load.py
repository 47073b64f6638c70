"""Loads the pipeline or the app of a file, Python or TOML."""

from __future__ import annotations

import runpy
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from tallymark.errors import BadInput, TallymarkError
from tallymark.run.setup import Setup
from tallymark.service.app import App
from tallymark.spark.pipeline import Pipeline

EXTRAS = {
    "pyspark": "spark",
    "psycopg": "postgresql",
    "pymysql": "mysql",
    "redis": "redis",
    "prometheus_client": "metrics",
    "opentelemetry": "tracing",
}
"""The extra that installs a package."""


def missing_module(error: ModuleNotFoundError) -> str:
    package = (error.name or "").partition(".")[0]
    if package in EXTRAS:
        return f"{package} is not installed: pip install 'tallymark[{EXTRAS[package]}]'"
    return f"{type(error).__name__}: {error}"


def load(path: Path) -> Pipeline | App:
    """The pipeline that a TOML file describes, or the one Pipeline or App that a Python file defines.

    The Python file is executed under a name other than ``__main__``.
    """
    if not path.is_file():
        raise BadInput(f"{path}: there is no such file")
    if path.suffix.lower() == ".toml":
        # Imported here because pydantic is slow to import, and most commands read no TOML.
        from tallymark.cli.toml.build import load_pipeline

        return load_pipeline(path)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        names = runpy.run_path(str(path), run_name="tallymark_pipeline")
    except TallymarkError:
        raise
    except ModuleNotFoundError as error:
        raise BadInput(f"{path}{_line(error, path)}: {missing_module(error)}") from error
    except Exception as error:
        raise BadInput(f"{path}{_line(error, path)}: {type(error).__name__}: {error}") from error
    found = {id(value): value for value in names.values() if isinstance(value, Pipeline | App)}
    if len(found) != 1:
        count = "no Pipeline or App" if not found else f"{len(found)} Pipelines or Apps"
        raise BadInput(f"{path} defines {count}; it must define one, such as pipeline = tallymark.Pipeline(...)")
    return next(iter(found.values()))


def setups_of(found: Pipeline | App) -> list[Setup]:
    """The settings of the pipeline, or of every listener of the app."""
    return [found.setup] if isinstance(found, Pipeline) else [listener.setup for listener in found.listeners]


def setup_of(found: Pipeline | App, path: Path, group: str | None, *, any_group: bool = False) -> Setup:
    """The settings of the one group of the file, or of the named group.

    Several listeners of a group count as one, with the topics of all. ``any_group``: only store and cluster matter.
    """
    setups = setups_of(found)
    chosen = [setup for setup in setups if group in (None, setup.group)]
    if not chosen or (not any_group and len({setup.group for setup in chosen}) > 1):
        known = ", ".join(sorted({setup.group for setup in setups})) or "none"
        raise BadInput(f"{path}: name one of its groups: {known}")
    first = chosen[0]
    if any((one.ledger_url, one.source.cluster) != (first.ledger_url, first.source.cluster) for one in chosen):
        raise BadInput(
            f"{path}: its listeners have several ledgers or clusters; name --store and --brokers, not --file"
        )
    topics = [name for setup in chosen for name in setup.source.topic_names]
    return replace(first, source=replace(first.source, topics=topics))


def _line(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return f" line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" line {lines[-1]}" if lines else ""
