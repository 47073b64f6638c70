"""The Kafka side: cluster settings, broker queries, group membership, fetching and lag."""
