"""Where the schema of a reader comes from, and what is said about a writer's schema that it can't read."""

from __future__ import annotations

from dataclasses import dataclass

from tallymark.formats.framing import Id
from tallymark.formats.registry import Registered, Schemas


@dataclass(frozen=True)
class Origin:
    """The subject of a reader's schema, with its version; nothing if the schema was given.

    Several versions are those whose fields the schema has together.
    """

    subject: str | None = None
    versions: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.subject} {self._versions}" if self.subject else "the given schema"

    @classmethod
    def of(cls, subject: str, found: Registered) -> Origin:
        """Return the origin of a version of a subject."""
        return cls(subject, () if found.version is None else (found.version,))

    @property
    def _versions(self) -> str:
        if not self.versions:
            return "the version at the start"
        return f"version{'s' if self.versions[1:] else ''} {' and '.join(map(str, self.versions))}"

    def unreadable(self, name: Id, schemas: Schemas, why: object) -> str:
        """Say that this schema can't read another one, with the subject and version of that one if they are known."""
        places = schemas.places(name) if isinstance(name, int) else []
        own = [place for place in places if place[0] == self.subject]
        writer, reader = f"schema {name}", str(self)
        if places:
            subject, version = max(own or places)
            writer = f"{writer} ({subject} version {version})"
        if own:
            reader = self._versions
        return f"{writer} can't be read by {reader}: {why}"


GIVEN = Origin()
