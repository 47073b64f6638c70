"""The pipeline that the demonstration runs, as a process of its own so that it can be killed.

It reads its settings from standard input as JSON, since a URL may hold a password and a command line is for everybody
to read. It prints a line for every step, so that whoever kills it knows what it was doing.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tallymark.errors import TallymarkError
from tallymark.membership import Group
from tallymark.pipeline import Pipeline
from tallymark.plan import Limits
from tallymark.source import Json, Kafka
from tallymark.steps import Progress, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Settings:
    brokers: str
    topic: str
    store: str
    group: str
    table: str
    batch: int


def pipeline(settings: Settings) -> Pipeline:
    schema = "id BIGINT, customer STRING, amount DOUBLE, at TIMESTAMP"
    made = Pipeline(
        group=settings.group,
        source=Kafka(settings.brokers, settings.topic, value=Json(schema), tls=False),
        store=settings.store,
        limits=Limits(records=settings.batch),
        # The same member comes back after every kill: the group need not wait until it has missed the old one.
        membership=Group(instance="demonstration"),
        # A session that lives for seconds never gets the good of the slower compiler and the greater collector.
        spark={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
    )

    @made.table(settings.table)
    def orders(records: DataFrame) -> DataFrame:
        return records.selectExpr("partition AS partition_id", "offset AS record_offset", "value.*")

    return made


def main() -> None:
    settings = Settings(**json.load(sys.stdin))

    def tell(step: Step, progress: Progress) -> None:
        # In one piece, which print would not: the reading thread has steps of its own.
        line = json.dumps({"step": step.value, "batch": progress.batch, **asdict(progress.tally)})
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    try:
        pipeline(settings).run("caught-up", on_step=tell)
    except TallymarkError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
