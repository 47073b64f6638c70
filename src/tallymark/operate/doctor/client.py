"""Checks this machine: Java, Spark and librdkafka."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

import confluent_kafka

from tallymark.errors import BadInput
from tallymark.local import java
from tallymark.operate.findings import Finding, judge
from tallymark.spark.session import locked_connector, series

JAVAS = (17, 21)
"""Java versions that Spark 4.0 supports."""
LIBRDKAFKA = (2, 11)


def examine() -> list[Finding]:
    kafka = librdkafka(confluent_kafka.libversion()[0])
    try:
        spark = installed("pyspark")
    except PackageNotFoundError:
        return [kafka, judge("client", "Spark", "not installed: services only")]
    return [kafka, connector(spark, _scala(), *locked_connector()), java_version(_java())]


def librdkafka(found: str) -> Finding:
    old = tuple(map(int, found.split("-")[0].split(".")[:2])) < LIBRDKAFKA
    wanted = ".".join(map(str, LIBRDKAFKA))
    return judge("client", "librdkafka", found, f">= {wanted}", "pip install -U confluent-kafka" if old else None)


def connector(spark: str, scala: str, jar: str, jar_scala: str) -> Finding:
    """Judge whether Spark fits its Kafka connector: the Spark internals that it uses change from 4.0 to 4.1."""
    fits = series(spark) == series(jar) and series(scala) == jar_scala
    wanted = f"{series(jar)} with Scala {jar_scala}, like the connector"
    advice = None if fits else f"pip install 'pyspark=={series(jar)}.*'"
    return judge("client", "Spark", f"{spark} with Scala {scala}", wanted, advice)


def java_version(found: int | None) -> Finding:
    wanted, advice = " or ".join(map(str, JAVAS)), f"install Java {JAVAS[-1]} and set JAVA_HOME"
    fail, warn = advice if found is None else None, advice if found not in JAVAS else None
    return judge("client", "Java", found or "none", wanted, fail, warn)


def _java() -> int | None:
    try:
        return java.version(java.java())
    except BadInput:
        return None


def _scala() -> str:
    """Return the Scala version of pyspark's jars, without starting Spark."""
    spec = importlib.util.find_spec("pyspark")
    folders = (spec.submodule_search_locations if spec else None) or []
    jars = [jar.stem for folder in folders for jar in Path(folder, "jars").glob("scala-library-*.jar")]
    return jars[0].removeprefix("scala-library-") if jars else "unknown"
