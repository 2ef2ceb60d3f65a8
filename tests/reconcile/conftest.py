"""A real API server, a real ZooKeeper and the operator as a process of its own."""

import itertools
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pytest
from kazoo.client import KazooClient

from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from odradek.zk import znodes
from odradek_operator.shared.zookeeper import UnreachableError
from tests.docs import reasons
from tests.reconcile import account, statuses
from tests.support import zookeeper
from tests.support.apiserver import ApiServer
from tests.support.kubectl import QuickKubectl, eventually
from tests.support.ports import free_port
from tests.support.preloaded import Program
from tests.support.sampling import FULL

_numbers = itertools.count(1)
CONNECTED_SECONDS = 120
# For operators of tests that change what no watch tells.
OFTEN = () if FULL else ("tests.reconcile.frequent_looks",)
Found = TypeVar("Found")


def once_reachable(ask: Callable[[], Found]) -> Found:
    """What the operator's code returns once ZooKeeper answers: it gives up after seconds, and a
    busy disk may take longer to begin a session.
    """
    until = time.monotonic() + CONNECTED_SECONDS
    while True:
        try:
            return ask()
        except UnreachableError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


@pytest.fixture(scope="session")
def api(api_server: ApiServer) -> Iterator[ApiServer]:
    """The API server with the custom resource definitions.

    In the end every status that was written is shown to Argo CD's and Flux' judges, and looked up
    in the reference.
    """
    api_server.install_crds()
    yield api_server
    shown = statuses.take_written(api_server.audit_log)
    assert statuses.disagreements(shown) == []
    assert reasons.unknown(shown) == []


@pytest.fixture(scope="session")
def zk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zookeeper.Server]:
    with zookeeper.Server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


class Operator:
    """`kopf run` as the image runs it, with the chart's rights; a context manager.

    `home` is the namespace of its release, the watched one where left out; `through` a kubeconfig
    whose way to the API server it takes, `modules` are loaded before it, `image` is that of
    brokers. `kill` is SIGKILL.
    """

    def __init__(
        self,
        server: ApiServer,
        namespace: str,
        log: Path,
        identity: str,
        *,
        home: str = "",
        through: Path | None = None,
        modules: Sequence[str] = (),
        image: str = "registry.test/odradek-broker:1",
    ) -> None:
        home = home or namespace
        kubeconfig = account.write_kubeconfig(
            server, through or server.kubeconfig, home, namespace, log.with_suffix(".kubeconfig")
        )
        self.log = log
        self.namespace = namespace
        self._modules = (*modules, "odradek_operator.handlers")
        self.health_port = free_port()
        self.metrics_port = free_port()
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "ODRADEK_BROKER_IMAGE": image,
            "ODRADEK_SPARK_IMAGE": "registry.test/odradek-spark:1",
            "ODRADEK_EXPORTER": '{"image": "registry.test/odradek-operator:1"}',
            "ODRADEK_CONSOLE": '{"image": "registry.test/odradek-operator:1"}',
            "POD_NAME": identity,
            "POD_NAMESPACE": home,
            "ODRADEK_HEALTH_PORT": str(self.health_port),
            "ODRADEK_METRICS_PORT": str(self.metrics_port),
        }
        self._process: Program | subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["run", "--log-format=json", "-n", self.namespace]
        words += [word for module in self._modules for word in ("-m", module)]
        self._process = self._run(words)

    def _run(self, words: list[str]) -> "Program | subprocess.Popen[bytes]":
        return Program("kopf", words, self._environment, self.log)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def end(self) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(timeout=120)
        self._process = None
        return code

    def metric(self, name: str) -> float:
        """Sum of all series of one name; 0 where there is none yet."""
        return sum(float(one.rpartition(" ")[2]) for one in self.series(name))

    def series(self, name: str) -> list[str]:
        """Return the lines of /metrics that begin so."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return [one for one in answer.read().decode().splitlines() if one.startswith(name)]

    def text(self, path: str) -> str:
        """What a page of the health port says."""
        url = f"http://127.0.0.1:{self.health_port}{path}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found: bytes = answer.read()
            return found.decode()

    def page(self, path: str) -> int:
        """Status code of a page of the health port; 0 while nobody listens."""
        try:
            url = f"http://127.0.0.1:{self.health_port}{path}"
            with urllib.request.urlopen(url, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return int(error.code)
        except OSError:
            return 0

    def __enter__(self) -> "Operator":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def register(client: KazooClient, broker_id: int) -> None:
    """Register a broker as itself would; it lives as long as this client's session."""
    endpoint = znodes.BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9092 + broker_id)
    registration = znodes.BrokerRegistration(BrokerId(broker_id), (endpoint,))
    client.create(znodes.broker_path(broker_id), znodes.encode_broker(registration), ephemeral=True)


def elect(client: KazooClient, topic: str) -> None:
    """Do what a controller does for a new topic: write a state for each partition."""
    path = znodes.topic_path(topic)
    data, _ = client.get(path)
    for partition, replicas in znodes.decode_topic(path, data).partitions.items():
        state = znodes.PartitionState(replicas[0], LeaderEpoch(0), replicas, ControllerEpoch(1))
        state_path = znodes.state_path(topic, partition)
        if not client.exists(state_path):
            client.create(state_path, znodes.encode_state(state), makepath=True)


