"""Server programs out of downloaded archives: unpacked once, under a name that means complete."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from tallymark.cache import cache_dir, locked
from tallymark.errors import SandboxError
from tallymark.jars import artifacts, fetch
from tallymark.sandbox.server import is_root

SHARED = Path("/var/tmp/tallymark")


def programs_dir() -> Path:
    """Where programs are that another user may have to run: root's own cache is closed to others."""
    if not is_root():
        return cache_dir() / "programs"
    with contextlib.suppress(FileExistsError):
        SHARED.mkdir()
        SHARED.chmod(0o755)
    status = SHARED.lstat()
    # Anybody may write to the directory above, and what lies here is run by root.
    if SHARED.is_symlink() or not SHARED.is_dir() or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise SandboxError(f"{SHARED} belongs to somebody else or is open to others: remove it and try again")
    return SHARED


def unpacked(set_name: str, unpack: Callable[[Path, Path], None]) -> Path:
    """The directory of a one-jar set's programs, filled by ``unpack(jar, directory)`` when used first."""
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
        # Whatever the umask, the user that runs the programs gets in.
        for folder in (made, *(path for path in made.rglob("*") if path.is_dir())):
            folder.chmod(0o755)
        made.rename(place)
