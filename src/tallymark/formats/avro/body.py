"""A position in the bytes of one Avro record."""

from __future__ import annotations

from tallymark.formats.avro.program import MOST_EMPTY

INT_LIMIT = 1 << 31


class Dead(ValueError):
    """A value can't be decoded. ``path`` leads to the part at fault."""

    def __init__(self, why: str, path: str = "") -> None:
        self.why, self.path = why, path
        super().__init__(f"{path.lstrip('.')}: {why}" if path else why)

    def within(self, step: str) -> Dead:
        return Dead(self.why, step + self.path)


class Body:
    """A position in the bytes of a record. Every method reads what its name says and moves past it."""

    __slots__ = ("at", "content", "empty", "size")

    def __init__(self, content: bytes) -> None:
        self.content, self.size = content, len(content)
        self.at = 0
        self.empty = MOST_EMPTY

    def read_long(self, what: str = "a LONG") -> int:
        content, at = self.content, self.at
        try:
            byte = content[at]
            found, shift = byte & 127, 0
            while byte > 127:
                at += 1
                shift += 7
                byte = content[at]
                if shift > 63 or (shift == 63 and byte > 1):
                    raise Dead(f"{what} takes more than 64 bits")
                found |= (byte & 127) << shift
        except IndexError:
            raise Dead(f"the bytes end within {what}") from None
        self.at = at + 1
        return (found >> 1) ^ -(found & 1)

    def read_int(self) -> int:
        found = self.read_long("an INT")
        if not -INT_LIMIT <= found < INT_LIMIT:
            raise Dead(f"{found} does not fit INT")
        return found

    def take(self, size: int, what: str) -> bytes:
        start = self.at
        self.at = end = start + size
        if not start <= end <= self.size:
            raise Dead(f"the bytes end within {what}" if size >= 0 else f"{what} has a negative length")
        return self.content[start:end]

    def read_bytes(self) -> bytes:
        return self.take(self.read_long("a length"), "BYTES")

    def read_text(self) -> str:
        return utf8(self.take(self.read_long("a length"), "a STRING"))

    def read_block(self, what: str, empty: bool = False) -> int:
        """Read the number of items of the next block."""
        count = self.read_long(f"the length of {what}")
        if count < 0:
            count = -count
            self.read_long(f"the size of {what}")
        if count > self.size - self.at and not empty:
            raise Dead(f"the bytes end within {what} of {count} items")
        return count

    def read_branch(self, count: int) -> int:
        index = self.read_long("the branch of a UNION")
        if not 0 <= index < count:
            raise Dead(f"the UNION has no branch {index}")
        return index


def utf8(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise Dead(f"not UTF-8: {error.reason} at byte {error.start}") from None
