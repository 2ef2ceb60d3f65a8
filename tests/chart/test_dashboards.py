"""Every query of the dashboards answers on a Prometheus that scrapes the real programs.

The targets have the labels that the chart's monitors give them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from odradek.clock import wall_ms
from odradek.values import TopicPartition
from odradek_spark.endpoint import RUNNING, MetricsEndpoint, Status
from odradek_spark.lag import Measurement, PartitionLag
from tests.chart.test_alerts import alerts
from tests.reconcile.conftest import Operator
from tests.support import helm, oauth
from tests.support.apiserver import ApiServer
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.chart_zookeeper import ChartServer
from tests.support.clients import QUIET, make_topic, produce_all
from tests.support.dashboards import concrete, dashboards, queries
from tests.support.kubectl import QuickKubectl
from tests.support.ports import free_port
from tests.support.secure_broker import SecureBroker

NAMESPACE = "dashboards"
NAMES = ("cluster", "groups", "jobs", "topics")
TOPIC, STRICT, GROUP = "seen", "strict", "readers"
SECURED = "secured"
METRIC = re.compile(r"\b(?:odradek|kafka)_\w+|\boutstanding_requests\b")


@pytest.fixture(scope="module")
def boards() -> dict[str, dict[str, Any]]:
    return dashboards()


class Secured(SecureBroker):
    protocols = MappingProxyType({"TOKENS": "SASL_SSL"})


class Prometheus:
    """A Prometheus that scrapes `jobs` every two seconds."""

    def __init__(self, directory: Path, jobs: list[dict[str, Any]]) -> None:
        program = shutil.which("prometheus")
        assert program is not None, "prometheus is missing: `make setup` installs it"
        config = {
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s"},
            "scrape_configs": jobs,
        }
        path = directory / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        port = free_port()
        self._url = f"http://127.0.0.1:{port}/api/v1"
        self.log = directory / "prometheus.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    program,
                    f"--config.file={path}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    "--log.level=warn",
                ],
                stdout=log,
                stderr=log,
            )

    def ask(self, path: str, **parameters: str) -> Any:
        """Return `data` of an answer; fail with what Prometheus says of a wrong query."""
        url = f"{self._url}/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                if error.code != HTTPStatus.BAD_REQUEST:
                    raise
                raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query."""
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found


def target(port: int, component: str, **labels: str) -> dict[str, Any]:
    """A scrape of one pod, with the labels of a PodMonitor of the chart."""
    about = {"namespace": NAMESPACE, "app_kubernetes_io_component": component, **labels}
    targets = [{"targets": [f"127.0.0.1:{port}"], "labels": about}]
    return {"job_name": component, "static_configs": targets}


def measurement() -> Measurement:
    parts = [PartitionLag(TopicPartition(TOPIC, number), 10, 7, 3, 1.5) for number in range(2)]
    return Measurement((*parts, PartitionLag(TopicPartition(STRICT, 0), 5)), 1, wall_ms())


def driver() -> Iterator[MetricsEndpoint]:
    """The endpoint of a job's driver whose batches go on."""
    batches = itertools.count()
    endpoint = MetricsEndpoint(
        "counts", 0, lambda: Status(RUNNING, next(batches), 0.5, 2, measurement()), lambda: True
    )
    endpoint.start()
    yield endpoint
    endpoint.stop()


