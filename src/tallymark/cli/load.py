"""Finding the pipeline in a user's file."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path

from tallymark.errors import BadInput, TallymarkError
from tallymark.pipeline import Pipeline


def load_pipeline(path: Path) -> Pipeline:
    """Run the file and take the one Pipeline it defines. Code below ``if __name__ == "__main__"`` does not run."""
    if not path.is_file():
        raise BadInput(f"{path}: there is no such file")
    sys.path.insert(0, str(path.resolve().parent))
    try:
        names = runpy.run_path(str(path), run_name="tallymark_pipeline")
    except TallymarkError:
        raise
    except Exception as error:
        raise BadInput(f"{path}{_line(error, path)}: {type(error).__name__}: {error}") from error
    found = {id(value): value for value in names.values() if isinstance(value, Pipeline)}
    if len(found) != 1:
        count = "no Pipeline" if not found else f"{len(found)} Pipelines"
        raise BadInput(f"{path} defines {count}; it must define one, such as pipeline = tallymark.Pipeline(...)")
    return next(iter(found.values()))


def _line(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return f" line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" line {lines[-1]}" if lines else ""
