"""Unpacks server programs from downloaded archives, once and atomically."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from tallymark.errors import SandboxError
from tallymark.local.cache import cache_dir, locked
from tallymark.local.jars import artifacts, fetch
from tallymark.local.sandbox.server import is_root

SHARED = Path("/var/tmp/tallymark")


def programs_dir() -> Path:
    """Return the directory of programs, which another user may have to run: root's cache is closed to other users."""
    if not is_root():
        return cache_dir() / "programs"
    with contextlib.suppress(FileExistsError):
        SHARED.mkdir()
        SHARED.chmod(0o755)
    status = SHARED.lstat()
    # Every user can write to the parent directory, and root runs the programs here.
    if SHARED.is_symlink() or not SHARED.is_dir() or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise SandboxError(f"{SHARED} is owned by another user or writable by others: remove it and try again")
    return SHARED


def unpacked(set_name: str, unpack: Callable[[Path, Path], None]) -> Path:
    """Return the program directory of a set with a single jar. ``unpack(jar, directory)`` fills it on first use."""
    (artifact,) = artifacts(set_name)
    place = programs_dir() / f"{set_name}-{artifact.version}-{artifact.sha256[:12]}"
    if not place.exists():
        with locked(programs_dir() / f"{set_name}.lock"):
            if not place.exists():
                (jar,) = fetch(set_name)
                _unpack_into(place, jar, unpack)
    return place


def _unpack_into(place: Path, jar: Path, unpack: Callable[[Path, Path], None]) -> None:
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".unpacking-") as name:
        made = Path(name) / "made"
        made.mkdir()
        unpack(jar, made)
        # The user that runs the programs needs access, regardless of the umask.
        for folder in (made, *(path for path in made.rglob("*") if path.is_dir())):
            folder.chmod(0o755)
        made.rename(place)
