"""Loads the Java part of tallymark into a session. Spark contains the compiler: its queries are compiled, too."""

from __future__ import annotations

import hashlib
import io
import tempfile
import threading
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tallymark.errors import BadInput, SandboxError
from tallymark.local.cache import cache_dir, replace_file
from tallymark.spark.session import is_local

CLASS = "tallymark.JsonDecoder"
_loading = threading.Lock()


def json_decoder(spark: SparkSession, schema: str) -> Any:
    """A decoder in the JVM for a schema, which is given in the JSON notation of Spark."""
    jvm: Any = spark._jvm
    with _loading:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        try:
            loader.loadClass(CLASS)
        except Py4JError:
            _load(spark, loader)
    return jvm.tallymark.JsonDecoder(schema)


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
    source = (files("tallymark.spark") / "JsonDecoder.java").read_text()
    name = f"tallymark-{hashlib.sha256(f'{version} {source}'.encode()).hexdigest()[:16]}.jar"
    try:
        path = cache_dir() / "java" / name
        if not path.exists():
            replace_file(path, _compiled(jvm, loader, source))
    except (SandboxError, OSError):
        # Without a cache, it is compiled for every session.
        path = Path(tempfile.mkdtemp(prefix="tallymark-")) / name
        path.write_bytes(_compiled(jvm, loader, source))
    return path


def _compiled(jvm: Any, loader: Any, source: str) -> bytes:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(source)
    jar = io.BytesIO()
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, code in dict(compiler.getBytecodes()).items():
            archive.writestr(f"{name.replace('.', '/')}.class", bytes(code))
    return jar.getvalue()
