"""The Spark session: the user's own if there is one, else a local one with what the Kafka source needs."""

from __future__ import annotations

import os
import re
import sys
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
    """The running session, or a new one. Under spark-submit the cluster's own settings stand."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise BadInput("a pipeline needs Spark: pip install 'tallymark[spark]'") from None
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    for name, value in _merged(_defaults(), settings).items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkException as error:
        raise BadInput(f"Spark did not start: {str(error).splitlines()[0]}") from error


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


def _defaults() -> dict[str, str]:
    """What we add for a process that was not started by spark-submit."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return {}
    from tallymark.jars import fetch
    from tallymark.java import java_home_for_spark

    os.environ["JAVA_HOME"] = str(java_home_for_spark())
    log4j = files("tallymark.spark") / "log4j2.properties"
    return (
        DEFAULTS
        | LOCAL
        | {
            JAVA: f"-Dlog4j2.configurationFile=file:{log4j}",
            "spark.jars": ",".join(str(jar) for jar in fetch("spark-kafka")),
        }
    )
