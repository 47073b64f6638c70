"""Ways from a topic to a table that run in the process of the benchmark, and which of them race."""
