"""The pages that the kubelet and Prometheus ask for."""

import socket
import urllib.request

import pytest

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
