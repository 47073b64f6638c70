"""Redis and Valkey as a destination: rows, dead letters and positions in one script, which runs alone or not at all."""
