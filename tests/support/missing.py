"""What to do on a machine that lacks something which a test needs."""

from __future__ import annotations

import os
import socket
from typing import NoReturn

import pytest


def skip_unless_ci(text: str) -> NoReturn:
    """Skip the test, or fail under CI, where every test must run."""
    if os.environ.get("CI") == "true":
        pytest.fail(text)
    pytest.skip(text)


def require_ipv6() -> None:
    """Skip without sockets that take both IPv6 and IPv4, or fail under CI."""
    if not socket.has_dualstack_ipv6():
        skip_unless_ci("no IPv6: boot Linux without ipv6.disable=1")