def resources(connect: str) -> list[dict[str, Any]]:
    """The cluster with its job, and another one, which has authorities."""
    servers, _, chroot = connect.partition("/")
    specs: dict[tuple[str, str], Any] = {
        ("KafkaCluster", "main"): {
            "zookeeper": {"connect": servers, "chroot": f"/{chroot}"},
            "brokers": {"replicas": 1},
        },
        ("KafkaCluster", SECURED): {
            "zookeeper": {"connect": servers, "chroot": f"/{chroot}/{SECURED}"},
            "brokers": {"replicas": 1},
            "listeners": [
                {"name": "internal", "port": 9093, "tls": True}
                | {"authentication": {"type": "scram-sha-512"}}
            ],
        },
        ("ConsumerGroup", "main"): {
            "clusterRef": {"name": "main"},
            "topics": [TOPIC],
            "job": {"suspend": True, "sink": {"console": {}}, "volume": {"size": "1Gi"}},
        },
    }
    return [
        {
            "apiVersion": "odradek.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        for (kind, name), spec in specs.items()
    ]


@pytest.fixture(scope="module")
def prometheus(
    tmp_path_factory: pytest.TempPathFactory, api_server: ApiServer
) -> Iterator[tuple[Prometheus, Callable[[], None]]]:
    """Prometheus over broker, exporter, operator, driver and ZooKeeper; and what makes traffic."""
    directory = tmp_path_factory.mktemp("dashboards")
    broker, exporter = free_port(), free_port()
    with contextlib.ExitStack() as stack:
        issuer = stack.enter_context(oauth.Issuer(directory))
        settings = {
            **STEADY,
            **issuer.settings("TOKENS"),
            **issuer.own.settings(),
            "inter.broker.listener.name": "PLAINTEXT",
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:ANONYMOUS",
            "odradek.metrics.port": str(broker),
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
        }
        cluster = stack.enter_context(Cluster(directory, 1, settings, kind=Secured))
        knock(cluster)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        make_topic(admin, NewTopic(TOPIC, 3, 1))
        make_topic(admin, NewTopic(STRICT, 1, 1, config={"min.insync.replicas": "2"}))

        ensemble = ChartServer(directory)
        stack.callback(ensemble.stop)

        api_server.install_crds()
        api_server.create_namespace(NAMESPACE)
        operator = Operator(api_server, NAMESPACE, directory / "operator.log", "operator-0")
        stack.enter_context(operator)
        kubectl = QuickKubectl(api_server.kubectl, api_server.kubeconfig, NAMESPACE)
        with cluster.zookeeper.client() as znodes:
            znodes.ensure_path(f"/{SECURED}")
        for one in resources(cluster.zookeeper.connect):
            kubectl.apply(one)

        options = (f"--zookeeper={cluster.zookeeper.connect}", f"--port={exporter}", "--interval=1")
        with (directory / "exporter.log").open("wb") as log:
            words = [sys.executable, "-m", "odradek_operator.exporter", *options]
            process = subprocess.Popen(words, stdout=log, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.terminate)

        endpoint = stack.enter_context(contextlib.contextmanager(driver)())
        spark = target(endpoint.port, "spark-driver", pod="counts-driver")
        operated = target(operator.metrics_port, "operator", service="odradek-operator")
        server = Prometheus(
            directory,
            [
                target(broker, "broker", cluster="main", pod="main-broker-0"),
                target(exporter, "lag-exporter", cluster="main", pod="main-lag-exporter-0"),
                target(ensemble.metrics_port, "zookeeper", pod="zookeeper-0"),
                spark,
                {**operated, "honor_labels": True},
            ],
        )
        stack.callback(server.process.wait)
        stack.callback(server.process.terminate)
        wait_until(lambda: up(server), "Prometheus answers")

        consumer = stack.enter_context(contextlib.closing(member(cluster)))
        client = KazooClient(f"127.0.0.1:{ensemble.port}")
        client.start(timeout=120)
        stack.callback(client.close)
        stack.callback(client.stop)

        def traffic() -> None:
            """Produce, read and commit a part of it, and write to the chart's ZooKeeper."""
            produce_all(cluster.bootstrap, TOPIC, [b"x"] * 10)
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                consumer.commit(asynchronous=True)
            client.create("/n", b"", sequence=True)

        yield server, traffic


def knock(cluster: Cluster) -> None:
    """Show a token that nobody signed: some series begin with the first failure."""
    broker = cluster.brokers[1]
    assert isinstance(broker, Secured)
    errors: list[KafkaError] = []
    settings: dict[str, Any] = {
        **QUIET,
        "bootstrap.servers": broker.secure_address("TOKENS"),
        "security.protocol": "SASL_SSL",
        "enable.ssl.certificate.verification": "false",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: ("e30.e30.e30", time.time() + 3600, "nobody", {}),
        "error_cb": errors.append,
    }
    client = AdminClient(settings)

    def is_refused() -> bool:
        with contextlib.suppress(KafkaException):
            client.list_topics(timeout=1)
        client.poll(0)
        return any(one.code() == KafkaError._AUTHENTICATION for one in errors)

    wait_until(is_refused, "the broker refuses the token")


def member(cluster: Cluster) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **QUIET,
        }
    )
    consumer.subscribe([TOPIC])
    return consumer


