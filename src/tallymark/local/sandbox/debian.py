"""Programs from Debian's packages, unpacked without root and run with their own loader and libraries.

Some servers are published only by Debian, and there only in the suite ``sid``, which keeps a single version of each
package, so versions can't be pinned. apt verifies downloads by the archive's signature, uses the mirror of this
machine, and works in a separate directory. Unpacked packages are kept and reused.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from tallymark.errors import SandboxError
from tallymark.local.cache import locked
from tallymark.local.sandbox.server import run
from tallymark.local.sandbox.unpack import programs_dir

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SUITE = "sid"


def fetch_debian(package: str) -> Path:
    """Return the root directory of a package and its dependencies, which are downloaded on first use."""
    place = programs_dir() / f"debian-{package}"
    if not place.exists():
        with locked(programs_dir() / f"debian-{package}.lock"):
            if not place.exists():
                _make(package, place)
    return place


def with_own_loader(root: Path, program: str) -> list[str | Path]:
    """Return the command that starts a program of these packages, independent of this machine's C library."""
    (loader,) = root.glob("usr/lib/*-linux-gnu/ld-linux-*.so.*")
    return [loader, "--library-path", loader.parent, root / program]


def _make(package: str, place: Path) -> None:
    missing = [str(tool) for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing or not KEYRING.exists():
        raise SandboxError(f"{package} comes from Debian's archive, but {(*missing, KEYRING)[0]} is missing here")
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".fetching-") as name:
        work, made = Path(name), Path(name) / "made"
        made.mkdir()
        for archive in _download(package, work):
            run("dpkg-deb", "--extract", archive, made)
        made.chmod(0o755)
        made.rename(place)


def _download(package: str, work: Path) -> list[Path]:
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    options = [f"Dir::State={work}/state", f"Dir::State::status={work}/status", f"Dir::Cache={work}/cache"]
    options += ["Acquire::Languages=none", "Acquire::Retries=3", "APT::Sandbox::User=root"]
    listed = run("apt-get", *_each(options), "update", "--print-uris")
    mirror = re.search(r"'([^']*/debian/?)dists/", listed)
    if mirror is None:
        raise SandboxError(f"{package} comes from Debian's archive: add it to the sources of apt")
    (work / "sources").write_text(f"deb [signed-by={KEYRING}] {mirror[1]} {SUITE} main\n")
    options += [f"Dir::Etc::sourcelist={work}/sources", "Dir::Etc::sourceparts=/dev/null"]
    run("apt-get", *_each(options), "--quiet=2", "update")
    wanted = ("--quiet=2", "--yes", "--download-only", "--no-install-recommends", "install", package)
    run("apt-get", *_each(options), *wanted)
    return sorted((work / "cache" / "archives").glob("*.deb"))


def _each(options: list[str]) -> list[str]:
    return [word for option in options for word in ("-o", option)]
