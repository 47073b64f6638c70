"""The cache directory that all processes of a user share, with locking and atomic writes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tallymark.errors import SandboxError


def cache_dir() -> Path:
    """Return the directory for files that can be recreated: TALLYMARK_CACHE, else in the user's cache directory."""
    if configured := os.environ.get("TALLYMARK_CACHE"):
        path = Path(configured).absolute()
    else:
        path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tallymark"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SandboxError(
            f"can't create the cache directory {path} ({error.strerror}): set TALLYMARK_CACHE to another"
        ) from error
    return path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file at ``path``; other processes wait. The lock is released if the holder is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def replace_file(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    Path(name).chmod(mode)
    Path(name).replace(path)
