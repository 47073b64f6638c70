"""The pipeline of the demo, in a separate process so that it can be killed.

It reads its settings from standard input as JSON, because a URL may hold a password, and command lines are public. It
prints a line for every step, so that the parent process can kill it at a chosen step.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tallymark.core.plan import Limits
from tallymark.core.progress import Progress, Step
from tallymark.errors import TallymarkError
from tallymark.formats.value import Json
from tallymark.kafka.membership import Group
from tallymark.kafka.source import Kafka
from tallymark.operate.demo.settings import DemoSettings
from tallymark.spark.pipeline import Pipeline


def pipeline(settings: DemoSettings) -> Pipeline:
    schema = "id BIGINT, customer STRING, amount DECIMAL(10, 2), status STRING, at TIMESTAMP"
    pipeline = Pipeline(
        group=settings.group,
        source=Kafka(settings.brokers, settings.topic, value=Json(schema), tls=False),
        store=settings.store,
        limits=Limits(records=settings.batch),
        # With static membership, a restarted member rejoins at once instead of after the session timeout.
        membership=Group(instance="demonstration"),
        # The optimizing compiler and the default garbage collector do not pay in a session of a few seconds.
        spark={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
    )

    @pipeline.table(settings.table)
    def orders(records: DataFrame) -> DataFrame:
        return records.selectExpr("partition AS partition_id", "offset AS record_offset", "value.*")

    @pipeline.table(
        settings.totals,
        key="customer",
        write="merge",
        version="last_order",
        merge={"orders": "count", "revenue": "sum", "largest": "max", "last_status": "newest"},
    )
    def totals(records: DataFrame) -> DataFrame:
        return records.groupBy("value.customer").agg(
            F.count("*").alias("orders"),
            F.sum("value.amount").alias("revenue"),
            F.max("value.amount").alias("largest"),
            F.max_by("value.status", "value.id").alias("last_status"),
            F.max("value.id").alias("last_order"),
        )

    return pipeline


def main() -> None:
    settings = DemoSettings(**json.load(sys.stdin))

    def tell(step: Step, progress: Progress) -> None:
        # One write for the whole line, unlike print(): another thread reports steps, too.
        line = json.dumps({"step": step.value, "batch": progress.batch, **asdict(progress.tally)})
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    try:
        pipeline(settings).run("caught-up", on_step=tell)
    except TallymarkError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
