"""Which contenders take part in which race, by what name, and what is compared with what.

Names begin with ``limit`` for what no contender can be faster than, and with ``tallymark`` for ours. Slow contenders
get a share of the records: rates are compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from bench.contenders import limits
from bench.contenders.limits import BulkLoad, Scan
from bench.contenders.loops import Loop, hand_arrow, hand_batches, textbook
from bench.contenders.ours import OurListener, OurPipeline
from bench.contenders.streaming import ForeachBatch
from bench.harness.race import Comparison, Contender
from bench.harness.records import Shape
from bench.harness.tables import Mode
from bench.peers.debezium import Debezium
from bench.peers.quix import Quix

LIMIT, OURS = "limit: ", "tallymark"
SCAN = f"{LIMIT}scan"
FROM_JSON, ARROW_JSON = f"{LIMIT}scan + from_json", f"{LIMIT}scan + pyarrow.json"
BULK, MERGE = f"{LIMIT}bulk load", f"{LIMIT}bulk upsert"
PIPELINE, UPSERT, LISTENER = OURS, f"{OURS}, upsert", f"{OURS}, listener"
EXECUTORS, ONE_MILLION = f"{OURS}, executors", f"{OURS}, 1M"
AT_LEAST_ONCE = f"{OURS}, at-least-once"
JDBC_DEFAULT, JDBC_TUNED = "foreachBatch + JDBC, default", "foreachBatch + JDBC, tuned"
TEXTBOOK, HAND_ARROW = "by hand, a record", "by hand, Arrow and COPY"
MANY = {1_000: "by hand, executemany 1,000", 10_000: "by hand, executemany 10,000"}
MANY_UPSERT = {most: f"{name}, upsert" for most, name in MANY.items()}
DEBEZIUM, DEBEZIUM_UPSERT, QUIX = "Debezium JDBC sink", "Debezium JDBC sink, upsert", "Quix Streams"

LARGE = 1_000_000
AMPLE = 1 << 30
"""Bytes: more than a million records, so that they may go through the driver."""


def is_ours(name: str) -> bool:
    return name.startswith(OURS)


def is_limit(name: str) -> bool:
    return name.startswith(LIMIT)


def scans() -> list[Contender]:
    """Without a store."""
    return [
        Scan(SCAN),
        Scan(f"{SCAN}, default options", tuned=False),
        Scan(FROM_JSON, limits.from_json),
        Scan(ARROW_JSON, limits.arrow_json),
    ]


def appending(kind: str, size: int, shape: Shape, *, jdbc: bool) -> list[Contender]:
    """Append in batches of ``size``, on every store."""
    found: list[Contender] = [BulkLoad(BULK, shape=shape, most=size), OurPipeline(PIPELINE, records=size, memory=AMPLE)]
    if jdbc:
        found += [ForeachBatch(JDBC_DEFAULT, False, size), ForeachBatch(JDBC_TUNED, True, size)]
    found += [OurListener(LISTENER)]
    return [*found, *([Loop(HAND_ARROW, hand_arrow(10_000))] if kind == "postgresql" else [])]


def slow(records: int, *, quick: bool) -> list[Contender]:
    """Loops by hand that would take minutes for all records."""
    one, many = (1_000, 50_000) if quick else (4_000, 200_000)
    batched = [Loop(name, hand_batches(most), share=share(max(many, most), records)) for most, name in MANY.items()]
    return [*batched, Loop(TEXTBOOK, textbook, share=share(one, records))]


def upserting(size: int, shape: Shape, records: int, *, quick: bool) -> list[Contender]:
    many = 50_000 if quick else 200_000
    batched = [
        Loop(name, hand_batches(most, "upsert"), "upsert", share(max(many, most), records))
        for most, name in MANY_UPSERT.items()
    ]
    ours = OurPipeline(UPSERT, "upsert", size, memory=AMPLE)
    return [BulkLoad(MERGE, "upsert", shape, size), ours, *batched]


def varieties(kind: str, size: int) -> list[Contender]:
    """The same pipeline at least once, and on executors."""
    found: list[Contender] = [OurPipeline(AT_LEAST_ONCE, records=size, delivery="at-least-once", memory=AMPLE)]
    return found if kind == "sqlite" else [*found, OurPipeline(EXECUTORS, records=size, road="executors")]


def in_millions() -> list[Contender]:
    """Batches of a million: on the driver, on executors, and as the default limit of memory decides."""
    return [
        OurPipeline(ONE_MILLION, records=LARGE, road="driver", memory=AMPLE),
        OurPipeline(f"{ONE_MILLION}, executors", records=LARGE, road="executors"),
        OurPipeline(f"{ONE_MILLION}, default limits.memory", records=LARGE),
        ForeachBatch(f"{JDBC_DEFAULT}, 1M", False, LARGE),
        ForeachBatch(f"{JDBC_TUNED}, 1M", True, LARGE),
    ]


def peers(kind: str, mode: Mode) -> list[Contender]:
    """Contenders in processes of their own."""
    if kind == "sqlite":
        return []
    if mode == "upsert":
        return [Debezium(DEBEZIUM_UPSERT, "upsert", share=0.5)]
    found: list[Contender] = [Debezium(DEBEZIUM, share=0.5), Debezium(f"{DEBEZIUM}, default", tuned=False, share=0.5)]
    return [*found, Quix(QUIX, share=0.1)] if kind == "postgresql" else found


def share(most: int, records: int) -> float:
    return min(1.0, most / records)


POSTGRESQL_TARGETS = (
    Comparison(PIPELINE, JDBC_TUNED, 1.3, 1.8),
    Comparison(PIPELINE, JDBC_DEFAULT, 1.9),
    Comparison(PIPELINE, DEBEZIUM, 4.0, steady=True),
    *(Comparison(PIPELINE, name, 6.0) for name in MANY.values()),
    Comparison(PIPELINE, QUIX, 9.0, steady=True),
    Comparison(PIPELINE, TEXTBOOK, 250.0),
    Comparison(PIPELINE, ARROW_JSON, 0.45, 0.6),
    Comparison(PIPELINE, FROM_JSON),
    Comparison(PIPELINE, BULK),
    Comparison(PIPELINE, AT_LEAST_ONCE, 0.95),
    Comparison(EXECUTORS, JDBC_TUNED),
    Comparison(LISTENER, HAND_ARROW, 0.9),
    *(
        Comparison(name, f"{JDBC_TUNED}, 1M", least)
        for name, least in {
            ONE_MILLION: 1.5,
            f"{ONE_MILLION}, executors": None,
            f"{ONE_MILLION}, default limits.memory": None,
        }.items()
    ),
    Comparison(ONE_MILLION, f"{JDBC_DEFAULT}, 1M"),
    Comparison(UPSERT, DEBEZIUM_UPSERT, 2.0, 3.5, steady=True),
    *(Comparison(UPSERT, name) for name in MANY_UPSERT.values()),
    Comparison(UPSERT, MERGE),
)
MARIADB_PEERS = (JDBC_TUNED, JDBC_DEFAULT, *MANY.values())
MARIADB_TARGETS = (
    *(Comparison(PIPELINE, peer, 1.5) for peer in MARIADB_PEERS),
    Comparison(PIPELINE, DEBEZIUM, 1.5, steady=True),
    *(Comparison(UPSERT, peer, 1.5) for peer in MANY_UPSERT.values()),
    Comparison(UPSERT, DEBEZIUM_UPSERT, 1.5, steady=True),
    Comparison(PIPELINE, TEXTBOOK),
    Comparison(PIPELINE, AT_LEAST_ONCE, 0.95),
    Comparison(PIPELINE, BULK),
    Comparison(UPSERT, MERGE),
)
TARGETS = {"postgresql": POSTGRESQL_TARGETS, "mariadb": MARIADB_TARGETS}


def comparisons(kind: str, *, targets: bool) -> Sequence[Comparison]:
    """What is compared on this store. Targets are for whole races on the sandbox."""
    known = TARGETS.get(kind, POSTGRESQL_TARGETS)
    return known if targets and kind in TARGETS else without_targets(known)


def without_targets(known: Iterable[Comparison]) -> list[Comparison]:
    return [replace(one, least=None, aim=None) for one in known]


def batch_size(most: int, records: int, *, quick: bool) -> int:
    """A quick race has few records, and should have several batches nevertheless."""
    return max(1, min(most, records // 4)) if quick else most


def chosen(contenders: Collection[Contender], only: str) -> list[Contender]:
    return [one for one in contenders if only.lower() in one.name.lower()]
