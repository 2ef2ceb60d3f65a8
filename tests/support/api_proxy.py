"""A proxy before the API server that answers lists with false content, to test the operator.

    with ApiProxy(server, folder) as proxy:
        Operator(server, ..., through=proxy.kubeconfig)
        proxy.lie({"topics": ApiProxy.EMPTY})

While it lies, it answers lists of the project's resources with the given items, and watches of them
deliver no events. When a lie begins or ends, open watches end with 410 (resource version too old),
so that clients list again. It forwards all other calls unchanged, also those for one resource.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.support.apiserver import ApiServer

KINDS = ("kafkaclusters", "users", "topics", "consumergroups", "reassignments")
_COLLECTION = re.compile(r"/apis/odradek\.io/[^/]+/(?:namespaces/[^/]+/)?(?P<kind>[^/]+)$")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_NOT_FORWARDED = frozenset({"host", "connection", "accept-encoding", "transfer-encoding"})
_TOO_OLD = {
    "type": "ERROR",
    "object": {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "too old resource version",
        "reason": "Expired",
        "code": 410,
    },
}


class ApiProxy:
    """A context manager with a server on its own port; `kubeconfig` points to it."""

    EMPTY: list[dict[str, Any]] = []

    def __init__(self, server: ApiServer, folder: Path) -> None:
        document = yaml.safe_load(server.kubeconfig.read_text())
        (cluster,) = document["clusters"]
        authority = cluster["cluster"].pop("certificate-authority")
        self._tls = ssl.create_default_context(cafile=authority)
        self._upstream = urlsplit(server.url)
        self._lock = threading.Lock()
        self._lies: dict[str, list[dict[str, Any]]] = {}
        self._watches: dict[str, set[socket.socket]] = {kind: set() for kind in KINDS}
        # The number of false lists per kind, since the lie began.
        self.lied: Counter[str] = Counter()
        self._changed = threading.Condition(self._lock)
        methods = {f"do_{one}": _Handler.answer for one in _METHODS}
        handler = type("Handler", (_Handler,), {"owner": self, **methods})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        cluster["cluster"]["server"] = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.kubeconfig = folder / "kubeconfig-through-proxy"
        self.kubeconfig.write_text(yaml.safe_dump(document))

    def lie(self, lists: Mapping[str, list[dict[str, Any]]]) -> None:
        """Answer lists of these kinds with these items, and forward all others."""
        with self._lock:
            affected = self._lies.keys() | lists.keys()
            self._lies = dict(lists)
            self.lied.clear()
            self._changed.notify_all()
            for kind in affected:
                for one in self._watches[kind]:
                    _hang_up(one)

    def lie_about(self, kind: str) -> list[dict[str, Any]] | None:
        """Return the false items of a kind's list; None if lists are forwarded."""
        with self._lock:
            return self._lies.get(kind)

    def note_lie(self, kind: str) -> None:
        with self._lock:
            self.lied[kind] += 1

    def await_truth(self, kind: str) -> None:
        """Wait until the current lie about a kind ends."""
        with self._changed:
            mine = self._lies.get(kind)
            self._changed.wait_for(lambda: self._lies.get(kind) is not mine)

    def connect(self) -> http.client.HTTPSConnection:
        host, port = self._upstream.hostname, self._upstream.port
        return http.client.HTTPSConnection(str(host), port, context=self._tls, timeout=300)

    @contextlib.contextmanager
    def watching(self, kind: str, connection: http.client.HTTPSConnection) -> Iterator[None]:
        """Let `lie` close the connection meanwhile."""
        mine = connection.sock
        with self._lock:
            self._watches[kind].add(mine)
            if kind in self._lies:
                # The lie began after the request.
                _hang_up(mine)
        try:
            yield
        finally:
            with self._lock:
                self._watches[kind].discard(mine)

    def __enter__(self) -> ApiProxy:
        threading.Thread(target=self._server.serve_forever, name="proxy", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.lie({})
        self._server.shutdown()
        self._server.server_close()


def _hang_up(connection: socket.socket) -> None:
    """Shut the socket down so that its reader sees the end; closing TLS would need the reader."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    owner: ApiProxy
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urlsplit(self.path)
        found = _COLLECTION.match(address.path)
        kind = found["kind"] if found and found["kind"] in KINDS else None
        watch = parse_qs(address.query).get("watch") == ["true"]
        lie = self.owner.lie_about(kind) if kind else None
        try:
            if kind and watch:
                self._watch(kind, lie is not None)
            elif self.command == "GET" and kind and lie is not None:
                self.owner.note_lie(kind)
                self._list(kind, lie)
            else:
                self._forward(body, watch)
        except OSError:
            # One side closed its connection: close the other.
            self.close_connection = True

    def _ask(self, connection: http.client.HTTPSConnection, body: bytes) -> Any:
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in _NOT_FORWARDED
        }
        connection.request(self.command, self.path, body or None, headers)
        return connection.getresponse()

    def _list(self, kind: str, items: list[dict[str, Any]]) -> None:
        """Answer with these items in the API server's own list."""
        with contextlib.closing(self.owner.connect()) as connection:
            found = json.loads(self._ask(connection, b"").read())
        # Without the token of a next page.
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        told = {**found, "metadata": version, "items": items}
        self._send(200, "application/json", json.dumps(told).encode())

    def _forward(self, body: bytes, watch: bool) -> None:
        with contextlib.closing(self.owner.connect()) as connection:
            answer = self._ask(connection, body)
            kind = answer.headers.get("Content-Type", "application/json")
            if not watch:
                self._send(answer.status, kind, answer.read())
                return
            self._begin_stream(answer.status, kind)
            self._copy(answer)

    def _watch(self, kind: str, silent: bool) -> None:
        with contextlib.closing(self.owner.connect()) as connection:
            answer = self._ask(connection, b"")
            self._begin_stream(answer.status, "application/json")
            if silent:
                self.owner.await_truth(kind)
            else:
                with self.owner.watching(kind, connection):
                    self._copy(answer)
        self._chunk(json.dumps(_TOO_OLD).encode() + b"\n")
        self._chunk(b"")

    def _copy(self, answer: Any) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            while line := answer.readline():
                self._chunk(line)

    def _begin_stream(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: an operator makes many calls."""
