"""Two small HTTP servers: /healthz and /readyz for the kubelet, /metrics for Prometheus.

They run before the Lease is held, so that an operator that waits for it is alive but not ready.
kopf's own liveness server starts only after start-up is over, which is why it is not used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from odradek_operator.shared import metrics

# A page: its status code, content type and body.
Page = tuple[int, str, bytes]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without looking up this host's full name, which takes seconds where no DNS server
        answers.
        """
        TCPServer.server_bind(self)


class Pages:
    """An HTTP server of fixed paths on one port; port 0 picks a free one, see `port`."""

    def __init__(self, port: int, pages: dict[str, Callable[[], Page]]) -> None:
        class _PageHandler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                make = pages.get(self.path.partition("?")[0])
                code, kind, body = make() if make else (404, "text/plain", b"not found\n")
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: probes come every few seconds."""

        self._server = _Server(("", port), _PageHandler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name=f"http-{self.port}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def say(healthy: bool, text: str) -> Page:
    """Return 200 or 503 with a line of text."""
    return (200 if healthy else 503), "text/plain", f"{text}\n".encode()


def show_metrics() -> Page:
    """Return all series."""
    return 200, CONTENT_TYPE_LATEST, generate_latest(metrics.REGISTRY)
