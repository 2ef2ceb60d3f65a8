"""A real ZooKeeper server for tests, with faults.

    with zookeeper.Server(tmp_path) as server:
        session = Session(server.connect, timeout_ms=4000)

`kill`, `restart`, `pause` and `resume` inject faults. `expire_session` ends another client's
session on the server: it connects with the session's id and closes it. Where no fault is needed,
`Chroot` costs less than a server.
"""

import atexit
import contextlib
import functools
import itertools
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

from kazoo.client import KazooClient

from odradek import zookeeper
from tests.support import jvm, spark_jars
from tests.support.ports import free_port

START_SECONDS = 120
# A client's session timeout: longer than the pauses of a busy machine. It is the maximum with ticks
# of half a second.
SESSION_SECONDS = 30
CALL_SECONDS = 5
ARCHIVE_SECONDS = 20
CLOSE_SESSION = -11
# Of ZooKeeper's own source: what it mixes into the ids of sessions for their passwords.
PASSWORD_SECRET = 0xB3415C00
PASSWORD_BYTES = 16
# Of the answer to a connection: size, protocol version, time-out, session.
ANSWER = struct.Struct(">iiiq")
NO_SESSION = 0

_numbers = itertools.count(1)


class Server:
    """One server process with its data below `directory`; a context manager.

    `settings` are added to its zoo.cfg, `java_options` to its command line.
    """

    def __init__(
        self,
        directory: Path,
        tick_time_ms: int = 500,
        port: int | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
        java_options: Sequence[str] = (),
    ) -> None:
        self.port = port or free_port()
        self.connect = f"127.0.0.1:{self.port}"
        self._directory = directory
        self._config = zookeeper.write_config(
            directory / "zookeeper", self.port, tick_time_ms=tick_time_ms
        )
        # A killed process loses nothing that it wrote, so tests need not wait for the disk.
        with self._config.open("a") as config:
            config.write("forceSync=no\n")
            config.writelines(f"{key}={value}\n" for key, value in settings.items())
        self._java, *self._arguments = zookeeper.command(self._config)
        place = self._arguments.index("-cp") + 1
        # An archive of their classes holds for these jars in every virtual environment.
        jars = [
            str(spark_jars.plain() / "jars" / Path(jar).name)
            for jar in self._arguments[place].split(":")
        ]
        self._arguments[place] = ":".join(jars)
        self._archive = jvm.Archive("zookeeper", self._arguments[place])
        self._arguments[:0] = java_options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and wait until it serves."""
        log = (self._directory / "zookeeper.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [self._java, *self._archive.options, *self._arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
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
            with self._connected() as connection:
                connection.sendall(b"srvr")
                return b"Mode:" in connection.recv(4096)
        except OSError:
            return False

    def kill(self) -> None:
        """Send SIGKILL to the process and wait for its end."""
        if self._process is not None:
            if not self._archive.exists:
                # The first one on a machine: at SIGTERM it leaves its classes for those after it.
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(ARCHIVE_SECONDS)
                self._archive.keep()
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End what `start` began."""
        self.kill()

    def restart(self) -> None:
        """Kill the process and start it again on the same data and port."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Send SIGSTOP to the process: connections stay open, but nothing responds."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT to the process."""
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
        self.close()

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
        """Expire the session (id, password) on the server without its owner's knowledge.

        The owner would take its session back. So this sends the requests to take it over and to
        close it together, until the server reports that there is no such session.
        """
        session_id, password = client_id
        takeover = struct.pack(
            ">iqiqi16s?", 0, 0, SESSION_SECONDS * 1000, session_id, len(password), password, False
        )
        until = time.monotonic() + START_SECONDS
        while self._session_after(takeover, struct.pack(">ii", 1, CLOSE_SESSION)) != NO_SESSION:
            if time.monotonic() > until:
                raise TimeoutError(f"session {session_id:#x} does not end")
            time.sleep(0.01)

    def end_session_of(self, path: str) -> None:
        """End the session that owns a znode, where there is one, as if its time were up."""
        with self.client() as client:
            stat = client.exists(path)
        if stat is not None and stat.ephemeralOwner:
            self.expire_session((stat.ephemeralOwner, _password(stat.ephemeralOwner)))

    def _session_after(self, *requests: bytes) -> int | None:
        """Send the requests, and return the session in the response; None without a response."""
        with contextlib.suppress(OSError), self._connected() as connection:
            connection.sendall(b"".join(struct.pack(">i", len(one)) + one for one in requests))
            answer = connection.makefile("rb").read(ANSWER.size)
            if len(answer) == ANSWER.size:
                return int(ANSWER.unpack(answer)[3])
        return None

    def _connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), CALL_SECONDS)


class Chroot(Server):
    """A root of its own on one server that the tests of this process share, without faults.

    To start a server takes half a second of a processor.
    """

    def __init__(self) -> None:
        self.port = _shared_server().port
        self.connect = f"127.0.0.1:{self.port}/shared-{next(_numbers)}"
        self._process = None

    def start(self) -> None:
        """Create the root."""
        with _shared_server().client() as client:
            client.ensure_path(self.connect.partition("/")[2])

    def close(self) -> None:
        """Leave the server to the other tests."""

    def kill(self) -> None:
        """Fail: other tests need the server."""
        raise AssertionError("a test that kills ZooKeeper needs a server of its own")


@functools.cache
def _shared_server() -> Server:
    folder = Path(tempfile.mkdtemp(prefix="odradek-zookeeper-"))
    server = Server(folder)

    def end() -> None:
        server.kill()
        shutil.rmtree(folder)

    atexit.register(end)
    server.start()
    return server


def _password(session_id: int) -> bytes:
    """Return the password of a session: the server derives it from the id with Java's generator."""
    seed = (session_id ^ PASSWORD_SECRET ^ 0x5DEECE66D) % 2**48
    words = []
    for _ in range(PASSWORD_BYTES // 4):
        seed = (seed * 0x5DEECE66D + 0xB) % 2**48
        words.append(seed >> 16)
    return struct.pack(f"<{len(words)}I", *words)
