"""The pages that the kubelet and Prometheus ask for."""

import contextlib
import socket
import threading
import urllib.error
import urllib.request

import pytest

from odradek import http_server
from odradek_operator import health


def test_pages_are_served_without_asking_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(name: str = "") -> str:
        raise AssertionError(f"asked for the full name of {name!r}")

    monkeypatch.setattr(socket, "getfqdn", never)
    pages = health.Pages(0, {"/healthz": lambda: health.say(True, "alive")})
    try:
        address = f"http://127.0.0.1:{pages.port}/healthz"
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert (answer.status, answer.read()) == (200, b"alive\n")
    finally:
        pages.close()


def test_peers_that_ask_for_nothing_take_no_threads_and_hold_up_no_probe() -> None:
    pages = health.Pages(0, {"/readyz": lambda: health.say(False, "waiting")})
    threads = threading.active_count()
    try:
        with contextlib.ExitStack() as peers:
            for _ in range(200):
                peers.enter_context(socket.create_connection(("127.0.0.1", pages.port), 60))
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://127.0.0.1:{pages.port}/readyz?a=b", timeout=60)
            with refused.value as answer:
                assert (answer.code, answer.read()) == (503, b"waiting\n")
            assert threading.active_count() <= threads + http_server.POOL_THREADS
    finally:
        pages.close()
