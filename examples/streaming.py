"""A stateful streaming query whose rows are written exactly once, by a sink for foreachBatch.

python examples/streaming.py
"""

from __future__ import annotations

import tempfile

from common import BROKERS, STORE, ask, make_topic, new_name, send
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

import tallymark as tm
from tallymark.core.progress import Progress, Step
from tallymark.spark.session import session

topic, name, checkpoint = make_topic(), new_name("totals"), tempfile.mkdtemp()
spark = session({"spark.master": "local[2]"})
failures = 1


def power_failure(step: Step, _: Progress) -> None:
    """Fail once, after the database has the rows and before Spark's checkpoint has recorded it."""
    global failures
    if step is Step.COMMITTED and failures:
        failures -= 1
        raise RuntimeError("the lights go out")


sink = tm.Sink(name, store=STORE, on_step=power_failure)
sink.table(name, key="digit", write="upsert")


@sink.table(f"{name}_log")
def changes(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("digit", "orders AS orders_then")


def run() -> None:
    options = {"kafka.bootstrap.servers": BROKERS, "subscribe": topic, "startingOffsets": "earliest"}
    orders = spark.readStream.format("kafka").options(**options).load()
    totals = orders.groupBy(orders.key.cast("string").alias("digit")).count().withColumnRenamed("count", "orders")
    writer = totals.writeStream.foreachBatch(sink.foreach_batch).option("checkpointLocation", checkpoint)
    writer.outputMode("update").trigger(availableNow=True).start().awaitTermination()


send(topic, range(20))
try:
    run()
except StreamingQueryException as error:
    print("the query ended:", "the lights go out" in str(error))
print("rows after the failure:", ask(f"SELECT count(*) FROM {name}_log"))

run()  # Spark repeats the micro-batch, and the sink recognizes it
print("rows after the repetition:", ask(f"SELECT count(*) FROM {name}_log"))
assert ask(f"SELECT count(*), sum(orders) FROM {name}") == [(10, 20)]
assert ask(f"SELECT count(*) FROM {name}_log") == [(10,)]

send(topic, range(5))
run()
print("orders of digit 3:", ask(f"SELECT orders_then FROM {name}_log WHERE digit = '3' ORDER BY orders_then"))
assert ask(f"SELECT orders FROM {name} WHERE digit = '3'") == [(3,)]
sink.close()
