"""Computes the rows of a table with SQL over the view ``records``, and keeps the record that each row comes from.

Spark looks for a record's columns below projections and filters, but not below a subquery, a view or a common table
expression. The names that these give have done their work when the query is analyzed, so they are taken out of the
plan, and common table expressions are put in where they are used.
"""

from __future__ import annotations

import logging
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tallymark.errors import BadInput
from tallymark.spark.errors import first_line
from tallymark.spark.plans import of_plan, without_names

VIEW = "records"
CTE_POLICY = "spark.sql.legacy.ctePrecedencePolicy"


def select(sql: str, records: DataFrame, where: str) -> DataFrame:
    """The rows of the query. ``where`` names it in error messages."""
    # Spark would print the whole plan of a query that it can't analyze.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    spark, sql = records.sparkSession, sql.strip().removesuffix(";")
    try:
        return of_plan(without_names(_analyzed(spark, sql, records)), spark)
    except PySparkException as error:
        raise BadInput(f"{where}: {first_line(error)}") from None


def _analyzed(spark: SparkSession, sql: str, records: DataFrame) -> DataFrame:
    session: Any = spark._jsparkSession
    # Anything but a query would be executed at once.
    session.sessionState().sqlParser().parseQuery(sql)
    before = spark.conf.get(CTE_POLICY)
    records.createOrReplaceTempView(VIEW)
    spark.conf.set(CTE_POLICY, "LEGACY")
    try:
        return spark.sql(sql)
    finally:
        spark.conf.set(CTE_POLICY, before or "CORRECTED")
        spark.catalog.dropTempView(VIEW)
