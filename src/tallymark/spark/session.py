"""The Spark session: the user's own if there is one, else a local one with what the Kafka source needs."""

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
    "spark.driver.maxResultSize": "1g",  # what is more would end the driver: the batch is read in smaller ones
    "spark.task.maxDirectResultSize": "100m",  # what is more takes another way, which copies it three times
    "spark.executor.killOnFatalError.depth": "0",  # a task without memory asks for a smaller batch: Java is to live on
    "spark.kafka.consumer.cache.capacity": "1024",  # above the number of partitions, or consumers are made anew
    "spark.sql.adaptive.enabled": "false",  # it replans every batch anew, which costs small ones more than it gains
    "spark.sql.inMemoryColumnarStorage.compressed": "false",  # a batch lives for a moment: packing it costs more
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
CONNECTOR = "spark-sql-kafka-0-10_"
PACKAGE = "org.apache.spark:spark-sql-kafka-0-10"
PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
COLLECTOR = "-XX:+UseParallelGC"
"""Java's default collector keeps pauses short, which nobody waits for here, and takes a tenth of the throughput."""
JAVA = "spark.driver.extraJavaOptions"
ADDED = {JAVA: " ", "spark.jars": ","}
LOCAL = {
    "spark.master": "local[*]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}


def session(settings: Mapping[str, str]) -> SparkSession:
    """The running session, or a new one. Under spark-submit the cluster's own settings hold."""
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


def series(version: str) -> str:
    """``4.0`` of ``4.0.5``: releases of a series fit each other's connectors."""
    return ".".join(version.split(".")[:2])


def _with_connector(running: SparkSession) -> SparkSession:
    """Refuse a session without Spark's Kafka connector, or with that of another series."""
    from py4j.protocol import Py4JError

    jvm = getattr(running, "_jvm", None)
    if jvm is None:
        return running
    wanted = f"{PACKAGE}_2.13:{running.version}"
    try:
        provider = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(PROVIDER)
        jar = provider.getProtectionDomain().getCodeSource().getLocation().getPath()
    except Py4JError as error:
        if "ClassNotFoundException" in str(error):
            raise BadInput(f"this Spark has no Kafka connector: start it with --packages {wanted}") from None
        return running
    found = re.search(rf"{CONNECTOR}[\d.]+-(\d+\.\d+[^/]*)\.jar$", jar)
    if found and series(found[1]) != series(running.version):
        raise BadInput(
            f"Spark {running.version} does not fit its Kafka connector, {found[1]}: start it with --packages {wanted}"
        )
    return running


def _end_java(error: BaseException) -> None:
    """End the Java that was about to start. It would live on, since it looks for our end only when it is up."""
    from pyspark import SparkContext

    found = [frame.f_locals.get("proc") for frame, _ in traceback.walk_tb(error.__traceback__)]
    for process in (*found, getattr(SparkContext._gateway, "proc", None)):
        if isinstance(process, subprocess.Popen):
            process.kill()
            process.wait()


def _merged(defaults: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """The user's settings over ours; Java options and jars add up."""
    added = {
        name: f"{defaults[name]}{glue}{settings[name]}"
        for name, glue in ADDED.items()
        if {name} <= settings.keys() & defaults.keys()
    }
    merged = {**defaults, **settings, **added}
    # Two collectors would keep Java from starting. Where we add nothing, the cluster's own settings stand.
    if JAVA in defaults and not re.search(r"-XX:\+Use\w+GC\b", merged[JAVA]):
        merged[JAVA] += f" {COLLECTOR}"
    return merged


def _defaults(version: str, settings: Mapping[str, str]) -> dict[str, str]:
    """What we add for a process that was not started by spark-submit."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return {}
    from tallymark.jars import fetch
    from tallymark.java import java_home_for_spark

    os.environ["JAVA_HOME"] = str(java_home_for_spark())
    log4j = files("tallymark.spark") / "log4j2.properties"
    added = DEFAULTS | LOCAL | {JAVA: f"-Dlog4j2.configurationFile=file:{log4j}"}
    if any(CONNECTOR in settings.get(name, "") for name in ("spark.jars", "spark.jars.packages")):
        return added
    check_version(version)
    return added | {"spark.jars": ",".join(str(jar) for jar in fetch("spark-kafka"))}


def locked_connector() -> tuple[str, str]:
    """Version and Scala version of the Kafka connector that a local session gets."""
    from tallymark.jars import artifacts

    jar = next(one for one in artifacts("spark-kafka") if one.name.startswith(CONNECTOR))
    return jar.version, jar.name.removeprefix(CONNECTOR)


def check_version(version: str) -> None:
    """Refuse a Spark of another series than the Kafka connector is of, before Java starts."""
    connector, _ = locked_connector()
    if series(version) != series(connector):
        raise BadInput(
            f"pyspark {version} does not fit the Kafka connector {connector}: "
            f"pip install 'pyspark=={series(connector)}.*', or let spark= bring the connector that does: "
            f"{{'spark.jars.packages': '{PACKAGE}_2.13:{version}'}}"
        )
