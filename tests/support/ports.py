"""Ports for servers that tests start, below the range from which Linux serves connections.

A port that the system chooses (bind to 0) lies in that range: until the server binds it, any
outgoing connection on the machine may take it, and the server then finds it in use.

Test processes that run at the same time (pytest-xdist's workers) choose from ports of their own: a
server that is just stopped, to be started again, holds no port that others could see.
"""

import os
import random
import socket

_ALL = range(10_000, 30_000)
"""Above well-known services, below Kubernetes' node ports and Linux's ephemeral ports (32768)."""

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_RANGE = _ALL[_WORKER::_WORKERS]

_given: set[int] = set()
_choose = random.SystemRandom().choice
"""Not the shared generator: what seeds that one would give every test process the same ports."""


def free_port() -> int:
    """Return a port of the loopback that nobody listens on, another one at each call."""
    while True:
        port = _choose(_RANGE)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port


def own_address() -> str:
    """Return an address of the loopback where every port is free, another one at each call.

    For servers whose port is not the test's to choose: other runs on the machine use it, too.
    """
    return f"127.{_choose(range(64, 128))}.{_choose(range(256))}.{_choose(range(1, 255))}"
