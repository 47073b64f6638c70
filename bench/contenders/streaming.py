"""What PySpark users write today: a streaming query whose foreachBatch writes by Spark's own JDBC. At least once."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.engine import make_url

from bench import JARS
from bench.contenders.limits import from_json, from_json_plain, kafka_options, running
from bench.harness import tables
from bench.harness.race import Course, Lap
from bench.harness.tables import Idle
from tallymark.local.jars import fetch
from tallymark.stores.tls import OPTIONS
from tallymark.stores.url import with_password

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Write = Callable[[DataFrame, int], None]

DRIVERS = {"postgresql": "org.postgresql.Driver", "mariadb": "com.mysql.cj.jdbc.Driver"}
SCHEMES = {"postgresql": "postgresql", "mariadb": "mysql"}
REWRITE = {"postgresql": "reWriteBatchedInserts=true", "mariadb": "rewriteBatchedStatements=true"}
PLAIN_LINE = {"postgresql": "", "mariadb": "useSSL=false&allowPublicKeyRetrieval=true"}


@dataclass
class ForeachBatch(Idle):
    """``tuned`` has our options for Kafka, rewritten inserts of 10,000 rows, and a time that is cast from text.

    Otherwise everything is as it is when one has read the guide and nothing else.
    """

    name: str
    tuned: bool
    records: int = 250_000

    def lap(self, course: Course) -> Lap:
        tables.prepare(course)
        spark = running()
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        source = spark.readStream.format("kafka").options(**kafka_options(course, tuned=self.tuned))
        wanted = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(self.records)}
        records = source.options(subscribe=course.topic, **wanted).load()
        rows = (from_json if self.tuned else from_json_plain)(records)
        with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as checkpoint:
            writer = rows.writeStream.foreachBatch(self._writing(course)).option("checkpointLocation", checkpoint)
            began = time.perf_counter()
            query = writer.trigger(availableNow=True).start()
            try:
                query.awaitTermination()
                seconds = time.perf_counter() - began
            finally:
                query.stop()
        return tables.lap(course, self.name, course.records, seconds)

    def _writing(self, course: Course) -> Write:
        options = jdbc_options(course, tuned=self.tuned)

        def write(rows: DataFrame, _: int) -> None:
            rows.write.format("jdbc").options(**options).mode("append").save()

        return write


def jdbc_options(course: Course, *, tuned: bool) -> dict[str, str]:
    """What Spark's writer needs to know of the table and its database."""
    url = with_password(make_url(course.url))
    query = "&".join(filter(None, (PLAIN_LINE[course.kind], REWRITE[course.kind] if tuned else "")))
    port = f":{url.port}" if url.port else ""
    return {
        "url": f"jdbc:{SCHEMES[course.kind]}://{url.host or 'localhost'}{port}/{url.database or ''}?{query}",
        "driver": DRIVERS[course.kind],
        "dbtable": course.table,
        "user": url.username or "",
        "password": url.password or "",
        **({"batchsize": "10000"} if tuned else {}),
    }


def has_jdbc(course: Course) -> bool:
    """Whether Spark's writer gets into this database: what tallymark does for TLS is not done for it here."""
    secured = {*OPTIONS, "sslmode", "ssl_ca"} & set(make_url(course.url).query)
    return course.kind in DRIVERS and not secured


def jdbc_jars() -> str:
    """For ``spark.jars``, before the session starts."""
    return ",".join(map(str, fetch("jdbc", lock=JARS)))
