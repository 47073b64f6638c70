"""Where the schema of a reader comes from, what it can't read, and whether its subject has a later version."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tallymark.errors import BadInput, Unreachable
from tallymark.formats.framing import Id
from tallymark.formats.registry import Place, Registered, Schemas

T = TypeVar("T")


@dataclass(frozen=True)
class Origin:
    """The subject of a reader's schema, with its version; nothing if the schema was given.

    Several versions are those whose fields the schema has together.
    """

    subject: str | None = None
    versions: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.subject is None:
            return "the reader's schema"
        return f"{self.subject} {self._versions}" if self.versions else f"subject {self.subject}"

    @classmethod
    def of(cls, subject: str, found: Registered) -> Origin:
        """Return the origin of a version of a subject."""
        return cls(subject, () if found.version is None else (found.version,))

    def extended(self, later: Registered, *, fully: bool) -> Origin:
        """Return the origin of this schema with the fields of a later version.

        ``fully``: it then reads all that was written with that version.
        """
        versions = () if later.version is None else (later.version,)
        return Origin(self.subject, versions if fully else (*self.versions, *versions))

    def not_extended(self, later: Registered, why: object) -> BadInput:
        """Return the error of a schema that can't have the fields of a later version."""
        return BadInput(
            f"the new fields of {Origin.of(str(self.subject), later)} can't be added to those of {self._versions}: "
            f"{why}; start the run again, which then reads the latest version alone"
        )

    @property
    def _versions(self) -> str:
        if not self.versions:
            return "the latest version at the start"
        return f"version{'s' if self.versions[1:] else ''} {' and '.join(map(str, self.versions))}"

    def unreadable(self, name: Id, schemas: Schemas, why: object) -> str:
        """Say that this schema can't read another one, with the subject and version of that one if they are known."""
        places: list[Place] = []
        # Without an answer, the error only says less.
        with suppress(Unreachable):
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


class Unread:
    """The writers' schemas that have fields which the reader's schema lacks, until its subject is asked for them."""

    def __init__(self, schemas: Schemas, origin: Origin) -> None:
        self._schemas, self._origin = schemas, origin
        self._names: set[Id] = set()

    def add(self, name: Id) -> None:
        if self._origin.subject is not None:
            self._names.add(name)

    def __bool__(self) -> bool:
        return bool(self._names)

    def followed(self, extended: Callable[[str, Registered], T | None]) -> T | None:
        """Return what ``extended`` makes of the subject's latest schema; None if it has no fields to follow.

        Then nothing asks again because of these writers' schemas.
        """
        subject, names = str(self._origin.subject), self._names.copy()
        latest = self._schemas.find(subject)
        if latest is not None and latest.version is not None:
            self._check_latest(subject, latest.version, names)
        is_known = latest is None or latest.version in self._origin.versions
        found = None if latest is None or is_known else extended(subject, latest)
        if found is None:
            self._names -= names
        return found

    def _check_latest(self, subject: str, latest: int, names: set[Id]) -> None:
        """Nodes of a registry may not know the same yet: the columns of an older version would lose values."""
        ids = [name for name in names if isinstance(name, int)]
        places = [place for id in ids for place in self._schemas.retried(partial(self._schemas.places, id))]
        known = max((version for other, version in places if other == subject), default=0)
        if known > latest:
            raise Unreachable(
                f"{self._schemas.name} answers with version {latest} of subject {subject} as the latest, and has "
                f"version {known}: its nodes do not know the same yet"
            )
