"""Pipelines without Python: a TOML file says what ``tm.Pipeline`` and ``@pipeline.table`` would be told."""
