"""A real issuer of tokens on loopback: it signs JWTs, and serves its keys and tokens over TLS.

with oauth.Issuer(folder) as issuer:
    settings = issuer.settings("CLIENTS")
    token = issuer.token("alice")
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support import certificates

NAME, AUDIENCE = "https://issuer.test", "brokers"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
SECRET = "client-secret"
LIFETIME_S = 3600


class Issuer:
    """Its clients are all who know SECRET. `fetches` counts how often its keys were fetched.

    `claims` has other claims of the tokens that some clients get. `asked` has the client and the
    form of each request for a token, and `answer` is what they get instead, with its status.
    """

    def __init__(self, folder: Path) -> None:
        self.authority = certificates.Authority(folder, "issuer-authority")
        self.own = self.authority.issue("issuer", ["127.0.0.1", "localhost"])
        self.fetches = 0
        self.claims: dict[str, dict[str, Any]] = {}
        self.lifetime_s = LIFETIME_S
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        self.answer: tuple[int, bytes] | None = None
        self.document: Callable[[], tuple[int, bytes]] = self.jwks
        self._keys: dict[str, rsa.RSAPrivateKey] = {}
        self.rotate("first")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.own.pem_path)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Issuer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"https://localhost:{self._server.server_port}"

    def rotate(self, kid: str) -> None:
        """Sign with a new key from now on; the former ones are not published any more."""
        self._keys = {kid: rsa.generate_private_key(65537, 2048)}
        self.kid = kid

    def jwks(self) -> tuple[int, bytes]:
        """Return the published keys."""
        keys = [
            {
                **jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True),
                **{"kid": kid, "use": "sig"},
            }
            for kid, key in self._keys.items()
        ]
        return 200, json.dumps({"keys": keys}).encode()

    def token(self, user: str, **claims: Any) -> str:
        """Return a token; a claim of None is left out."""
        now = int(time.time())
        given: dict[str, Any] = {
            "iss": NAME,
            "aud": AUDIENCE,
            "sub": user,
            "iat": now,
            "exp": now + self.lifetime_s,
            "scope": "kafka",
            **claims,
        }
        return jwt.encode(
            {name: value for name, value in given.items() if value is not None},
            self._keys[self.kid],
            algorithm="RS256",
            headers={"kid": self.kid},
        )

    def client_settings(self, user: str, secret: str = SECRET) -> dict[str, str]:
        """Return the settings of a client that gets its tokens here; the JAAS form of Kafka 3.1."""
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"{self.url}/token",
            "sasl.jaas.config": (
                f'{MODULE} required clientId="{user}" clientSecret="{secret}" '
                f'ssl.truststore.type="PEM" ssl.truststore.location="{self.own.authority_path}";'
            ),
        }

    def settings(self, listener: str) -> dict[str, str]:
        """Return the settings of a listener that takes its tokens."""
        prefix = f"listener.name.{listener.lower()}"
        url = f"{self.url}/jwks"
        return {
            f"{prefix}.sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{prefix}.oauthbearer.sasl.jaas.config": (
                f'{MODULE} required ssl.truststore.type="PEM" '
                f'ssl.truststore.location="{self.own.authority_path}";'
            ),
            f"{prefix}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": url,
            f"{prefix}.sasl.oauthbearer.expected.issuer": NAME,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "org.apache.kafka.sasl.oauthbearer.allowed.urls": url,
        }


def message(token: str, extras: str = "", acts_for: str = "") -> bytes:
    """Return what a client sends first."""
    who = f"a={acts_for}" if acts_for else ""
    return f"n,{who},\x01auth=Bearer {token}\x01{extras}\x01".encode()


def _handler(issuer: Issuer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.fetches += 1
            self._answer(*issuer.document())

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            kind, _, login = self.headers.get("Authorization", "").partition(" ")
            user, _, secret = base64.b64decode(login).decode().partition(":")
            issuer.asked.append((user, form))
            if issuer.answer is not None:
                self._answer(*issuer.answer)
                return
            if kind != "Basic" or secret != SECRET or form["grant_type"] != ["client_credentials"]:
                self._answer(401, b'{"error":"invalid_client"}')
                return
            answer = {"access_token": issuer.token(user, **issuer.claims.get(user, {}))}
            more = {"token_type": "Bearer", "expires_in": issuer.lifetime_s}
            self._answer(200, json.dumps({**answer, **more}).encode())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    return Handler
