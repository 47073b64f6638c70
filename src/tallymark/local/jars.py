"""Maven artifacts that are exactly the locked ones, fetched once into a cache that processes share.

``jars.lock`` names every file with its sha256, and a file counts only when its hash is right: what a throttling
registry or a proxy sends instead is never loaded.
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

from tallymark.cache import cache_dir, locked, replace_file
from tallymark.errors import SandboxError

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with how many jars of the set are here, and how many it has."""

PAUSES = (0.0, 2.0, 5.0, 15.0, 30.0)
"""Seconds to wait before each try: a throttling registry asks for patience, not for persistence."""

SILENCE_SECONDS = 60.0
REGISTRY = "TALLYMARK_MAVEN"
"""The variable that names another Maven repository than the public one, such as a mirror."""
PASSING = (408, 425, 429)
"""Of the refusals by a registry, those that another try may not meet."""


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
        """Its place in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.name}/{self.version}/{self.name}-{self.version}.jar"

    @property
    def path(self) -> Path:
        return jars_dir() / self.group / f"{self.name}-{self.version}.jar"


def jars_dir() -> Path:
    """Resolved, so that caches that share one directory of jars share what depends on the jars' paths."""
    return (cache_dir() / "jars").resolve()


def fetch(set_name: str, *, progress: Progress | None = None) -> list[Path]:
    """The local paths of all jars of one set of the lock, every one verified; downloads what is missing."""
    wanted = artifacts(set_name)
    stamp = jars_dir() / f"{set_name}.verified"
    if not _stamped(stamp, wanted):
        with locked(jars_dir() / "lock"):
            if not _stamped(stamp, wanted):
                _complete(wanted, progress or (lambda _here, _all: None))
                replace_file(stamp, _facts(wanted))
    return [artifact.path for artifact in wanted]


def artifacts(set_name: str) -> list[Artifact]:
    """The artifacts of one set, in the order of the lock."""
    found = _lock().get(set_name)
    if not found:
        raise SandboxError(f"no set of jars is called {set_name!r}: there are {', '.join(_lock())}")
    return found


def parse_lock(text: str) -> dict[str, list[Artifact]]:
    """Read lines of ``set group:artifact:version sha256``; blank lines and # comments don't count."""
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
def _lock() -> dict[str, list[Artifact]]:
    return parse_lock(Path(__file__).with_name("jars.lock").read_text())


def _stamped(stamp: Path, wanted: list[Artifact]) -> bool:
    """Whether these very files were hashed before: hashing 150 MB at every start would be felt."""
    try:
        return stamp.read_text() == _facts(wanted)
    except FileNotFoundError:
        return False


def _facts(wanted: list[Artifact]) -> str:
    stats = [(artifact, artifact.path.stat()) for artifact in wanted]
    return "".join(f"{a} {a.sha256} {stat.st_size} {stat.st_mtime_ns}\n" for a, stat in stats)


def _complete(wanted: list[Artifact], progress: Progress) -> None:
    missing = [artifact for artifact in wanted if not _is_right(artifact, artifact.path)]
    said = ""
    for pause in PAUSES:
        if not missing:
            return
        time.sleep(pause)
        for artifact in list(missing):
            progress(len(wanted) - len(missing), len(wanted))
            if complaint := _download(artifact):
                said = complaint
            else:
                missing.remove(artifact)
    if missing:
        raise _unfetched(missing, said)


def _unfetched(missing: list[Artifact], said: str) -> SandboxError:
    names = ", ".join(str(artifact) for artifact in missing)
    return SandboxError(
        f"could not fetch {names} ({said}): check the network, or name a mirror in {REGISTRY}, and try again"
    )


def _is_right(artifact: Artifact, path: Path) -> bool:
    """Whether the file has the locked hash; a wrong one is removed so that nobody ever loads it."""
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
    """Try once; says what went wrong if another try may help, and raises if none can."""
    jars_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars_dir(), prefix=".fetch-") as name:
        came = Path(name) / "jar"
        request = urllib.request.Request(f"{_registry()}/{artifact.address}", headers={"User-Agent": "tallymark"})
        try:
            with urllib.request.urlopen(request, timeout=SILENCE_SECONDS) as answer, came.open("wb") as file:
                shutil.copyfileobj(answer, file)
        except urllib.error.HTTPError as error:
            said = f"HTTP status {error.code}"
            if 400 <= error.code < 500 and error.code not in PASSING:
                raise _unfetched([artifact], said) from None
            return said
        except (OSError, http.client.HTTPException) as error:
            return str(getattr(error, "reason", None) or error) or type(error).__name__
        if not _is_right(artifact, came):
            return f"the file that came for {artifact} has the wrong sha256"
        artifact.path.parent.mkdir(parents=True, exist_ok=True)
        came.replace(artifact.path)
    return None


def _registry() -> str:
    """The repository that is named, or the public one, whose address the package maven-artifact knows."""
    if named := os.environ.get(REGISTRY):
        parts = urllib.parse.urlsplit(named)
        if parts.scheme not in ("http", "https", "file") or "@" in parts.netloc:
            # Not shown: it may hold a password.
            raise SandboxError(f"{REGISTRY} must be an address such as https://mirror/maven, without a login")
        return named.rstrip("/")
    try:
        from maven_artifact import Resolver
    except ModuleNotFoundError:
        raise SandboxError(
            "jars are fetched with the package maven-artifact, which is missing: pip install 'tallymark[sandbox]'"
        ) from None
    return str(Resolver.default().base)