def up(server: Prometheus) -> bool:
    assert server.process.poll() is None, server.log.read_text()
    try:
        return len(server.query("up == 1")) == 5
    except OSError:
        return False


def answering(
    prometheus: tuple[Prometheus, Callable[[], None]], wanted: dict[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the series of each query, by its name; fail with those that have none."""
    server, traffic = prometheus
    found: dict[str, list[dict[str, Any]]] = {}

    def all_answer() -> bool:
        traffic()
        for name in wanted.keys() - found.keys():
            if series := server.query(wanted[name]):
                found[name] = series
        return found.keys() == wanted.keys()

    try:
        wait_until(all_answer, "every query has series")
    except AssertionError:
        empty = {name: wanted[name] for name in sorted(wanted.keys() - found.keys())}
        pytest.fail(f"no series: {json.dumps(empty, indent=1)}")
    return found


def test_there_are_the_four_dashboards(boards: dict[str, dict[str, Any]]) -> None:
    assert tuple(sorted(boards)) == NAMES
    assert {board["uid"] for board in boards.values()} == {f"odradek-{one}" for one in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_answers(
    boards: dict[str, dict[str, Any]],
    prometheus: tuple[Prometheus, Callable[[], None]],
    name: str,
) -> None:
    wanted = {
        f"{panel} ({number})": concrete(expression)
        for number, (panel, expression) in enumerate(queries(boards[name]))
    }
    assert len(wanted) > 10
    answering(prometheus, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_has_values(
    boards: dict[str, dict[str, Any]],
    prometheus: tuple[Prometheus, Callable[[], None]],
    name: str,
) -> None:
    wanted, labels = {}, {}
    for one in boards[name]["templating"]["list"]:
        if one["type"] == "query":
            (series, label) = re.fullmatch(
                r"label_values\((.+), (\w+)\)", one["query"]["query"]
            ).groups()  # type: ignore[union-attr]
            wanted[one["name"]] = f"count by ({label}) ({concrete(series)})"
            labels[one["name"]] = label
    found = answering(prometheus, wanted)
    for variable, label in labels.items():
        assert all(one["metric"].get(label) for one in found[variable]), variable


def test_every_panel_asks_the_chosen_data_source(boards: dict[str, dict[str, Any]]) -> None:
    chosen = {"type": "prometheus", "uid": "$datasource"}
    for board in boards.values():
        identities = [panel["id"] for panel in board["panels"]]
        assert len(identities) == len(set(identities))
        for panel in board["panels"]:
            for one in panel.get("targets", ()):
                assert panel["datasource"] == one["datasource"] == chosen


def test_series_of_every_alert_exist(prometheus: tuple[Prometheus, Callable[[], None]]) -> None:
    names = {
        name
        for rule in alerts({"zookeeper": {"replicas": 3}}).values()
        for name in METRIC.findall(rule["expr"])
        # It comes with the first failure.
        if name != "odradek_operator_reconcile_errors_total"
    }
    assert len(names) > 15
    answering(prometheus, {name: f"count({name})" for name in names})


def test_topic_below_its_min_insync_replicas_and_the_disk_are_told(
    prometheus: tuple[Prometheus, Callable[[], None]],
) -> None:
    found = answering(
        prometheus,
        {
            "below": "odradek_under_min_isr_partitions == 1",
            "disk": "odradek_log_directory_size_bytes > odradek_log_directory_available_bytes > 0",
        },
    )
    assert len(found["below"]) == len(found["disk"]) == 1


def test_dashboards_can_be_left_out_or_labelled() -> None:
    def maps(values: dict[str, Any]) -> list[dict[str, Any]]:
        rendered = helm.template({"monitoring": values})
        return [one["metadata"] for one in rendered if "dashboard" in one["metadata"]["name"]]

    assert maps({"dashboards": {"enabled": False}}) == maps({"enabled": False}) == []
    about = {"labels": {"mine": "yes"}, "annotations": {"grafana_folder": "Kafka"}}
    for one in maps({"dashboards": about}):
        assert one["labels"]["mine"] == "yes"
        assert one["annotations"] == about["annotations"]
