"""The addresses of brokers that a client is given, as commands and the console take them."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from odradek.properties import is_port

_HOST_NAME: Final = re.compile(rb"[A-Za-z0-9._-]+")


def parse(text: str) -> list[tuple[str, int]]:
    """Read `host:port,...`, with IPv6 addresses in brackets.

    Raises ValueError with one line that says what is wrong.
    """
    found = [_address(part.strip()) for part in text.split(",") if part.strip()]
    if not found:
        raise ValueError("no broker is given")
    return found


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if _is_ipv6(text) or _is_ipv6(host):
        raise _refusal(text, "an IPv6 address needs brackets, as in [::1]:9092")
    if not colon or not port or text.endswith("]"):
        raise _refusal(text, "there is no port")
    if not is_port(port) or not int(port):
        raise _refusal(text, "a port is a number from 1 to 65535")
    if not host:
        raise _refusal(text, "there is no host")
    if host.startswith("[") and host.endswith("]") and _is_ipv6(host[1:-1]):
        return host[1:-1], int(port)
    if not _is_host_name(host):
        raise _refusal(text, f"{host!r} is no host name and no address")
    return host, int(port)


def _refusal(text: str, reason: str) -> ValueError:
    return ValueError(f"{text!r} is not HOST:PORT: {reason}")


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _is_host_name(text: str) -> bool:
    """Return whether a resolver can be asked for it."""
    try:
        return _HOST_NAME.fullmatch(text.encode("idna")) is not None
    except UnicodeError:
        return False
