"""Child processes, forked from a server that has imported everything, so that each starts quickly."""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["tests.support.crash", "tests.support.storm_member", "tests.support.totals_driver", "tallymark.stores.sql.store"]
)
