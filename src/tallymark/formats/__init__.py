"""Decoding of Kafka values into Arrow columns."""
