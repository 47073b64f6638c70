"""A schema registry over HTTP or HTTPS that answers as Confluent's does; compatibility is not checked."""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import UUID

from tallymark.formats import registry as client
from tests.support.tls import Files

if TYPE_CHECKING:
    from typing import Self

JSON = "application/vnd.schemaregistry.v1+json"


class Reply(NamedTuple):
    """An answer that is given instead of the registry's own."""

    status: int
    content: bytes = b""
    kind: str = JSON
    headers: Mapping[str, str] = {}

    @classmethod
    def error(cls, status: int, code: int, message: str) -> Reply:
        return cls(status, json.dumps({"error_code": code, "message": message}).encode())


@dataclass
class Version:
    id: int
    deleted: bool = False


@dataclass
class Behaviour:
    """What the registry does other than answer; tests change it."""

    login: tuple[str, str] | None = None
    token: str | None = None
    replies: list[Reply] = field(default_factory=list)
    """The answers to the next requests."""
    always: Reply | None = None
    seconds: float = 0.0
    """How long it waits before it answers."""
    cut: bool = False
    """Whether answers end in the middle."""
    garbage: bytes = b""
    """What is sent instead of HTTP."""
    guids: bool = True
    """Whether it knows GUIDs, as registries since version 8."""
    places: bool = True
    """Whether it knows the subjects and versions of an id, as registries since version 5.5."""
    only_ids: bool = False
    """Whether it answers registrations with the id alone, as registries before version 8."""


