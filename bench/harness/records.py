"""The records of a race: orders as JSON, flat in two sizes or nested, the rows that flat ones become, and sales.

The id of record ``n`` is ``n * 7919 % records``: every id once, in an order that is none, as keys come in life. Values
are put together by Arrow, a hundred thousand at a time, so that making two million takes seconds.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, Literal

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from tallymark.errors import BadInput, TallymarkError
from tallymark.kafka.brokers import Brokers, connect
from tallymark.kafka.cluster import Cluster

Shape = Literal["small", "large", "nested", "sales", "avro"]

PARTITIONS = 4
DDL = "id BIGINT, customer STRING, amount DOUBLE, at TIMESTAMP, note STRING"
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        ("amount", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("note", pa.string()),
    ]
)
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "note", "type": "string"},
    ],
}
AVRO_ID = 1
NESTED_DDL = (
    "id BIGINT, at TIMESTAMP, customer STRUCT<id: BIGINT, name: STRING, email: STRING, "
    "address: STRUCT<street: STRING, city: STRING, zip: STRING>>, "
    "items ARRAY<STRUCT<sku: STRING, quantity: INT, price: DOUBLE>>, status STRING, total DOUBLE"
)
SALES_DDL = "customer BIGINT, shop BIGINT, amount DECIMAL(10, 2), at TIMESTAMP, note STRING"
SALES_KEYS = {"shop": 1_000, "customer": 1_000_000}
"""How many values each key of a sale has."""
NOTES: dict[Shape, int] = {"small": 1, "large": 29}
"""How often the note of an order repeats itself: values have about 140 bytes, or 1 KB."""
STEP = 7919
"""A prime. If it divides the number of records, ids repeat."""
AT_ONCE = 100_000
FIRST_MOMENT = 1_767_225_600_000_000
"""2026 begins, in microseconds."""
PRODUCER = {
    "linger.ms": 50,
    "batch.size": 1 << 20,
    "queue.buffering.max.messages": 400_000,
    "queue.buffering.max.kbytes": 1 << 20,
    "acks": "all",
    "enable.idempotence": True,
    "log_level": 0,
}


def rows(start: int, stop: int, records: int, shape: Shape = "small") -> pa.Table:
    """The orders ``start`` to ``stop`` of so many, as the table has them."""
    number = pa.array(range(start, stop), pa.int64())
    amount = pc.divide(_modulo(number, 10_000).cast(pa.float64()), 100.0)
    micros = pc.add(pc.multiply(number, 1000), FIRST_MOMENT)
    columns = [
        _modulo(pc.multiply(number, STEP), records),
        _joined("customer-", _modulo(number, 5000).cast(pa.string())),
        amount,
        micros.cast(pa.timestamp("us", "UTC")),
        pc.binary_repeat(_note(number), NOTES[shape]),
    ]
    return pa.table(columns, schema=SCHEMA)


def values(start: int, stop: int, records: int, shape: Shape = "small") -> list[bytes]:
    """The same orders as JSON. A time is text without a zone, which is how databases take it too."""
    if shape == "avro":
        return _avro(start, stop, records)
    if shape == "sales":
        joined = _sales(start, stop)
    else:
        joined = _nested(start, stop, records) if shape == "nested" else _flat(start, stop, records, shape)
    found: list[bytes] = joined.cast(pa.binary()).to_pylist()
    return found


def _flat(start: int, stop: int, records: int, shape: Shape) -> pa.Array:
    made = rows(start, stop, records, shape)
    text = [made[name].combine_chunks() for name in SCHEMA.names]
    number, customer, amount, at, note = text
    moment = at.cast(pa.timestamp("us")).cast(pa.string())
    return _joined(
        '{"id": ', number.cast(pa.string()), ', "customer": "', customer, '", "amount": ', amount.cast(pa.string()),
        ', "at": "', moment, '", "note": "', note, '"}',
    )  # fmt: skip


def _avro(start: int, stop: int, records: int) -> list[bytes]:
    """Orders in the framing of a registry."""
    schema = fastavro.parse_schema(AVRO)
    found = []
    for order in rows(start, stop, records).to_pylist():
        content = io.BytesIO(b"\0" + AVRO_ID.to_bytes(4))
        content.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(content, schema, order)
        found.append(content.getvalue())
    return found


def sales(start: int, stop: int) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """The keys of these sales, drawn evenly, and their amounts in cents."""
    number = np.arange(start, stop, dtype=np.uint64)
    draws = {"shop": 1, "customer": 2, "cents": 3}
    limits = {**SALES_KEYS, "cents": 100_000}
    return {name: (_mixed(number * 3 + draw) % limits[name]).astype(np.int64) for name, draw in draws.items()}


def _mixed(number: Any) -> Any:
    """Numbers that look random, the same ones in each run: the last step of splitmix64."""
    number = number * np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


def _sales(start: int, stop: int) -> pa.Array:
    number = pa.array(range(start, stop), pa.int64())
    made = sales(start, stop)
    customer, shop = (pa.array(made[name]).cast(pa.string()) for name in ("customer", "shop"))
    euros, cents = (pa.array(part).cast(pa.string()) for part in np.divmod(made["cents"], 100))
    amount = _joined(euros, ".", pc.utf8_lpad(cents, 2, "0"))
    moment = pc.add(pc.multiply(number, 1000), FIRST_MOMENT).cast(pa.timestamp("us")).cast(pa.string())
    return _joined(
        '{"customer": ', customer, ', "shop": ', shop, ', "amount": ', amount,
        ', "at": "', moment, '", "note": "', _note(number), '"}',
    )  # fmt: skip


def _nested(start: int, stop: int, records: int) -> pa.Array:
    """An order with its customer and one to three items, in about 0.4 KB."""
    made, number = rows(start, stop, records), pa.array(range(start, stop), pa.int64())
    identity, amount = (made[name].combine_chunks().cast(pa.string()) for name in ("id", "amount"))
    moment = made["at"].combine_chunks().cast(pa.timestamp("us")).cast(pa.string())
    customer, rest = _modulo(number, 5000).cast(pa.string()), _modulo(number, 3)
    one, second, third = (_item(number, place) for place in range(3))
    two = _joined(one, ", ", second)
    return _joined(
        '{"id": ', identity, ', "at": "', moment, '", "customer": {"id": ', customer, ', "name": "customer number ',
        customer, '", "email": "c', customer, '@example.org", "address": {"street": "',
        _modulo(number, 100).cast(pa.string()), ' Main Street", "city": "Springfield", "zip": "',
        _modulo(number, 90_000, 10_000).cast(pa.string()), '"}}, "items": [',
        pc.choose(rest, one, two, _joined(two, ", ", third)),
        '], "status": "', pc.choose(rest, "new", "paid", "sent"), '", "total": ', amount, "}",
    )  # fmt: skip


def _item(number: pa.Array, place: int) -> pa.Array:
    """One item of each order; the one at place 0 has quantity 1."""
    sku = _modulo(pc.add(pc.multiply(number, 7), place), 1000).cast(pa.string())
    price = pc.multiply(_modulo(pc.add(number, place), 80, 1).cast(pa.float64()), 1.25).cast(pa.string())
    return _joined('{"sku": "sku-', sku, f'", "quantity": {place + 1}, "price": ', price, "}")


def pieces(records: int, most: int = AT_ONCE) -> Iterator[tuple[int, int]]:
    """The numbers of all orders, in ranges of at most so many."""
    return ((start, min(start + most, records)) for start in range(0, records, most))


def fill(cluster: Cluster, topic: str, records: int, shape: Shape = "small") -> None:
    """Make the topic, and write so many orders to its partitions in turn."""
    if records % STEP == 0:
        raise BadInput(f"{records} records would not have an id each; take one more, or one less")
    Brokers(cluster).create(topic, PARTITIONS)
    producer = connect(Producer, {**cluster.settings(), **PRODUCER})
    failures: list[Any] = []

    def report(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error)

    for start, stop in pieces(records):
        for number, one in enumerate(values(start, stop, records, shape), start):
            _produce(producer, topic, one, number % PARTITIONS, report)
    left = producer.flush(60)
    if failures or left:
        raise TallymarkError(f"topic {topic} did not take all records: {failures[0] if failures else f'{left} wait'}")


def delete_topic(cluster: Cluster, topic: str) -> None:
    Brokers(cluster).ask(lambda admin: admin.delete_topics([topic]), topic)


def _produce(producer: Producer, topic: str, one: bytes, partition: int, report: Callable[[Any, Any], None]) -> None:
    """Wait for room if there is none."""
    while True:
        try:
            producer.produce(topic, one, partition=partition, on_delivery=report)
            return
        except BufferError:
            producer.poll(0.1)


def _note(number: pa.Array) -> pa.Array:
    """Some thirty characters that look different in every order."""
    mixed = _modulo(pc.multiply(number, 2_654_435_761), 1 << 32)
    return _joined("leave it at door ", mixed.cast(pa.string()), ", please")


def _joined(*parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*(pa.scalar(one) if isinstance(one, str) else one for one in parts), "")


def _modulo(numbers: pa.Array, by: int, least: int = 0) -> pa.Array:
    """The remainders, from ``least`` on."""
    return pc.add(pc.subtract(numbers, pc.multiply(pc.divide(numbers, by), by)), least)
