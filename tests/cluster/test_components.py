"""Finding out whether a component of the built-in cluster serves."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.cluster.components import listens


def test_socket_of_a_killed_process_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "runtime.sock"
    assert not listens(path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert listens(path)
    assert path.exists()
    assert not listens(path)
