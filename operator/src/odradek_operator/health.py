"""Two small HTTP servers: /healthz and /readyz for the kubelet, /metrics for Prometheus.

They run before the Lease is held, so that an operator that waits for it is alive but not ready.
kopf's own liveness server starts only after start-up is over, which is why it is not used.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from odradek.http_server import HttpAnswer, HttpRequest, HttpServer, plain
from odradek_operator.shared import metrics

Page = Callable[[], HttpAnswer]


class Pages:
    """An HTTP server of fixed paths on one port; port 0 picks a free one, see `port`."""

    def __init__(self, port: int, pages: dict[str, Page]) -> None:
        self._pages = pages
        # A page may wait for a lock.
        self._server = HttpServer(port, lambda _: None, self._answer)
        self.port = self._server.port

    def _answer(self, request: HttpRequest) -> HttpAnswer:
        make = self._pages.get(request.path)
        return make() if make else plain(HTTPStatus.NOT_FOUND, "not found")

    def close(self) -> None:
        """Stop serving."""
        self._server.stop()


def say(healthy: bool, text: str) -> HttpAnswer:
    """Return 200 or 503 with a line of text."""
    return plain(HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE, text)


def show_metrics() -> HttpAnswer:
    """Return all series."""
    return HttpAnswer(
        "200 OK", {"Content-Type": CONTENT_TYPE_LATEST}, generate_latest(metrics.REGISTRY)
    )
