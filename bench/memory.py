"""How much memory one batch of a million records takes on the driver, above idle, by either road.

Prints the peak of the Python process and of the JVM beside what both take before the first batch. In local mode the JVM
is driver and executors in one.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
import uuid
from pathlib import Path

from confluent_kafka import Producer

import tallymark as tm
from tallymark.pipeline import Road
from tallymark.sandbox import Sandbox
from tallymark.spark.session import session
from tallymark.steps import Progress, Step

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def processes() -> dict[str, int]:
    """This process, and the JVM and Python workers below it."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")
        except OSError:
            continue
        parents[int(stat.parent.name)] = (int(fields[2].split()[1]), fields[0].partition("(")[2])
    found = {"driver": os.getpid()}
    for pid, (parent, name) in parents.items():
        if parent == os.getpid() and name == "java":
            found["jvm"] = pid
    return found


def produce(brokers: str, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 20, "queue.buffering.max.messages": 500_000})
    for number in range(records):
        value = json.dumps({"id": number, "customer": f"customer-{number % 5000}", "amount": 0.5, "note": "x" * 70})
        while True:
            try:
                producer.produce(topic, value, partition=number % 4)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def measure(brokers: str, topic: str, store: str, records: int, road: Road) -> None:
    pipeline = tm.Pipeline(
        group=f"memory-{uuid.uuid4().hex[:6]}",
        source=tm.Kafka(brokers, topic, value=tm.Json("id BIGINT, customer STRING, amount DOUBLE, note STRING")),
        store=store,
        limits=tm.Limits(records=records, seconds=600, memory=1 << 30 if road == "driver" else 128 << 20),
        road=road,
    )
    pipeline.table(f"orders_{road}")(lambda batch: batch.select("value.*"))
    idle = {name: resident(pid) for name, pid in processes().items()}
    peak, done, batches = dict(idle), threading.Event(), []

    def watch() -> None:
        while not done.wait(0.02):
            for name, pid in processes().items():
                peak[name] = max(peak.get(name, 0), resident(pid))

    def step(reached: Step, progress: Progress) -> None:
        if reached is Step.DONE:
            batches.append(progress.tally.applied)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.monotonic()
    pipeline.run("caught-up", on_step=step)
    seconds = time.monotonic() - began
    done.set()
    watcher.join()
    above = {name: (peak[name] - idle.get(name, 0)) >> 20 for name in peak}
    print(f"{road}: {records:,} records in {seconds:.1f} s, batches {batches}; MiB above idle: {above}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--records", type=int, default=1_000_000)
    chosen = options.parse_args()
    with Sandbox() as box:
        brokers, store = box.kafka().brokers, box.postgresql().url
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": brokers})
        for future in admin.create_topics([NewTopic("memory", 4, 1)]).values():
            future.result()
        produce(brokers, "memory", chosen.records)
        spark = session({"spark.master": "local[2]"})
        spark.range(1000).toArrow()
        measure(brokers, "memory", store, chosen.records, "driver")
        measure(brokers, "memory", store, chosen.records, "executors")


if __name__ == "__main__":
    main()
