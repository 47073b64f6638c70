"""The schemas of a schema registry, by Confluent's REST API: asked for once, and shared by all threads of a process."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from tallymark.core.retry import PATIENCE, retrying
from tallymark.errors import BadInput, TallymarkError, Unreachable
from tallymark.formats.registry_http import Missing, RegistryClient, WrongAddress
from tallymark.formats.registry_server import Registry

log = logging.getLogger(__name__)

Kind = Literal["AVRO", "PROTOBUF", "JSON"]
KINDS: Mapping[str, Kind] = {"AVRO": "AVRO", "PROTOBUF": "PROTOBUF", "JSON": "JSON"}
AGAIN_SECONDS = 30.0
"""How long it takes until the registry is asked again for a schema that it did not have."""
LOCAL = ("localhost", "127.0.0.1", "::1")
MOST_UNKNOWN = 1_000
"""Maximum number of these that are remembered; more are worth a warning."""
DEEPEST = 100
"""Maximum nesting of references."""
Place = tuple[str, int]
"""A subject and a version."""
T = TypeVar("T")


class Reference(NamedTuple):
    """A schema that another one uses, by the name that it has there."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class Registered:
    """A schema as it is registered.

    ``id`` may be None if the schema was asked for by its GUID, and ``version`` if it was not asked for by its subject.
    ``references`` are the texts of the schemas that it uses, in an order in which each needs only earlier ones, and
    ``imports`` the names and texts of the same.
    """

    id: int | None
    kind: Kind
    text: str
    references: tuple[str, ...] = ()
    version: int | None = None
    guid: str | None = None
    imports: tuple[tuple[str, str], ...] = ()


class Schemas:
    """The schemas of one registry. A registry that does not answer is waited for.

    Threads may share it. Errors say in one sentence what the registry refuses; ``Unreachable`` is raised when
    ``patience`` ends, and after ``stop`` is set.
    """

    def __init__(self, known: _Known, stop: threading.Event | None, patience: float) -> None:
        self._known = known
        self._ask = known.client.ask
        self._stop = stop
        self._patience = patience

    @classmethod
    def of(cls, registry: Registry, stop: threading.Event | None = None, patience: float = PATIENCE) -> Schemas:
        """Return the schemas of a registry. What it answered before is known to the whole process."""
        with _forks.lock:
            known = _forks.registries.get(registry)
            if known is None:
                known = _forks.registries[registry] = _Known(registry)
        return cls(known, stop, patience)

    @property
    def name(self) -> str:
        """The registry, for messages."""
        return self._known.client.name

    def by_id(self, id: int) -> Registered | None:
        """Return the schema with this id; None if the registry does not have it. Deleted subjects keep their ids."""
        return None if id < 0 else self._lasting(id, partial(self._by_id, id))

    def by_guid(self, guid: str) -> Registered | None:
        """Return the schema with this GUID; None if the registry does not have it, or has no GUIDs."""
        return self._lasting(guid, partial(self._by_guid, guid))

    def places(self, id: int) -> list[Place]:
        """Return the subjects and versions that a schema is registered as; nothing if the registry does not say.

        It is asked only once.
        """
        try:
            answer = self._ask(f"/schemas/ids/{id}/versions")
        except TallymarkError as error:
            if error.transient:
                raise
            # Older registries do not have this path.
            return []
        listed = [one for one in answer if isinstance(one, dict)] if isinstance(answer, list) else []
        return [(one["subject"], one["version"]) for one in listed if _is_place(one.get("subject"), one.get("version"))]

    def latest(self, subject: str) -> Registered:
        """Return the latest schema of a subject. It is asked for each time."""
        found = self.find(subject)
        if found is None:
            raise BadInput(f"{self.name} has no schema for subject {subject}: register one, or set subject= or schema=")
        return found

    def find(self, subject: str) -> Registered | None:
        """Return the latest schema of a subject; None if it has none."""
        try:
            return self.retried(lambda: self._complete(self._ask(f"{_path(subject)}/versions/latest")))
        except Missing:
            return None

    def register(self, subject: str, kind: Kind, text: str, references: Sequence[Reference] = ()) -> Registered:
        """Register a schema, or return it if the subject has it already."""
        body = _body(kind, text, references)

        def registered() -> Registered:
            answer = self._ask(f"{_path(subject)}/versions", body)
            # Older registries answer only with the id.
            return self._complete({**body, "schema": text, **_object(answer, self.name)})

        return self.retried(registered)

    def lookup(self, subject: str, kind: Kind, text: str, references: Sequence[Reference] = ()) -> Registered | None:
        """Return this schema of a subject with its id; None if the subject does not exist, or does not have it."""
        try:
            return self.retried(lambda: self._complete(self._ask(_path(subject), _body(kind, text, references))))
        except Missing:
            return None

    def _by_id(self, id: int) -> Registered:
        try:
            answer = self._ask(f"/schemas/ids/{id}")
        except WrongAddress as error:
            if not self._known.schemas:
                raise
            # It had the path before: a proxy answers while the registry restarts.
            raise Unreachable(str(error)) from None
        return self._complete({**_object(answer, self.name), "id": id})

    def _by_guid(self, guid: str) -> Registered:
        try:
            answer = self._ask(f"/schemas/guids/{quote(guid, safe='')}")
        except WrongAddress as error:
            # Older registries do not have this path, but they have this one.
            self._ask("/schemas/types")
            raise Missing(str(error)) from None
        return self._complete({**_object(answer, self.name), "guid": guid}, has_id=False)

    def _lasting(self, key: int | str, ask: Callable[[], Registered]) -> Registered | None:
        """Ask for what never changes: once, and again only if the registry did not have it."""
        found = self._known.schemas.get(key)
        if found is not None:
            return found
        if self._stop is not None and self._stop.is_set():
            # Records that name many unknown schemas must not keep a run from ending.
            raise Unreachable(f"{self.name} was not asked for schema {key}, because the run is ending")
        return self.retried(partial(self._known.once, key, ask))

    def retried(self, ask: Callable[[], T]) -> T:
        """Ask, until there is an answer or the patience ends."""
        return retrying(ask, self._stop, self._patience)

    def _complete(self, answer: Any, *, has_id: bool = True) -> Registered:
        """Return the schema of an answer, with the texts of its references."""
        found = _object(answer, self.name)
        kind, text = KINDS.get(found.get("schemaType") or "AVRO"), found.get("schema")
        if kind is None or text is None or (has_id and found.get("id") is None):
            raise BadInput(
                f"{self.name} answered with schema {found.get('id')} of type {found.get('schemaType')}, which has no "
                "text or no id, or a type that is not known here"
            )
        texts: dict[Place, str] = {}
        names: dict[str, Place] = {}
        self._add_references(found, texts, names, ())
        imports = tuple((name, texts[place]) for name, place in names.items())
        references = tuple(texts.values())
        return Registered(found.get("id"), kind, text, references, found.get("version"), found.get("guid"), imports)

    def _add_references(
        self, answer: Mapping[str, Any], texts: dict[Place, str], names: dict[str, Place], path: tuple[Place, ...]
    ) -> None:
        """Add what the schema of an answer uses, after what that uses itself."""
        for reference in answer.get("references") or ():
            place = reference["subject"], reference["version"]
            if place in path or len(path) >= DEEPEST:
                raise BadInput(
                    f"{self.name}: the references of subject {place[0]}, version {place[1]}, lead back to it, or are "
                    "nested too deeply; register schemas without such references"
                )
            names.setdefault(str(reference.get("name")), place)
            if place not in texts:
                used = self._known.version(*place)
                self._add_references(used, texts, names, (*path, place))
                texts[place] = used["schema"]


