"""Provides the Spark session: the user's session if there is one, else a local session with the Kafka connector."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from tallymark.errors import BadInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS = {
    "spark.app.name": "tallymark",
    "spark.driver.memory": "2g",
    "spark.driver.maxResultSize": "1g",  # a larger result fails the job, not the driver, and is read in smaller batches
    "spark.task.maxDirectResultSize": "100m",  # larger results take an indirect path, with three copies
    "spark.executor.killOnFatalError.depth": "0",  # a task out of memory leads to a smaller batch: Java must survive
    "spark.kafka.consumer.cache.capacity": "1024",  # above the number of partitions, else consumers are recreated
    # Consumers of an ended run hold fetched records, which by default are kept for five minutes.
    "spark.kafka.consumer.cache.timeout": "30s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "15s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "30s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "15s",
    "spark.sql.session.timeZone": "UTC",  # the same rows on every machine
    "spark.sql.adaptive.enabled": "false",  # replanning costs small batches more than it gains
    "spark.sql.inMemoryColumnarStorage.compressed": "false",  # a batch is cached too briefly for compression to pay
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
CONNECTOR = "spark-sql-kafka-0-10_"
PACKAGE = "org.apache.spark:spark-sql-kafka-0-10"
PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
COLLECTOR = "-XX:+UseParallelGC"
"""Java's default collector costs a tenth of the throughput for short pauses, which a batch job does not need."""
JAVA = "spark.driver.extraJavaOptions"
REDACTION = "spark.sql.redaction.options.regex"
FIRST_INTERFACE = "spark.sql.sources.useV1SourceList"
ADDED = {JAVA: " ", "spark.jars": ","}
LOCAL = {
    "spark.master": "local[*]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}


def session(settings: Mapping[str, str]) -> SparkSession:
    """The active session, or a new session. Under spark-submit the cluster's settings apply."""
    try:
        import pyspark
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise BadInput("a pipeline needs Spark: pip install 'tallymark[spark]'") from None
    running = SparkSession.getActiveSession()
    if running is not None:
        return _with_connector(running)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    for name, value in _merged(_defaults(pyspark.__version__, settings), settings).items():
        builder = builder.config(name, value)
    try:
        return _with_connector(builder.getOrCreate())
    except PySparkException as error:
        raise BadInput(f"Spark did not start: {str(error).splitlines()[0]}") from error
    except KeyboardInterrupt as error:
        _end_java(error)
        raise


def is_local(spark: SparkSession) -> bool:
    """Whether the executors are threads of the driver's process."""
    return re.fullmatch(r"local(\[.*\])?", spark.sparkContext.master or "") is not None


def own_session(spark: SparkSession) -> SparkSession:
    """A copy of the user's session with the settings that tallymark needs; the user's session keeps its own."""
    from tallymark.spark import access
    from tallymark.spark.plans import clone

    access.keep_quiet()
    own = clone(spark)
    hidden = own.conf.get(REDACTION, "") or ""
    # Through the V1 interface, the Kafka source converts every record to a Java row and back.
    first = [name for name in (own.conf.get(FIRST_INTERFACE) or "").split(",") if name != "kafka"]
    for name, value in {
        # JSON timestamps without a zone are UTC, as are those in the tables.
        "spark.sql.session.timeZone": "UTC",
        # To apply a limit in bytes, Spark computes the size of all columns again after every row.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        FIRST_INTERFACE: ",".join(first),
        REDACTION: "|".join(filter(None, (hidden, access.REDACTED))),
    }.items():
        own.conf.set(name, value)
    return own


def series(version: str) -> str:
    """``4.0`` for ``4.0.5``: connectors are compatible within a series."""
    return ".".join(version.split(".")[:2])


def _with_connector(running: SparkSession) -> SparkSession:
    """Refuse a session without Spark's Kafka connector, or with a connector of another series."""
    from py4j.protocol import Py4JError

    jvm = getattr(running, "_jvm", None)
    if jvm is None:
        return running
    package = f"{PACKAGE}_2.13:{running.version}"
    try:
        provider = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(PROVIDER)
        jar = provider.getProtectionDomain().getCodeSource().getLocation().getPath()
    except Py4JError as error:
        if "ClassNotFoundException" in str(error):
            raise BadInput(f"the Spark session has no Kafka connector; start it with --packages {package}") from None
        return running
    match = re.search(rf"{CONNECTOR}[\d.]+-(\d+\.\d+[^/]*)\.jar$", jar)
    if match and series(match[1]) != series(running.version):
        raise BadInput(
            f"Spark {running.version} does not match its Kafka connector {match[1]}; start it with --packages {package}"
        )
    return running


def _end_java(error: BaseException) -> None:
    """Kill a JVM that is still starting: it would outlive this process, whose exit it detects only once it is up."""
    from pyspark import SparkContext

    starting = [frame.f_locals.get("proc") for frame, _ in traceback.walk_tb(error.__traceback__)]
    for process in (*starting, getattr(SparkContext._gateway, "proc", None)):
        if isinstance(process, subprocess.Popen):
            process.kill()
            process.wait()


def _merged(defaults: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """The defaults overridden by the user's settings; Java options and jars are concatenated."""
    added = {
        name: f"{defaults[name]}{glue}{settings[name]}"
        for name, glue in ADDED.items()
        if {name} <= settings.keys() & defaults.keys()
    }
    merged = {**defaults, **settings, **added}
    # Java does not start with two collectors. Without defaults (spark-submit) the cluster's settings apply.
    if JAVA in defaults and not re.search(r"-XX:\+Use\w+GC\b", merged[JAVA]):
        merged[JAVA] += f" {COLLECTOR}"
    return merged


def _defaults(version: str, settings: Mapping[str, str]) -> dict[str, str]:
    """The default settings; empty for a process that was started by spark-submit."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return {}
    from tallymark.local.jars import fetch
    from tallymark.local.java import java_home_for_spark

    os.environ["JAVA_HOME"] = str(java_home_for_spark())
    log4j = files("tallymark.spark") / "log4j2.properties"
    added = DEFAULTS | LOCAL | {JAVA: f"-Dlog4j2.configurationFile=file:{log4j}"}
    if any(CONNECTOR in settings.get(name, "") for name in ("spark.jars", "spark.jars.packages")):
        return added
    check_version(version)
    return added | {"spark.jars": ",".join(str(jar) for jar in fetch("spark-kafka"))}


def locked_connector() -> tuple[str, str]:
    """Version and Scala version of the Kafka connector for local sessions."""
    from tallymark.local.jars import artifacts

    jar = next(artifact for artifact in artifacts("spark-kafka") if artifact.name.startswith(CONNECTOR))
    return jar.version, jar.name.removeprefix(CONNECTOR)


def check_version(version: str) -> None:
    """Refuse a Spark version of another series than the Kafka connector, before Java starts."""
    connector, _ = locked_connector()
    if series(version) != series(connector):
        raise BadInput(
            f"pyspark {version} does not match the Kafka connector {connector}; "
            f"pip install 'pyspark=={series(connector)}.*', or load the matching connector with spark="
            f"{{'spark.jars.packages': '{PACKAGE}_2.13:{version}'}}"
        )
