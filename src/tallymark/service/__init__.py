"""Consumes Kafka without Spark: App, Consumer, listeners and workers."""
