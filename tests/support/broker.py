"""Real broker processes for tests, with a real ZooKeeper beside them.

    with broker.Cluster(tmp_path, brokers=3) as cluster:
        client = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap})
        cluster.brokers[1].kill()

Each broker is a child process with its own folder, port and log file. Leaving the context kills
what still runs.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from odradek.zk import znodes
from tests.support import zookeeper
from tests.support.ports import free_port
from tests.support.preloaded import Program, set_limits

START_SECONDS = 120
# A look that takes long is repeated later: whoever waits leaves the processor to what is awaited.
POLL_SECONDS, LONGEST_POLL_SECONDS = 0.05, 0.5
REST_PER_LOOK = 10
STEADY = {"zookeeper.session.timeout.ms": "30000"}
"""For tests in which no session may expire, even on a busy machine."""


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    """Wait until the condition holds; after `seconds` fail with a message that has `what`.

    Retries if a client could not answer because its connection or session is just ending.
    """
    until = time.monotonic() + seconds
    last: Exception | None = None
    while True:
        began = time.monotonic()
        try:
            if condition():
                return
            last = None
        except (KafkaException, KazooException, KazooTimeoutError) as error:
            last = error
        if time.monotonic() > until:
            raise AssertionError(f"not within {seconds} s: {what}; last: {last!r}") from last
        rest = (time.monotonic() - began) * REST_PER_LOOK
        time.sleep(min(max(rest, POLL_SECONDS), LONGEST_POLL_SECONDS))


class Broker:
    """One broker process. `settings` are Kafka's keys, beside those that every test broker has.

    It is a fork of a process that has imported the broker's modules: see `FreshBroker`.
    Brokers with the same directory and id share a log directory, whatever their kind; with `port`
    a broker takes over another's address too.
    """

    kind = "broker"
    says_when_up = " is up\n"
    start_seconds: float = START_SECONDS
    defaults: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        directory: Path,
        broker_id: int,
        connect: str,
        settings: Mapping[str, str],
        port: int | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.log_dir = directory / f"data-{broker_id}"
        self.log_path = directory / f"{self.kind}-{broker_id}.log"
        self._properties = directory / f"{self.kind}-{broker_id}.properties"
        self._ups_before = 0
        # Kernel limits of the next process, by resource number.
        self.spawn_limits: dict[int, int] = {}
        self._process: Program | subprocess.Popen[bytes] | None = None
        values = {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": str(self.log_dir),
            "zookeeper.connect": connect,
            "zookeeper.session.timeout.ms": "4000",
            # The default is the session timeout; a busy machine may take longer to start a process.
            "zookeeper.connection.timeout.ms": "60000",
            "group.initial.rebalance.delay.ms": "0",
            **self.defaults,
            **settings,
        }
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in values.items()))

    def spawn(self, *arguments: str) -> None:
        """Start the process without waiting for it."""
        self._ups_before = self.log_text().count(self.says_when_up)
        self._process = self._run([str(self._properties), *arguments])

    def _run(self, arguments: list[str]) -> "Program | subprocess.Popen[bytes]":
        words = ["broker", *arguments]
        return Program("odradek", words, dict(os.environ), self.log_path, self.spawn_limits)

    def start(self, *arguments: str) -> None:
        """Start the process and wait until it is registered and serves."""
        self.spawn(*arguments)
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Wait until the process that was spawned last is registered and serves."""

        def is_up() -> bool:
            if not self.running:
                raise AssertionError(
                    f"{self.kind} {self.broker_id} ended: {self.log_text()[-3000:]}"
                )
            return self.log_text().count(self.says_when_up) > self._ups_before

        wait_until(is_up, f"{self.kind} {self.broker_id} is up", self.start_seconds)

    def log_text(self) -> str:
        """Return the output of the process so far, of all its starts."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    @property
    def pid(self) -> int:
        """Process id of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def wait(self, seconds: float = 120) -> int:
        """Wait until the process ends by itself, and return its exit status."""
        assert self._process is not None
        return self._process.wait(seconds)

    def terminate(self) -> int:
        """Send SIGTERM, and return the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal such as SIGSTOP or SIGCONT."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    def connect(self) -> socket.socket:
        """Return a TCP connection, for requests that no client sends."""
        return socket.create_connection(("127.0.0.1", self.port), 60)

    def partition_folders(self, topic: str) -> list[Path]:
        """Return the folders of a topic's partitions, without those that await deletion."""
        return sorted(self.log_dir.glob(f"{topic}-[0-9]*[0-9]")) + sorted(
            self.log_dir.glob(f"{topic}-[0-9]")
        )


