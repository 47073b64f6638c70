"""Sends records to Kafka."""
