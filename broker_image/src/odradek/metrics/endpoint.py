"""The HTTP server of a broker: its metrics for Prometheus, its probes for the kubelet."""

from __future__ import annotations

from collections.abc import Callable
from wsgiref.types import WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from odradek.health import Health
from odradek.http_server import HttpAnswer, HttpRequest, HttpServer, plain


def serve(metrics: Collector, port: int, health: Health, host: str = "") -> Callable[[], None]:
    """Serve Prometheus and probes on a port, in a thread; return a function that stops it.

    An empty `host` is every address. Raises OSError.
    """
    registry = CollectorRegistry()
    registry.register(metrics)
    app = make_wsgi_app(registry)

    def probe(request: HttpRequest) -> HttpAnswer | None:
        answer = health.answer(request.path)
        return None if answer is None else plain(*answer)

    return HttpServer(port, probe, lambda request: _shown(app, request), host).stop


def _shown(app: WSGIApplication, request: HttpRequest) -> HttpAnswer:
    """Return what Prometheus's own application answers."""
    shown: list[tuple[str, list[tuple[str, str]]]] = []

    def start(status: str, headers: list[tuple[str, str]], *_: object) -> Callable[[bytes], object]:
        shown.append((status, headers))
        return lambda _: None

    environ: WSGIEnvironment = {
        "REQUEST_METHOD": request.method,
        "PATH_INFO": request.path,
        "QUERY_STRING": request.query,
        "HTTP_ACCEPT": request.headers.get("accept"),
        "HTTP_ACCEPT_ENCODING": request.headers.get("accept-encoding"),
    }
    body = b"".join(app(environ, start))
    status, headers = shown[-1]
    return HttpAnswer(status, dict(headers), body)
