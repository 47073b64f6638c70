"""The numbers of Protobuf: their ranges, and their bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable

INT, UINT = (-(1 << 31), (1 << 31) - 1), (0, (1 << 32) - 1)
LONG, ULONG = (-(1 << 63), (1 << 63) - 1), (0, (1 << 64) - 1)
RANGES = {
    "bool": (0, 1),
    "enum": INT,
    "int32": INT,
    "sint32": INT,
    "sfixed32": INT,
    "uint32": UINT,
    "fixed32": UINT,
    "int64": LONG,
    "sint64": LONG,
    "sfixed64": LONG,
    "uint64": ULONG,
    "fixed64": ULONG,
}
"""The least and the greatest number of each type."""
PACKED = {"fixed32": "<I", "sfixed32": "<i", "float": "<f", "fixed64": "<Q", "sfixed64": "<q", "double": "<d"}


def number_encoder(kind: str) -> Callable[[float], bytes]:
    """Return the function that writes a number of a type, which is in its range."""
    if kind in PACKED:
        return struct.Struct(PACKED[kind]).pack
    if kind in ("sint32", "sint64"):
        return lambda number: varint(zigzag(int(number)))
    return lambda number: varint(int(number) & ULONG[1])


def zigzag(number: int) -> int:
    """Return a number of up to 64 bits without its sign, so that small ones stay small."""
    return (number << 1) ^ (number >> 63)


def varint(rest: int) -> bytes:
    """Write a number without a sign in as few bytes as it needs."""
    found = bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return bytes(found)