class _Known:
    """What one registry has answered."""

    def __init__(self, registry: Registry) -> None:
        self.client = RegistryClient(registry)
        self.schemas: dict[int | str, Registered] = {}
        self.lock = threading.Lock()
        self._unknown: dict[int | str, float] = {}
        self._versions: dict[Place, Mapping[str, Any]] = {}
        _warn_if_readable(registry)

    def once(self, key: int | str, ask: Callable[[], Registered]) -> Registered | None:
        """Ask, unless the answer is known. The lock is held, so that several threads ask only once."""
        with self.lock:
            if key in self.schemas:
                return self.schemas[key]
            if time.monotonic() < self._unknown.get(key, 0.0):
                return None
            try:
                found = ask()
            except Missing:
                if len(self._unknown) >= MOST_UNKNOWN:
                    name = self.client.name
                    log.warning("%d schemas are unknown, are values framed? registry=%s id=%s", MOST_UNKNOWN, name, key)
                    self._unknown.clear()
                self._unknown[key] = time.monotonic() + AGAIN_SECONDS
                return None
            log.debug("schema received registry=%s id=%s type=%s", self.client.name, key, found.kind)
            self.schemas[key] = found
            return found

    def version(self, subject: str, version: int) -> Mapping[str, Any]:
        """Return the answer for a version of a subject, which never changes. Deleted versions are still referred to."""
        known = self._versions.get((subject, version))
        if known is None:
            try:
                answer = self.client.ask(f"{_path(subject)}/versions/{version}?deleted=true")
            except Missing:
                raise BadInput(
                    f"{self.client.name} does not have version {version} of subject {subject}, to which another schema "
                    "refers; register it again"
                ) from None
            known = _object(answer, self.client.name)
            if known.get("schema") is None:
                raise BadInput(f"{self.client.name} answered without the text of version {version} of {subject}")
            self._versions[subject, version] = known
        return known


class _Forks:
    """The registries of this process. A forked child has the answers, but not the threads that hold the locks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.registries: dict[Registry, _Known] = {}

    def renew(self) -> None:
        self.lock = threading.Lock()
        for known in self.registries.values():
            known.lock = threading.Lock()


_forks = _Forks()
os.register_at_fork(after_in_child=_forks.renew)


def _path(subject: str) -> str:
    return f"/subjects/{quote(subject, safe='')}"


def _body(kind: Kind, text: str, references: Sequence[Reference]) -> dict[str, Any]:
    # Registries before version 5.5 know no types.
    body: dict[str, Any] = {"schema": text} if kind == "AVRO" else {"schema": text, "schemaType": kind}
    if references:
        body["references"] = [reference._asdict() for reference in references]
    return body


def _object(answer: Any, name: str) -> Mapping[str, Any]:
    """Check the types of the parts of an answer that are used."""
    if isinstance(answer, dict) and all(
        isinstance(answer[part], kind) for part, kind in _PARTS.items() if answer.get(part) is not None
    ):
        references = answer.get("references") or ()
        if all(isinstance(one, dict) and _is_place(one.get("subject"), one.get("version")) for one in references):
            return answer
    raise BadInput(f"{name} answered with JSON that is not a schema: correct the address")


def _is_place(subject: Any, version: Any) -> bool:
    return isinstance(subject, str) and isinstance(version, int)


_PARTS = {"id": int, "version": int, "schema": str, "schemaType": str, "guid": str, "references": list}


def _warn_if_readable(registry: Registry) -> None:
    login = registry.username or registry.token or registry.token_file
    exposed = [
        address
        for address in map(urlsplit, registry.addresses)
        if address.scheme == "http" and address.hostname not in LOCAL
    ]
    if login and exposed:
        log.warning("the login is sent without encryption, write https:// registry=%s", registry.url)
