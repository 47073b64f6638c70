"""Pipelines without Python: a TOML file has the settings of ``tm.Pipeline`` and ``@pipeline.table``."""
