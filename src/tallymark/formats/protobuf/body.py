"""A position in the bytes of a Protobuf message."""

from __future__ import annotations

from tallymark.formats.protobuf.program import DEEPEST_GROUP, END_GROUP, FIXED32, FIXED64, GROUP, LENGTH, VARINT

MOST_TAG = (1 << 32) - 1


class Dead(ValueError):
    """A record can't be decoded. ``path`` leads to the part at fault."""

    def __init__(self, why: str, path: str = "") -> None:
        self.why, self.path = why, path
        super().__init__(f"{path.lstrip('.')}: {why}" if path else why)

    def within(self, step: str) -> Dead:
        return Dead(self.why, step + self.path)


class Body:
    """``end`` is where the current message ends. Every method reads what its name says and moves past it."""

    __slots__ = ("at", "content", "end")

    def __init__(self, content: bytes) -> None:
        self.content, self.end = content, len(content)
        self.at = 0

    def varint(self, what: str = "a number") -> int:
        """Read a number of up to 64 bits, without a sign."""
        content, at, end = self.content, self.at, self.end
        found = shift = 0
        while True:
            if at >= end:
                raise Dead(f"the bytes end within {what}")
            byte = content[at]
            at += 1
            found |= (byte & 127) << shift
            if shift == 63 and byte > 1:
                raise Dead(f"{what} takes more than 64 bits")
            if byte < 128:
                self.at = at
                return found
            shift += 7

    def tag(self) -> tuple[int, int]:
        """Read the number of a field and its wire type."""
        found = self.varint("a tag")
        if found > MOST_TAG or found < 8:
            raise Dead(f"{found >> 3} is no number of a field")
        return found >> 3, found & 7

    def take(self, size: int, what: str) -> bytes:
        start = self.at
        end = start + size
        if end > self.end:
            raise Dead(f"the bytes end within {what}")
        self.at = end
        return self.content[start:end]

    def content_of(self) -> bytes:
        return self.take(self.varint("a length"), "bytes")

    def text(self) -> str:
        found = self.take(self.varint("a length"), "a string")
        try:
            return found.decode()
        except UnicodeDecodeError as error:
            raise Dead(f"not UTF-8: {error.reason} at byte {error.start}") from None

    def enter(self) -> int:
        """Read a length, and let the current message end after so many bytes. Returns the end of the outer one."""
        size, outer = self.varint("a length"), self.end
        if size > outer - self.at:
            raise Dead("the bytes end within a message")
        self.end = self.at + size
        return outer

    def leave(self, outer: int) -> None:
        self.end = outer

    def skip(self, number: int, wire: int) -> None:
        """Move past the value of a field; of a group, past all of its fields."""
        open_groups: list[int] = []
        while True:
            if wire == GROUP:
                if len(open_groups) >= DEEPEST_GROUP:
                    raise Dead(f"groups are nested more than {DEEPEST_GROUP} levels deep")
                open_groups.append(number)
            elif wire == END_GROUP:
                if not open_groups or open_groups.pop() != number:
                    raise Dead(f"a group with the number {number} ends, but did not begin")
            else:
                self._skip_value(wire)
            if not open_groups:
                return
            number, wire = self.tag()

    def _skip_value(self, wire: int) -> None:
        if wire == VARINT:
            self.varint()
        elif wire == LENGTH:
            self.take(self.varint("a length"), "a field")
        elif wire in (FIXED64, FIXED32):
            self.take(8 if wire == FIXED64 else 4, "a field")
        else:
            raise Dead(f"there is no wire type {wire}")
