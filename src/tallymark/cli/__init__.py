"""The command line. ``main`` turns every error of ours into one sentence and exit code 1."""

from tallymark.cli.main import main

__all__ = ["main"]
