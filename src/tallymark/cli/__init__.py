"""The command line: a module for each command, and the options, the output and the loading that they share."""

from tallymark.cli.main import main

__all__ = ["main"]