class FreshBroker(Broker):
    """A broker in an interpreter of its own: for tests of its start, its memory, its descriptors
    and signals, and for commands of subclasses.
    """

    def _run(self, arguments: list[str]) -> "Program | subprocess.Popen[bytes]":
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                [*self._command(), *arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
                # With clients' threads, Python may hang between fork and exec.
                preexec_fn=partial(set_limits, self.spawn_limits) if self.spawn_limits else None,
            )

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "odradek", "broker"]


def await_partitions(cluster: "Cluster", topic: str, count: int) -> None:
    """Wait until every broker's metadata has `count` partitions of a topic with leaders.

    0: the topic is deleted. The broker that answers a change may be the first to know of it.
    """
    for broker in cluster.brokers.values():
        client = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})

        def told(client: AdminClient = client) -> bool:
            found = client.list_topics(timeout=30).topics.get(topic)
            led = [one for one in found.partitions.values() if one.leader >= 0] if found else []
            return len(led) == (len(found.partitions) if found else 0) == count

        wait_until(told, f"broker {broker.broker_id} knows {count} partitions of {topic}")


def start_together(brokers: Iterable[Broker]) -> None:
    """Start brokers at the same time and wait until each serves."""
    starting = list(brokers)
    for broker in starting:
        broker.spawn()
    for broker in starting:
        broker.wait_until_up()


class Cluster:
    """ZooKeeper and brokers 1 to N; a context manager that starts and ends them.

    Other tests use the same ZooKeeper; with `own_zookeeper` one may be killed or measured.
    `kinds` has the subclass per id of brokers that are not of the class `kind`.
    """

    def __init__(
        self,
        directory: Path,
        brokers: int = 1,
        settings: Mapping[str, str] | None = None,
        kinds: Mapping[int, type[Broker]] | None = None,
        kind: type[Broker] = Broker,
        own_zookeeper: bool = False,
    ) -> None:
        self.directory = directory
        self.zookeeper = zookeeper.Server(directory) if own_zookeeper else zookeeper.Chroot()
        self.brokers = {
            broker_id: (kinds or {}).get(broker_id, kind)(
                directory, broker_id, self.zookeeper.connect, settings or {}
            )
            for broker_id in range(1, brokers + 1)
        }

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for clients."""
        return ",".join(broker.address for broker in self.brokers.values())

    def crash(self, broker_id: int) -> None:
        """SIGKILL a broker and end its session, for which all would wait otherwise."""
        self.brokers[broker_id].kill()
        self.zookeeper.end_session_of(znodes.broker_path(broker_id))

    def delete_topic(self, name: str) -> None:
        """Delete a topic; return when it may be made anew."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.delete_topics([name], operation_timeout=60, request_timeout=90)[name].result(120)

    def wait_for_members(self) -> None:
        """Wait until the metadata of all running brokers has all of them and one controller.

        A broker that was paused for long may still name the former controller.
        """
        running = {one.broker_id for one in self.brokers.values() if one.running}
        clients = {
            broker_id: AdminClient(
                {"bootstrap.servers": self.brokers[broker_id].address, "log_level": 0}
            )
            for broker_id in running
        }
        for broker_id, client in clients.items():

            def knows_all(client: AdminClient = client) -> bool:
                return client.list_topics(timeout=30).brokers.keys() == running

            wait_until(knows_all, f"broker {broker_id} knows {sorted(running)}")

        def one_controller() -> bool:
            named = {one.list_topics(timeout=30).controller_id for one in clients.values()}
            return len(named) == 1 and named <= running

        wait_until(one_controller, "all name the same controller")

    def __enter__(self) -> "Cluster":
        try:
            self.zookeeper.start()
            first, *others = self.brokers.values()
            # It is the controller.
            first.start()
            start_together(others)
            self.wait_for_members()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        for broker in self.brokers.values():
            with contextlib.suppress(ProcessLookupError):
                broker.kill()
        self.zookeeper.close()
