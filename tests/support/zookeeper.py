"""A real ZooKeeper server for tests, and ways to hurt it.

    with zookeeper.Server(tmp_path) as server:
        session = Session(server.connect, timeout_ms=4000)

`kill`, `restart`, `pause` and `resume` make the faults; `expire_session` ends another client's
session on the server, by the known trick of connecting with its id and closing.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from kazoo.client import KazooClient

from odradek import zookeeper
from tests.support.ports import free_port

START_SECONDS = 120
# What a client's session may last: longer than a busy machine keeps it from being heard.
SESSION_SECONDS = 30


class Server:
    """One server process with its data below `directory`; a context manager."""

    def __init__(self, directory: Path, tick_time_ms: int = 500, port: int | None = None) -> None:
        self.port = port or free_port()
        self.connect = f"127.0.0.1:{self.port}"
        self._directory = directory
        self._config = zookeeper.write_config(
            directory / "zookeeper", self.port, tick_time_ms=tick_time_ms
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and wait until it serves."""
        log = (self._directory / "zookeeper.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                zookeeper.command(self._config), stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + START_SECONDS
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > until:
                text = (self._directory / "zookeeper.log").read_text()
                self.kill()
                raise RuntimeError(f"ZooKeeper did not start: {text[-2000:]}")
            time.sleep(0.05)

    def _serves(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
                connection.settimeout(5)
                connection.sendall(b"srvr")
                return b"Mode:" in connection.recv(4096)
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL the process and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kill the process and start it again on the same data and port."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """SIGSTOP the process: connections stay open and nothing answers."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT the process."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @contextlib.contextmanager
    def client(self, chroot: str = "") -> Iterator[KazooClient]:
        """Yield a plain kazoo client, as the operator and real tools see the znodes."""
        client = KazooClient(hosts=self.connect + chroot, timeout=SESSION_SECONDS)
        client.start(timeout=START_SECONDS)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def expire_session(self, client_id: tuple[int, bytes]) -> None:
        """End the session (id, password) on the server, while its owner knows nothing of it."""
        thief = KazooClient(hosts=self.connect, client_id=client_id)
        thief.start(timeout=START_SECONDS)
        thief.stop()
        thief.close()