class Place:
    """One namespace with one chroot in ZooKeeper, and brokers that are registrations only."""

    def __init__(
        self, server: ApiServer, ensemble: zookeeper.Server, client: KazooClient, name: str
    ) -> None:
        self.kubectl = QuickKubectl(server.kubectl, server.kubeconfig, name)
        self.client = client
        self.namespace = name
        self.zookeeper = ensemble.connect

    def cluster_body(self, brokers: int, **extra: Any) -> dict[str, Any]:
        return {
            "apiVersion": "odradek.io/v1alpha1",
            "kind": "KafkaCluster",
            "metadata": {"name": "main"},
            "spec": {
                "zookeeper": {"connect": self.zookeeper, "chroot": f"/{self.namespace}"},
                "brokers": {"replicas": brokers, **extra},
            },
        }

    def create_cluster(self, brokers: int = 3, **extra: Any) -> None:
        self.kubectl.apply(self.cluster_body(brokers, **extra))
        for path in znodes.PERSISTENT_PATHS:
            self.client.ensure_path(path)
        for broker_id in range(brokers):
            self.register(broker_id)

    def register(self, broker_id: int) -> None:
        """Register a broker as itself would; it lives as long as this test's session."""
        register(self.client, broker_id)

    def elect(self, topic: str) -> None:
        """Do what a controller does for a new topic."""
        elect(self.client, topic)

    def read(self, topic: str) -> znodes.TopicAssignment:
        """Return who has the replicas of a topic."""
        path = znodes.topic_path(topic)
        return znodes.decode_topic(path, self.client.get(path)[0])

    def make(self, topic: str, *replicas: tuple[int, ...]) -> None:
        """Create a topic as somebody else would, leaders included."""
        made = {one: tuple(map(BrokerId, ids)) for one, ids in enumerate(replicas)}
        self.client.create(znodes.topic_config_path(topic), znodes.encode_config({}))
        self.client.create(
            znodes.topic_path(topic), znodes.encode_topic(znodes.TopicAssignment(made))
        )
        self.elect(topic)

    def requested(self) -> dict[TopicPartition, tuple[int, ...]]:
        """Return what the controller is asked to move now."""
        path = znodes.REASSIGN_PARTITIONS_PATH
        if not self.client.exists(path):
            return {}
        return dict(znodes.decode_reassignment(path, self.client.get(path)[0]))

    def finish_moves(self) -> None:
        """Do what a controller does with a request whose new replicas have caught up."""
        for partition, target in self.requested().items():
            replicas = tuple(map(BrokerId, target))
            before = self.read(partition.topic)
            moved = {**before.partitions, partition.partition: replicas}
            self.client.set(
                znodes.topic_path(partition.topic),
                znodes.encode_topic(znodes.TopicAssignment(moved)),
            )
            state = znodes.PartitionState(replicas[0], LeaderEpoch(1), replicas, ControllerEpoch(1))
            path = znodes.state_path(partition.topic, partition.partition)
            self.client.set(path, znodes.encode_state(state))
        self.client.delete(znodes.REASSIGN_PARTITIONS_PATH)

    def finish_deletion(self, topic: str) -> None:
        """Do what a controller does at the end of a deletion."""
        self.client.delete(znodes.topic_path(topic), recursive=True)
        self.client.delete(znodes.topic_config_path(topic))
        self.client.delete(znodes.delete_topic_path(topic))

    def topic(self, name: str, **spec: Any) -> dict[str, Any]:
        return {
            "apiVersion": "odradek.io/v1alpha1",
            "kind": "Topic",
            "metadata": {"name": name},
            "spec": {"clusterRef": {"name": "main"}, **spec},
        }

    def wait_for(self, kind: str, name: str, reason: str) -> dict[str, Any]:
        """Wait until Ready has this reason, and return the condition."""

        def probe() -> dict[str, Any] | None:
            condition = self.kubectl.condition(kind, name)
            assert condition.get("reason") == reason, condition
            return condition

        return eventually(probe, f"{kind} {name} {reason}", pause_s=0.2) or {}

    def events(self, reason: str) -> list[dict[str, Any]]:
        found = self.kubectl.get("events")["items"]
        return [one for one in found if one["reason"] == reason]


@pytest.fixture
def place(api: ApiServer, zk: zookeeper.Server, request: pytest.FixtureRequest) -> Iterator[Place]:
    name = f"place-{os.getpid()}-{next(_numbers)}"
    api.create_namespace(name)
    with zk.client() as root:
        root.ensure_path(f"/{name}")
    with zk.client(f"/{name}") as client:
        yield Place(api, zk, client, name)


@pytest.fixture
def operator(api: ApiServer, place: Place, tmp_path: Path) -> Iterator[Operator]:
    log = tmp_path / "operator.log"
    with Operator(api, place.namespace, log, "operator-0", modules=OFTEN) as process:
        yield process
    print(log.read_text())
