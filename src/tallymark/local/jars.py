"""Downloads locked Maven artifacts once, into a cache that processes share.

A lock lists every file with its sha256: ``jars.lock`` beside this module, or another file in its format. A file with
another hash, such as the error page of a throttling registry or a proxy, is never loaded.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import logging
import os
import shutil
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tallymark.errors import SandboxError
from tallymark.local.cache import cache_dir, locked, replace_file

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the number of jars present, and the number of jars in the set."""

PAUSES = (0.0, 2.0, 5.0, 15.0, 30.0)
"""Seconds to wait before each attempt. They increase, because a throttling registry needs longer pauses."""

SILENCE_SECONDS = 60.0
LOCK = Path(__file__).with_name("jars.lock")
REGISTRY = "TALLYMARK_MAVEN"
"""The environment variable for a Maven repository to use instead of the public repository, such as a mirror."""
PASSING = (408, 425, 429)
"""HTTP client errors that are worth a retry."""


@dataclass(frozen=True)
class Artifact:
    group: str
    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"

    @property
    def address(self) -> str:
        """The path in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.name}/{self.version}/{self.name}-{self.version}.jar"

    @property
    def path(self) -> Path:
        return jars_dir() / self.group / f"{self.name}-{self.version}.jar"


def jars_dir() -> Path:
    """Return the resolved directory of jars, so that caches with linked jars share files that depend on jar paths."""
    return (cache_dir() / "jars").resolve()


def fetch(set_name: str, *, lock: Path = LOCK, progress: Progress | None = None) -> list[Path]:
    """Download missing jars of a set, verify all, and return their local paths."""
    wanted = artifacts(set_name, lock)
    stamp = jars_dir() / f"{set_name}.verified"
    if not _stamped(stamp, wanted):
        with locked(jars_dir() / "lock"):
            if not _stamped(stamp, wanted):
                _complete(wanted, progress or (lambda _here, _all: None))
                replace_file(stamp, _facts(wanted))
    return [artifact.path for artifact in wanted]


def artifacts(set_name: str, lock: Path = LOCK) -> list[Artifact]:
    """Return the artifacts of a set, in the order of the lock."""
    sets = _read(lock)
    if set_name not in sets:
        raise SandboxError(f"{set_name!r} is not a set of jars: choose one of {', '.join(sets)}")
    return sets[set_name]


def parse_lock(text: str) -> dict[str, list[Artifact]]:
    """Parse lines of ``set group:artifact:version sha256``, ignoring blank lines and # comments."""
    sets: dict[str, list[Artifact]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        try:
            set_name, coordinates, sha256 = fields
            group, name, version = coordinates.split(":")
        except ValueError:
            raise SandboxError(
                f"line {number} of jars.lock is not 'set group:artifact:version sha256': {line}"
            ) from None
        if len(sha256) != 64:
            raise SandboxError(f"line {number} of jars.lock has no sha256 of 64 digits: {line}")
        sets.setdefault(set_name, []).append(Artifact(group, name, version, sha256))
    return sets


@functools.cache
def _read(lock: Path) -> dict[str, list[Artifact]]:
    return parse_lock(lock.read_text())


def _stamped(stamp: Path, wanted: list[Artifact]) -> bool:
    """Whether exactly these files were verified before. Hashing 150 MB at every start would be slow."""
    try:
        return stamp.read_text() == _facts(wanted)
    except FileNotFoundError:
        return False


def _facts(wanted: list[Artifact]) -> str:
    stats = [(artifact, artifact.path.stat()) for artifact in wanted]
    return "".join(f"{a} {a.sha256} {stat.st_size} {stat.st_mtime_ns}\n" for a, stat in stats)


def _complete(wanted: list[Artifact], progress: Progress) -> None:
    missing = [artifact for artifact in wanted if not _is_right(artifact, artifact.path)]
    error = ""
    for pause in PAUSES:
        if not missing:
            return
        time.sleep(pause)
        for artifact in list(missing):
            progress(len(wanted) - len(missing), len(wanted))
            if failure := _download(artifact):
                error = failure
            else:
                missing.remove(artifact)
    if missing:
        raise _unfetched(missing, error)


def _unfetched(missing: list[Artifact], error: str) -> SandboxError:
    names = ", ".join(str(artifact) for artifact in missing)
    return SandboxError(
        f"could not fetch {names} ({error}): check the network, or set {REGISTRY} to a mirror, and try again"
    )


def _is_right(artifact: Artifact, path: Path) -> bool:
    """Whether the file has the locked hash. A file with another hash is removed, so that it is never loaded."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() == artifact.sha256:
        return True
    log.warning("jar has the wrong sha256 artifact=%s sha256=%s", artifact, digest.hexdigest())
    path.unlink()
    return False


def _download(artifact: Artifact) -> str | None:
    """Try once. Returns an error message if a retry may help, and raises if it can't."""
    jars_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars_dir(), prefix=".fetch-") as name:
        jar = Path(name) / "jar"
        request = urllib.request.Request(f"{_registry()}/{artifact.address}", headers={"User-Agent": "tallymark"})
        try:
            with urllib.request.urlopen(request, timeout=SILENCE_SECONDS) as answer, jar.open("wb") as file:
                shutil.copyfileobj(answer, file)
        except urllib.error.HTTPError as error:
            status = f"HTTP status {error.code}"
            if 400 <= error.code < 500 and error.code not in PASSING:
                raise _unfetched([artifact], status) from None
            return status
        except (OSError, http.client.HTTPException) as error:
            return str(getattr(error, "reason", None) or error) or type(error).__name__
        if not _is_right(artifact, jar):
            return f"the downloaded file of {artifact} has the wrong sha256"
        artifact.path.parent.mkdir(parents=True, exist_ok=True)
        jar.replace(artifact.path)
    return None


def _registry() -> str:
    """Return the configured repository, or the public repository, whose address the package maven-artifact has."""
    if mirror := os.environ.get(REGISTRY):
        parts = urllib.parse.urlsplit(mirror)
        if parts.scheme not in ("http", "https", "file") or "@" in parts.netloc:
            # Not shown: it may hold a password.
            raise SandboxError(f"{REGISTRY} must be an address such as https://mirror/maven, without a login")
        return mirror.rstrip("/")
    try:
        from maven_artifact import Resolver
    except ModuleNotFoundError:
        raise SandboxError(
            "fetching jars requires the package maven-artifact: pip install 'tallymark[sandbox]'"
        ) from None
    return str(Resolver.default().base)
