"""Verifies the totals of the demo: adds up the orders in Kafka in plain Python, and compares each customer's total."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import text

from tallymark.operate.demo.produce import BROKEN
from tallymark.stores.sql.store import SqlStore


@dataclass(frozen=True)
class Total:
    """What the table holds of one customer."""

    orders: int
    revenue: Decimal
    largest: Decimal
    last_order: int
    last_status: str


Totals = Mapping[str, Total]


@dataclass(frozen=True)
class TotalsVerdict:
    """The totals by customer: what is expected, and what is in the table."""

    expected: Totals
    found: Totals

    @property
    def wrong(self) -> list[str]:
        """The customers whose total is missing, differs in any column, or should not exist."""
        customers = sorted(self.expected.keys() | self.found.keys())
        return [customer for customer in customers if self.expected.get(customer) != self.found.get(customer)]


def orders_of(totals: Totals) -> int:
    return sum(total.orders for total in totals.values())


def revenue_of(totals: Totals) -> Decimal:
    return sum((total.revenue for total in totals.values()), Decimal(0))


def expected_totals(values: Iterable[bytes | None]) -> dict[str, Total]:
    """Add up the orders. Nothing of the engine takes part: it would approve its own mistakes."""
    totals: dict[str, Total] = {}
    for value in values:
        if value is None or value in BROKEN:
            continue
        order = json.loads(value, parse_float=Decimal)
        amount = Decimal(order["amount"])
        one = Total(1, amount, amount, order["id"], order["status"])
        before = totals.get(order["customer"])
        totals[order["customer"]] = one if before is None else _added(before, one)
    return totals


def _added(a: Total, b: Total) -> Total:
    newest = max(a, b, key=lambda total: total.last_order)
    return Total(
        a.orders + b.orders,
        a.revenue + b.revenue,
        max(a.largest, b.largest),
        newest.last_order,
        newest.last_status,
    )


def stored_totals(store: SqlStore, table: str) -> dict[str, Total]:
    sql = f"SELECT customer, orders, revenue, largest, last_order, last_status FROM {table}"
    with store.look() as connection:
        return {
            # SQLite keeps a DECIMAL as text.
            row.customer: Total(row.orders, Decimal(row.revenue), Decimal(row.largest), row.last_order, row.last_status)
            for row in connection.execute(text(sql))
        }
