"""Store for Redis and Valkey: one atomic script writes rows, dead letters and positions."""
