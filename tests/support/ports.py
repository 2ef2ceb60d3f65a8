"""Ports for servers that tests start, below the range from which Linux serves connections.

A port that the system chooses (bind to 0) lies in that range: until the server binds it, any
outgoing connection on the machine may take it, and the server then finds it in use.
"""

import random
import socket

_RANGE = range(10_000, 30_000)
"""Above well-known services, below Kubernetes' node ports and Linux's ephemeral ports (32768)."""

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
