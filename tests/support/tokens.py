"""A token endpoint like that of an identity provider: it issues signed tokens to clients with the secret."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tallymark.local.sandbox import SecureKafka

CLIENT, SECRET = "admin", "canary-of-the-client"
ISSUER, AUDIENCE = "tallymark-tests", "kafka"
PACKAGE = "org.apache.kafka.common.security.oauthbearer"


class Issuer:
    """Serves tokens on loopback until it is closed, and writes the key that verifies them to a file."""

    def __init__(self, directory: Path) -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        self.jwks = directory / "jwks.json"
        numbers = self._key.public_key().public_numbers()
        public = {
            "kty": "RSA",
            "kid": "one",
            "alg": "RS256",
            "use": "sig",
            "n": _number(numbers.n),
            "e": _number(65537),
        }
        self.jwks.write_text(json.dumps({"keys": [public]}))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def token(self) -> str:
        now = int(time.time())
        claims = {"sub": CLIENT, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 600, "scope": "kafka"}
        parts = [_base64(json.dumps(part).encode()) for part in ({"alg": "RS256", "typ": "JWT", "kid": "one"}, claims)]
        signature = self._key.sign(".".join(parts).encode(), padding.PKCS1v15(), hashes.SHA256())
        return ".".join([*parts, _base64(signature)])

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self
        right = "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                known = self.headers.get("Authorization") == right
                answer = {"access_token": issuer.token(), "token_type": "Bearer", "expires_in": 600}
                body = json.dumps(answer if known else {"error": "invalid_client"}).encode()
                self.send_response(200 if known else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


class TokenKafka(SecureKafka):
    """A secured broker that also accepts the tokens of an issuer."""

    issuer: Issuer

    def environment(self) -> dict[str, str]:
        # Kafka reads keys only from URLs that its JVM allows.
        return {"JAVA_TOOL_OPTIONS": f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._keys}"}

    @property
    def _keys(self) -> str:
        return self.issuer.jwks.as_uri()

    def prepare(self) -> None:
        prefix = "listener.name.sasl_ssl.oauthbearer"
        self.settings |= {
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN,OAUTHBEARER",
            f"{prefix}.sasl.jaas.config": f"{PACKAGE}.OAuthBearerLoginModule required;",
            f"{prefix}.sasl.server.callback.handler.class": f"{PACKAGE}.OAuthBearerValidatorCallbackHandler",
            f"{prefix}.sasl.oauthbearer.jwks.endpoint.url": self._keys,
            f"{prefix}.sasl.oauthbearer.expected.audience": AUDIENCE,
            f"{prefix}.sasl.oauthbearer.expected.issuer": ISSUER,
        }
        super().prepare()


def _number(value: int) -> str:
    return _base64(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
