"""Composition root of the console: its parts, its addresses, its start and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http import HTTPStatus

import click
from aiohttp import web

from odradek.http_server import HttpAnswer, HttpRequest, HttpServer, plain
from odradek.tools.client import format_address
from odradek.tools.errors import ToolError
from odradek_console import groups, guard, job_history, pages, record_pages, resource_pages
from odradek_console.avro import SchemaRegistry
from odradek_console.cluster import ClusterReader
from odradek_console.connections import CONNECTIONS, Connections, ConsoleListener
from odradek_console.groups import GroupReader, LagHistory
from odradek_console.job_history import JobHistory
from odradek_console.rendering import CONSOLE, FOLDER, Console
from odradek_console.resources import ResourceReader
from odradek_console.sessions import Sessions
from odradek_console.settings import ConsoleSettings

_MOST_FORM_BYTES = 16 * 1024
_END_S = 3.0
# Less than the time that the kubelet waits for a probe.
_ALIVE_S = 3.0

log = logging.getLogger(__name__)


def make(settings: ConsoleSettings) -> web.Application:
    """Return the application; it connects to nothing before it is asked for a page."""
    app = web.Application(middlewares=guard.middlewares(), client_max_size=_MOST_FORM_BYTES)
    cluster = ClusterReader(settings.brokers, settings.access)
    app[CONSOLE] = Console(
        settings,
        Sessions(),
        cluster,
        GroupReader(cluster),
        LagHistory(),
        _resources(settings),
        SchemaRegistry(settings.schema_registry),
        JobHistory(),
    )
    app[CONNECTIONS] = Connections()
    app.on_response_prepare.append(guard.add_headers)
    app.cleanup_ctx.append(_running)
    desk = guard.LoginDesk()
    app.add_routes(
        [
            web.get("/", pages.overview),
            web.get(guard.HEALTH, pages.health),
            web.get(guard.LOGIN, desk.page),
            web.post(guard.LOGIN, desk.login),
            web.post("/logout", desk.logout),
            web.get("/brokers/{broker}", pages.broker),
            web.get("/topics", pages.topics),
            web.get("/topics/{topic}", pages.topic),
            web.get("/groups", pages.groups),
            web.get("/group", pages.group),
            web.get("/jobs", resource_pages.jobs),
            web.get("/jobs/{namespace}/{name}", resource_pages.job),
            web.get("/reassignments", resource_pages.reassignments),
            web.get("/reassignments/{namespace}/{name}", resource_pages.reassignment),
            web.post("/reassignments/{namespace}/{name}/approve", resource_pages.approve),
            web.post("/reassignments/{namespace}/{name}/cancel", resource_pages.cancel),
            web.static("/static", FOLDER / "static"),
        ]
    )
    if settings.records:
        app.add_routes(
            [
                web.get("/topics/{topic}/records", record_pages.page),
                web.get("/topics/{topic}/records/{partition}/{offset}", record_pages.one_record),
                web.get(
                    "/topics/{topic}/records/{partition}/{offset}/value", record_pages.download
                ),
                web.get("/topics/{topic}/tail", record_pages.tail),
                web.get("/topics/{topic}/tail/events", record_pages.tail_events),
            ]
        )
    return app


def _resources(settings: ConsoleSettings) -> ResourceReader | None:
    if not settings.kubernetes:
        return None
    # A second of imports, which only Kubernetes needs.
    from odradek_operator.shared import kube

    try:
        return ResourceReader(kube.connect(), settings.namespace, settings.cluster)
    # The library raises whatever a file that is no kubeconfig makes it stumble over.
    except Exception as error:
        why = " ".join(str(error).split())
        raise ToolError(f"--kubernetes: cannot use the kubeconfig: {why}") from error


async def _running(app: web.Application) -> AsyncIterator[None]:
    console = app[CONSOLE]
    samplers = [asyncio.create_task(groups.sample(console.groups, console.history))]
    if console.resources is not None:
        work = job_history.sample(console.resources, console.jobs)
        samplers.append(asyncio.create_task(work))
    yield
    for one in samplers:
        one.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await one
    await console.registry.close()
    await console.groups.close()
    await console.cluster.close()
    if console.resources is not None:
        await console.resources.close()


async def serve(settings: ConsoleSettings) -> None:
    """Serve until SIGINT or SIGTERM. Raises ToolError if the address cannot be taken."""
    runner = web.AppRunner(
        make(settings), access_log=None, handler_cancellation=True, shutdown_timeout=_END_S
    )
    await runner.setup()
    assert runner.server is not None, "it is set up"
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(runner.cleanup)
        listener = ConsoleListener(runner.server, runner.app[CONNECTIONS], settings.tls)
        stack.push_async_callback(listener.close)
        with _listening(settings.host, settings.port):
            await listener.listen(settings.host, settings.port)
        if settings.health_port is not None:
            with _listening("", settings.health_port):
                probed = HttpServer(settings.health_port, lambda _: None, answer_probes())
            stack.callback(probed.stop)
        click.echo(f"Console on {_url(settings, listener)}", err=True)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        await ended.wait()


def answer_probes() -> Callable[[HttpRequest], HttpAnswer]:
    """Return what answers probes, in a thread: whether the event loop, which makes pages, turns."""
    loop = asyncio.get_running_loop()

    def answer(request: HttpRequest) -> HttpAnswer:
        if request.path != guard.HEALTH:
            return plain(HTTPStatus.NOT_FOUND, "not found")
        turns = threading.Event()
        loop.call_soon_threadsafe(turns.set)
        if not turns.wait(_ALIVE_S):
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "the event loop is stuck")
        return plain(HTTPStatus.OK, "ok")

    return answer


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeError) as error:
        where = format_address(host, port)
        reason = getattr(error, "strerror", None) or error
        raise ToolError(f"cannot listen on {where}: {reason}", 1) from None


def _url(settings: ConsoleSettings, listener: ConsoleListener) -> str:
    # On every address there are two, in no order; with port 0 each has another.
    host, port = min(listener.addresses, key=lambda one: ":" in one[0])[:2]
    scheme = "http" if settings.tls is None else "https"
    return f"{scheme}://{format_address(host, port)}/"
