"""Probes and metrics over HTTP, among peers who send nothing, nonsense, or do not read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from odradek import http_server
from odradek.health import Health
from odradek.http_server import MOST_CONNECTIONS, HttpAnswer, HttpRequest, HttpServer, plain
from odradek.metrics import endpoint
from odradek.metrics.broker_metrics import BrokerMetrics
from tests.support.memory_use import resident_bytes
from tests.support.ports import free_port
from tests.support.silent_peers import silent_peers

SILENT = 1000
MEBIBYTE = 1024 * 1024


def ask(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 60) as peer:
        peer.sendall(request)
        answer = b""
        while data := peer.recv(65536):
            answer += data
        return answer


def get(port: int, path: str) -> bytes:
    return ask(port, f"GET {path} HTTP/1.1\r\nHost: broker\r\n\r\n".encode())


@pytest.fixture
def broker_port() -> Iterator[int]:
    """The port of a broker's metrics and probes."""
    port = free_port()
    stop = endpoint.serve(BrokerMetrics(), port, Health(lambda: ""))
    try:
        yield port
    finally:
        stop()


@pytest.mark.parametrize("start", [b"", b"GET /metrics HTTP/1.1\r\nHost:"], ids=["nothing", "half"])
def test_silent_peers_hold_up_no_probe_and_take_no_threads(broker_port: int, start: bytes) -> None:
    threads, memory = threading.active_count(), resident_bytes(os.getpid())
    descriptors = len(os.listdir("/proc/self/fd"))
    with silent_peers(broker_port, SILENT, start) as peers:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert get(broker_port, path).startswith(b"HTTP/1.1 200 OK\r\n")
        assert threading.active_count() <= threads + http_server.POOL_THREADS
        ours = len(os.listdir("/proc/self/fd")) - descriptors - len(peers)
        assert ours <= MOST_CONNECTIONS
        assert resident_bytes(os.getpid()) - memory < 32 * MEBIBYTE


def test_peer_that_neither_asks_nor_leaves_is_closed_after_a_time(
    broker_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "LONGEST_EXCHANGE_S", 0.1)
    with silent_peers(broker_port, 1) as [peer]:
        peer.settimeout(60)
        with contextlib.suppress(ConnectionError):
            assert peer.recv(1) == b""


def test_slow_answers_do_not_hold_up_quick_ones_and_are_given_by_few_threads() -> None:
    finish, all_busy, last_read = threading.Event(), threading.Event(), threading.Event()
    at_once, most, lock = 0, 0, threading.Lock()

    def slow(request: HttpRequest) -> HttpAnswer:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
            if at_once == http_server.POOL_THREADS:
                all_busy.set()
        finish.wait(60)
        with lock:
            at_once -= 1
        return plain(HTTPStatus.OK, "slow")

    def quick(request: HttpRequest) -> HttpAnswer | None:
        if request.path == "/last":
            last_read.set()
        return plain(HTTPStatus.OK, "quick") if request.path == "/quick" else None

    port = free_port()
    server = HttpServer(port, quick, slow)
    try:
        with (
            silent_peers(port, 2 * MOST_CONNECTIONS, b"GET /slow HTTP/1.1\r\n\r\n"),
            silent_peers(port, 1, b"GET /last HTTP/1.1\r\n\r\n") as [last],
        ):
            assert all_busy.wait(60)
            # One whose request is not read yet has to make room for the next one.
            assert last_read.wait(60)
            assert get(port, "/quick").endswith(b"quick\n")
            finish.set()
            answer = b""
            while data := last.recv(4096):
                answer += data
            assert answer.endswith(b"slow\n")
    finally:
        finish.set()
        server.stop()
    assert most == http_server.POOL_THREADS


def test_answers_that_nobody_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()

    class Told(HttpServer):
        async def _exchange(
            self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            try:
                await super()._exchange(reader, writer)
            finally:
                given_up.set()

    monkeypatch.setattr(http_server, "LONGEST_EXCHANGE_S", 0.5)
    body = bytes(16 * MEBIBYTE)
    port = free_port()
    server = Told(port, lambda _: None, lambda _: HttpAnswer("200 OK", {}, body))
    try:
        with silent_peers(port, 1, b"GET / HTTP/1.1\r\n\r\n") as [peer]:
            peer.settimeout(60)
            read = len(peer.recv(1))
            assert given_up.wait(60)
            assert not server.connection_count
            with contextlib.suppress(ConnectionError):
                while data := peer.recv(65536):
                    read += len(data)
            assert read < len(body)
    finally:
        server.stop()


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(b"\r\n\r\n", id="empty"),
        pytest.param(b"GET\r\n\r\n", id="no path"),
        pytest.param(b"GET / SPDY/3\r\n\r\n", id="another protocol"),
        pytest.param(b"GET http://[ HTTP/1.1\r\n\r\n", id="no url"),
        pytest.param(b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", id="too long"),
        pytest.param(b"\x16\x03\x01\x02\x00\r\n\r\n", id="tls"),
    ],
)
def test_nonsense_is_refused(broker_port: int, nonsense: bytes) -> None:
    answer = b""
    with contextlib.suppress(ConnectionError):  # what was not read resets the connection
        answer = ask(broker_port, nonsense)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert get(broker_port, "/healthz").startswith(b"HTTP/1.1 200 ")


def test_other_methods(broker_port: int) -> None:
    head = ask(broker_port, b"HEAD /healthz HTTP/1.0\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert head.endswith(b"\r\n\r\n")
    assert b"Content-Length: 3\r\n" in head
    refused = ask(broker_port, b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 405 ")


def test_metrics_are_packed_and_chosen_as_asked(broker_port: int) -> None:
    packed = ask(broker_port, b"GET /metrics HTTP/1.1\r\nAccept-Encoding: gzip\r\n\r\n")
    assert b"Content-Encoding: gzip\r\n" in packed
    chosen = ask(
        broker_port, b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text\r\n\r\n"
    )
    assert b"Content-Type: application/openmetrics-text;" in chosen
    assert chosen.endswith(b"# EOF\n")


def test_failure_of_an_answer_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: HttpRequest) -> HttpAnswer:
        raise KeyError("bug")

    port = free_port()
    server = HttpServer(port, lambda _: None, fail)
    try:
        for _ in range(2):
            assert get(port, "/metrics").startswith(b"HTTP/1.1 500 ")
    finally:
        server.stop()
    assert "failed to answer GET /metrics" in caplog.text


def test_port_in_use_is_an_error_and_a_stopped_one_is_free() -> None:
    port = free_port()
    server = HttpServer(port, lambda _: None, lambda _: plain(HTTPStatus.OK, "first"))
    with pytest.raises(OSError, match="in use"):
        HttpServer(port, lambda _: None, lambda _: plain(HTTPStatus.OK, "second"))
    with silent_peers(port, 3):
        server.stop()
    server = HttpServer(port, lambda _: None, lambda _: plain(HTTPStatus.OK, "third"))
    try:
        assert get(port, "/").endswith(b"third\n")
    finally:
        server.stop()
