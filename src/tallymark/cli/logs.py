"""Logging of the command line: warnings to stderr, more on request. The library itself configures nothing."""

from __future__ import annotations

import logging

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


def configure(verbose: int) -> None:
    level = LEVELS[min(verbose, len(LEVELS) - 1)]
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("tallymark").setLevel(level)
    # py4j reports every broken connection of a Spark that is shutting down.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
