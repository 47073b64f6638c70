"""Maven artifacts that are exactly the locked ones, fetched once into a cache that processes share.

Ivy alone is not enough: when the registry throttles, it can report success with a file missing.
So ``jars.lock`` names every file with its sha256, and a file counts only when its hash is right.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from tallymark.cache import cache_dir, locked, replace_file
from tallymark.errors import SandboxError
from tallymark.java import java

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with how many jars of the set are here, and how many it has."""

PAUSES = (0.0, 2.0, 5.0, 15.0, 30.0)
"""Seconds to wait before each try: a throttling registry asks for patience, not for persistence."""

TRY_SECONDS = 900.0


@dataclass(frozen=True)
class Artifact:
    group: str
    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"

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
        here = len(wanted) - len(missing)
        said = _download(missing, lambda more, here=here: progress(here + more, len(wanted)))  # type: ignore[misc]
        missing = [artifact for artifact in missing if not artifact.path.exists()]
    if missing:
        names = ", ".join(str(artifact) for artifact in missing)
        raise SandboxError(f"could not fetch {names} ({said}): check the network and run the same command again")


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


def _download(missing: list[Artifact], arrived: Callable[[int], None]) -> str:
    """Ask Ivy once, keep the files whose hash is right, and say what went wrong with the others.

    Ivy's own cache lives only as long as the try: it remembers failures as if they were answers.
    """
    with tempfile.TemporaryDirectory(dir=jars_dir(), prefix=".fetch-") as name:
        work = Path(name)
        (work / "ivy.xml").write_text(_ivy_xml(missing))
        complaint = _run_ivy(work, arrived)
        for artifact in missing:
            folder = work / "cache" / artifact.group / artifact.name
            for found in folder.glob(f"*/{artifact.name}-{artifact.version}.jar"):
                if not _is_right(artifact, found):
                    complaint = f"the file that came for {artifact} has the wrong sha256"
                    continue
                artifact.path.parent.mkdir(parents=True, exist_ok=True)
                found.replace(artifact.path)
    return complaint


def _ivy_xml(wanted: list[Artifact]) -> str:
    dependencies = "".join(
        f"<dependency org={quoteattr(a.group)} name={quoteattr(a.name)} rev={quoteattr(a.version)}"
        ' transitive="false" conf="default->default"/>'
        for a in wanted
    )
    return (
        '<ivy-module version="2.0"><info organisation="tallymark" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _run_ivy(work: Path, arrived: Callable[[int], None]) -> str:
    command: list[str | Path] = [java(), "-jar", _ivy_jar(), "-ivy", work / "ivy.xml", "-cache", work / "cache"]
    complaint, count = "Ivy did not find it", 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        watchdog = threading.Timer(TRY_SECONDS, ivy.kill)
        watchdog.start()
        try:
            for line in ivy.stdout or ():
                if "[SUCCESSFUL ]" in line:
                    count += 1
                    arrived(count)
                elif "HTTP response status" in line or "Server access error" in line:
                    complaint = line.strip().rstrip(".")
        finally:
            watchdog.cancel()
            ivy.kill()
    return complaint


def _ivy_jar() -> Path:
    """The Ivy that pyspark ships: it knows the registry, so that no address is written down here."""
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise SandboxError("jars are fetched with the Ivy that pyspark ships, and pyspark is missing: pip install pyspark")
