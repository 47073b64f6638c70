"""Whether the books of a group are right: identities of the ledger, and a comparison of tables with Kafka."""
