"""Loads the Java part of tallymark into a session. Spark contains the compiler: its queries are compiled, too."""

from __future__ import annotations

import atexit
import hashlib
import io
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tallymark.errors import BadInput, SandboxError
from tallymark.local.cache import cache_dir, replace_file
from tallymark.spark.session import is_local

FORMATS = ("Decoder", "Names", "JsonDecoder", "DebeziumDecoder", "AvroDecoder", "ProtobufDecoder", "NamingDecoder")
SOURCES = (*FORMATS, "Counts", "LongSums", "Content", "RecordDecoder")
_loading = threading.Lock()


def java_class(spark: SparkSession, name: str) -> Any:
    """A class by its full name. ``spark._jvm`` looks for a class at each dot of the name, in all jars."""
    jvm: Any = spark._jvm
    return JavaClass(name, jvm._gateway_client)


def classes(spark: SparkSession) -> Any:
    """The Java classes of ``spark/jvm/``."""
    jvm: Any = spark._jvm
    with _loading:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        try:
            loader.loadClass(f"tallymark.{SOURCES[-1]}")
        except Py4JError:
            _load(spark, loader)
    return jvm.tallymark


def new_counts(spark: SparkSession) -> Any:
    """A new accumulator."""
    counts = classes(spark).Counts()
    session: Any = spark._jsparkSession
    session.sparkContext().register(counts)
    return counts


def _load(spark: SparkSession, loader: Any) -> None:
    jvm: Any = spark._jvm
    jar = _jar(jvm, loader, spark.version)
    try:
        loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
    except Py4JError:
        raise BadInput(f"this Spark driver can't load {jar.name} while it runs; start it with --jars {jar}") from None
    if not is_local(spark):
        spark.sql(f"ADD JAR '{jar}'")


def _jar(jvm: Any, loader: Any, version: str) -> Path:
    """The compiled classes, from the cache of this machine if they were compiled before."""
    sources = [(files("tallymark.spark") / "jvm" / f"{name}.java").read_text() for name in SOURCES]
    name = f"tallymark-{hashlib.sha256(''.join([version, *sources]).encode()).hexdigest()[:16]}.jar"
    try:
        path = cache_dir() / "java" / name
        if not path.exists():
            replace_file(path, _compiled(jvm, loader, sources))
    except (SandboxError, OSError):
        # Without a cache, they are compiled for every process.
        folder = tempfile.mkdtemp(prefix="tallymark-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder) / name
        path.write_bytes(_compiled(jvm, loader, sources))
    return path


def _compiled(jvm: Any, loader: Any, sources: Sequence[str]) -> bytes:
    """A jar with the classes. Each source may use those before it."""
    jar = io.BytesIO()
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sources:
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(loader)
            compiler.cook(source)
            loader = compiler.getClassLoader()
            for name, code in dict(compiler.getBytecodes()).items():
                archive.writestr(f"{name.replace('.', '/')}.class", bytes(code))
    return jar.getvalue()
