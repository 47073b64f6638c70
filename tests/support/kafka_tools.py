"""Runs Kafka's own kafka-consumer-groups."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tallymark.core.spans import Partition
from tallymark.local.jars import fetch
from tallymark.local.java import java_home

LOCK = Path(__file__).with_name("jars.lock")


def consumer_groups(brokers: str, *arguments: str) -> str:
    jars = [*fetch("kafka"), *fetch("kafka-tools", lock=LOCK)]
    done = subprocess.run(
        [
            *(java_home() / "bin" / "java", "-Xmx128m", "-XX:TieredStopAtLevel=1"),
            *("-cp", os.pathsep.join(map(str, jars))),
            *("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--bootstrap-server", brokers),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def described(brokers: str, group: str) -> dict[Partition, tuple[str, str]]:
    """CURRENT-OFFSET and LAG of every partition, as the tool prints them."""
    lines = [line.split() for line in consumer_groups(brokers, "--describe", "--group", group).splitlines()]
    header = next(line for line in lines if line[:1] == ["GROUP"])
    columns = [header.index(name) for name in ("TOPIC", "PARTITION", "CURRENT-OFFSET", "LAG")]
    rows = [[line[at] for at in columns] for line in lines if line[:1] == [group]]
    return {Partition(topic, int(number)): (current, lag) for topic, number, current, lag in rows}
