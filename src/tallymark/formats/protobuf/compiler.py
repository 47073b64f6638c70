"""Compiles ``.proto`` texts and files with the official compiler, in a process of its own.

The compiler writes its errors to the standard error output of the process that it runs in, whatever thread calls it.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from tallymark.errors import BadInput, Unreachable
from tallymark.formats.protobuf.schema import WELL_KNOWN, SchemaInvalid

MAIN = "schema.proto"
"""The name of a text that no other text imports."""
SECONDS = 60.0
SHOWN = 300
"""Maximum number of characters of the compiler's error."""
NO_NAME = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EINVAL)
"""Errors of the file system that a name causes; others pass."""
IMPORT = re.compile(r'^\s*import\s+(?:public\s+|weak\s+)?["\']([^"\'\n]+)["\']', re.MULTILINE)
CONFLUENT = {
    "confluent/meta.proto": """syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
}
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
    "confluent/type/decimal.proto": """syntax = "proto3";
package confluent.type;
message Decimal {
  bytes value = 1;
  uint32 precision = 2;
  int32 scale = 3;
}
""",
}
"""Files that schemas of Confluent's connectors import without a reference: their registry has them itself."""


@lru_cache(maxsize=1024)
def compiled(text: str, imports: tuple[tuple[str, str], ...] = ()) -> bytes:
    """Compile a text to a FileDescriptorSet. ``imports`` are the names and texts of what it imports."""
    with tempfile.TemporaryDirectory(prefix="tallymark-") as folder:
        texts = {**CONFLUENT, **dict(imports)}
        name = MAIN
        while name in texts:
            name = f"_{name}"
        for path, content in {**texts, name: text}.items():
            _write(Path(folder), path, content)
        return _run(Path(folder), Path(folder), name)


def compiled_file(path: Path) -> bytes:
    """Compile a file. What it imports is looked for in its folder, and in those above."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        raise SchemaInvalid(getattr(error, "strerror", None) or "it is not UTF-8 text") from None
    whole = path.resolve()
    root = _root(whole, [name for name in IMPORT.findall(text) if not name.startswith(WELL_KNOWN)])
    with tempfile.TemporaryDirectory(prefix="tallymark-") as folder:
        return _run(Path(folder), root, whole.relative_to(root).as_posix())


def _root(path: Path, imported: Sequence[str]) -> Path:
    """The nearest folder in which all imports exist; the file's own if there is none."""
    for folder in path.parents:
        if all((folder / name).is_file() for name in imported):
            return folder
    return path.parent


def _write(folder: Path, name: str, content: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\\" in name or "\0" in name:
        raise SchemaInvalid(f"the import {name!r} is no relative path")
    target = folder / path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, "utf-8")
    except ValueError:
        raise SchemaInvalid(f"the import {name!r} can't be a file") from None
    except OSError as error:
        if error.errno in NO_NAME:
            raise SchemaInvalid(f"the import {name!r} can't be a file") from None
        raise Unreachable(f"a schema can't be compiled: {error.strerror}; free space in {folder.parent}") from None


def _run(folder: Path, root: Path, name: str) -> bytes:
    """Compile the file with this name in its root; ``folder`` is for the result."""
    if find_spec("grpc_tools") is None:
        raise BadInput("compiling .proto needs grpcio-tools, which is not installed: pip install 'tallymark[protobuf]'")
    result = folder / "_set.desc"
    # Without -P, a folder in the working directory could hide the compiler.
    command = [sys.executable, "-P", "-m", "grpc_tools.protoc", f"-I{root}"]
    command += ["--include_imports", f"--descriptor_set_out={result}", str(root / name)]
    try:
        done = subprocess.run(
            command, capture_output=True, env=_environment(), timeout=SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        raise Unreachable(f"a schema can't be compiled now: {_reason(error)}; this machine is overloaded") from None
    if done.returncode < 0:
        raise Unreachable("a schema can't be compiled now: the compiler was killed; this machine is overloaded")
    if done.returncode:
        raise SchemaInvalid(_first_error(done.stderr.decode(errors="replace"), root))
    return result.read_bytes()


def _reason(error: OSError | subprocess.TimeoutExpired) -> str:
    if isinstance(error, OSError):
        return error.strerror or "the compiler can't be started"
    return f"the compiler did not end within {SECONDS:.0f} seconds"


def _environment() -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _first_error(said: str, root: Path) -> str:
    """The first error of the compiler, without the folder that the text was in."""
    lines = [line for line in said.splitlines() if ".proto:" in line and "warning:" not in line]
    error = lines[0].replace(f"{root}/", "") if lines else "the compiler refuses it"
    # It may quote a name of any length.
    return error if len(error) <= SHOWN else f"{error[:SHOWN]}..."
