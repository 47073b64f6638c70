"""Processes that are forked after the parent has decoded values, as by gunicorn's preloading and multiprocessing."""

from __future__ import annotations

import subprocess
import sys

FORKED = """
import concurrent.futures, gc, os, signal, sys, threading
import tallymark
from tallymark.formats.json import PIECE_BYTES, JsonDecoder
from tallymark.formats.value import Json

assert threading.active_count() == 1
assert not [one for one in gc.get_objects() if isinstance(one, concurrent.futures.Executor)]
decode = JsonDecoder(Json("id BIGINT, name STRING"))
values = [b'{"id": %d, "name": "%s"}' % (n, b"x" * 4000) for n in range(2 * PIECE_BYTES // 4000)]


def works() -> None:
    decoded = decode(values)
    assert len(decoded.values) == len(values) and not decoded.errors


def child(depth: int) -> None:
    if not (pid := os.fork()):
        signal.alarm(20)
        works()
        if depth:
            child(depth - 1)
        # With all that the interpreter does at its end.
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with {status}"


works()
assert threading.active_count() > 1
child(1)
works()
"""


def test_a_process_that_was_forked_decodes_and_importing_makes_no_pool() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