class SchemaRegistry:
    """The registry, in a thread of this process: ``with SchemaRegistry() as registry: ...``."""

    def __init__(self, files: Files | None = None, *, wants_certificate: bool = False, path: str = "") -> None:
        # An earlier registry of this process may have had the same port, and its answers are kept for ever.
        client._forks.registries.clear()
        self.behaviour = Behaviour()
        self.requests: list[str] = []
        self.path = path
        self._bodies: list[dict[str, Any]] = []
        self._subjects: dict[str, list[Version]] = {}
        self._lock = threading.Lock()
        self._server = _server(self, 0)
        self.port: int = self._server.server_address[1]
        self._context = _context(files, wants_certificate) if files else None
        self._encrypt()

    @property
    def url(self) -> str:
        return f"{'https' if self._context else 'http'}://localhost:{self.port}{self.path}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Refuse connections from now on."""
        self._server.shutdown()
        self._server.server_close()

    def restart(self) -> None:
        """Listen again on the same port, with the same schemas."""
        self._server = _server(self, self.port)
        self._encrypt()
        self.__enter__()

    def add(
        self, subject: str, text: str, kind: str = "AVRO", references: Sequence[tuple[str, str, int]] = ()
    ) -> tuple[int, int]:
        """Register a schema; returns its id and its version."""
        listed = [dict(zip(("name", "subject", "version"), reference, strict=True)) for reference in references]
        body: dict[str, Any] = {"schema": text, "schemaType": kind, "references": listed}
        with self._lock:
            return self._register(subject, body)

    def refer(self, id: int, subject: str, version: int) -> None:
        """Let a schema refer to another one, which registries refuse when that leads back to it."""
        self._bodies[id - 1]["references"] = [{"name": subject, "subject": subject, "version": version}]

    def delete(self, subject: str) -> None:
        """Delete a subject; its versions can still be read with ``deleted=true``, and by id."""
        for version in self._subjects[subject]:
            version.deleted = True

    def guid(self, id: int) -> str:
        """The GUID is a hash of the schema."""
        return str(UUID(bytes=hashlib.md5(json.dumps(self._bodies[id - 1], sort_keys=True).encode()).digest()))

    def answer(self, method: str, target: str, body: dict[str, Any]) -> Reply:
        address = urlsplit(target)
        if not address.path.startswith(self.path):
            return Reply(404, b"<html>not found</html>", "text/html")
        words = [unquote(word) for word in address.path.removeprefix(self.path).strip("/").split("/")]
        deleted = parse_qs(address.query).get("deleted") == ["true"]
        with self._lock:
            match (method, words):
                case "GET", ["schemas", "types"]:
                    return _ok(["AVRO", "JSON", "PROTOBUF"])
                case "GET", ["schemas", "ids", id]:
                    return self._schema(int(id))
                case "GET", ["schemas", "ids", id, "versions"] if self.behaviour.places:
                    return _ok(self._places(int(id)))
                case "GET", ["schemas", "guids", guid] if self.behaviour.guids:
                    known = {self.guid(id): id for id in range(1, len(self._bodies) + 1)}
                    return self._schema(known.get(guid, 0))
                case "GET", ["subjects", subject, "versions", version]:
                    return self._version(subject, version, deleted)
                case "POST", ["subjects", subject, "versions"]:
                    return self._registered(subject, body)
                case "POST", ["subjects", subject]:
                    return self._looked_up(subject, body)
        return Reply.error(404, 404, "HTTP 404 Not Found")

    def _schema(self, id: int) -> Reply:
        if not 0 < id <= len(self._bodies):
            return Reply.error(404, 40403, f"Schema {id} not found")
        return _ok(self._described(id))

    def _places(self, id: int) -> list[dict[str, Any]]:
        return [
            {"subject": subject, "version": number}
            for subject, versions in self._subjects.items()
            for number, version in enumerate(versions, 1)
            if version.id == id and not version.deleted
        ]

    def _version(self, subject: str, version: str, deleted: bool) -> Reply:
        versions = self._subjects.get(subject, [])
        listed = [n for n, one in enumerate(versions, 1) if deleted or not one.deleted]
        if not listed:
            return Reply.error(404, 40401, f"Subject '{subject}' not found.")
        number = listed[-1] if version == "latest" else int(version)
        if number not in listed:
            return Reply.error(404, 40402, f"Version {version} not found.")
        return _ok(self._of_subject(subject, number))

    def _registered(self, subject: str, body: dict[str, Any]) -> Reply:
        if body["schema"] == "{}":
            return Reply.error(422, 42201, "Invalid schema {}: No type: {}")
        id, version = self._register(subject, body)
        return _ok({"id": id} if self.behaviour.only_ids else self._of_subject(subject, version))

    def _looked_up(self, subject: str, body: dict[str, Any]) -> Reply:
        versions = [(n, one) for n, one in enumerate(self._subjects.get(subject, []), 1) if not one.deleted]
        if not versions:
            return Reply.error(404, 40401, f"Subject '{subject}' not found.")
        for number, version in versions:
            if self._bodies[version.id - 1] == _stored(body):
                return _ok(self._of_subject(subject, number))
        return Reply.error(404, 40403, "Schema not found")

    def _register(self, subject: str, body: dict[str, Any]) -> tuple[int, int]:
        """A schema has one id, and one version of each subject that it is registered for."""
        stored = _stored(body)
        if stored not in self._bodies:
            self._bodies.append(stored)
        id = self._bodies.index(stored) + 1
        versions = self._subjects.setdefault(subject, [])
        for number, version in enumerate(versions, 1):
            if version.id == id and not version.deleted:
                return id, number
        versions.append(Version(id))
        return id, len(versions)

    def _described(self, id: int) -> dict[str, Any]:
        """As the registry describes a schema: without the type if it is Avro, and without references if it has none."""
        body = self._bodies[id - 1]
        described = {"schema": body["schema"]}
        if body["schemaType"] != "AVRO":
            described["schemaType"] = body["schemaType"]
        if body["references"]:
            described["references"] = body["references"]
        return described | ({"guid": self.guid(id)} if self.behaviour.guids else {})

    def _of_subject(self, subject: str, number: int) -> dict[str, Any]:
        id = self._subjects[subject][number - 1].id
        return {"subject": subject, "version": number, "id": id, **self._described(id)}

    def _encrypt(self) -> None:
        if self._context:
            # Handshakes belong to the threads of the connections.
            self._server.socket = self._context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Failed handshakes and closed connections are the subject of tests."""


def _server(registry: SchemaRegistry, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        # Clients must not rely on the end of the connection.
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _serve(self) -> None:
            behaviour = registry.behaviour
            registry.requests.append(f"{self.command} {self.path}")
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if behaviour.garbage:
                self.wfile.write(behaviour.garbage)
                self.close_connection = True
                return
            time.sleep(behaviour.seconds)
            reply = self._refused()
            if reply is None:
                reply = registry.answer(self.command, self.path, json.loads(content or b"{}"))
            self._send(reply)

        def _refused(self) -> Reply | None:
            behaviour = registry.behaviour
            if behaviour.replies:
                return behaviour.replies.pop(0)
            said = self.headers.get("Authorization")
            login, token = behaviour.login, behaviour.token
            wanted = f"Basic {b64encode(':'.join(login).encode()).decode()}" if login else f"Bearer {token}"
            if (login or token) and said != wanted:
                return Reply.error(401, 401, "Unauthorized")
            return behaviour.always

        def _send(self, reply: Reply) -> None:
            self.send_response(reply.status)
            for name, value in {"Content-Type": reply.kind, **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.content)))
            self.end_headers()
            if registry.behaviour.cut:
                self.wfile.write(reply.content[:-1])
                self.close_connection = True
            else:
                self.wfile.write(reply.content)

    return _Server(("127.0.0.1", port), Handler)


def _context(files: Files, wants_certificate: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files.ca))
    context.load_cert_chain(files.server, files.server_key)
    context.verify_mode = ssl.CERT_REQUIRED if wants_certificate else ssl.CERT_NONE
    return context


def _stored(body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "schema": body["schema"],
        "schemaType": body.get("schemaType") or "AVRO",
        "references": body.get("references") or [],
    }


def _ok(answer: Any) -> Reply:
    return Reply(200, json.dumps(answer).encode())
