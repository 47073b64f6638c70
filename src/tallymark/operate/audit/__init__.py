"""Audits a group: checks the identities of its ledger, and compares its tables with Kafka."""
