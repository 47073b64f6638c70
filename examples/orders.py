"""Orders from Kafka into two tables: one row per order, and the latest order of each customer.

tallymark run examples/orders.py, with the brokers and the store from the environment.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import tallymark as tm

pipeline = tm.Pipeline(
    group="orders-to-shop",
    source=tm.Kafka(
        os.environ.get("TALLYMARK_BROKERS", "localhost:9092"),
        "orders",
        value=tm.Json("id BIGINT, customer STRING, amount DOUBLE, at TIMESTAMP"),
    ),
    store=os.environ.get("TALLYMARK_STORE", "sqlite:///shop.db"),
)


@pipeline.table("orders")
def orders(records: DataFrame) -> DataFrame:
    return records.select("value.*", F.col("offset").alias("kafka_offset"))


@pipeline.table("customers", key="customer", write="upsert")
def customers(records: DataFrame) -> DataFrame:
    return records.where("value.customer IS NOT NULL").select(
        "value.customer", F.col("value.id").alias("last_order"), F.col("value.at").alias("last_seen")
    )


if __name__ == "__main__":
    pipeline.run()
