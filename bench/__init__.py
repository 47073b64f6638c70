"""Benchmarks that anybody can repeat: all contenders take turns on one topic, one database and one machine.

Every module of this folder is a part that runs by itself: ``python -m bench.throughput --quick``.
"""

from pathlib import Path

JARS = Path(__file__).with_name("jars.lock")
"""The jars that only contenders need."""
