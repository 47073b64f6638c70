"""Benchmarks that anybody can repeat: all contenders take turns on one topic, one database and one machine."""
