"""Asks the servers of a start whether they serve, and what they know. All answers may be late."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any, Final

from odradek_local.ports import HOST

_ANSWER_S: Final = 2.0


def zookeeper_serves(port: int) -> bool:
    """Return whether ZooKeeper takes requests."""
    try:
        with socket.create_connection((HOST, port), _ANSWER_S) as connection:
            connection.sendall(b"srvr")
            return b"Mode:" in connection.recv(4096)
    except OSError:
        return False


def broker_is_ready(metrics_port: int) -> bool:
    """Return whether a broker serves, and is registered."""
    return _get(metrics_port, "/readyz") is not None


def console_serves(port: int) -> bool:
    """Return whether the console makes a page of what the brokers tell."""
    return _get(port, "/") is not None


def job_status(port: int) -> dict[str, Any]:
    """Return what a driver says of itself; empty while it says nothing."""
    try:
        document = json.loads(_get(port, "/status") or b"{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _get(port: int, path: str) -> bytes | None:
    connection = http.client.HTTPConnection(HOST, port, timeout=_ANSWER_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return body if answer.status == 200 else None
