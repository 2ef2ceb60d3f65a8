"""The quick start: what a newcomer sees after `make up`."""

from __future__ import annotations

import functools
import json
import re
import socket
import ssl
import struct
import subprocess
import urllib.parse
from typing import Any

import pytest

from tests.e2e.conftest import Installed
from tests.support import dashboards
from tests.support.clients import login
from tests.support.kubectl import Kubectl, KubectlError, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


LOG_DIR = "/var/lib/odradek/data"
# Panels of what the quickstart lacks: metrics of its ZooKeeper, and groups at the coordinator.
WITHOUT_SERIES = re.compile(
    r'app_kubernetes_io_component="zookeeper"|odradek_groups\b|odradek_group_generation\b'
)


def kcat(bootstrap: str, *arguments: str, stdin: str | None = None) -> str:
    """Return the stdout of kcat, a client outside of the cluster."""
    options = [
        word for name, value in login(bootstrap).items() for word in ("-X", f"{name}={value}")
    ]
    return subprocess.run(
        # By default it gives brokers five seconds to answer.
        ["kcat", "-m60", "-b", bootstrap, *options, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    ).stdout


def topic(name: str, **spec: object) -> dict[str, object]:
    return {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": name},
        "spec": {
            "clusterRef": {"name": "main"},
            "partitions": 2,
            "replicationFactor": 3,
            "deletionPolicy": "Delete",
            **spec,
        },
    }


def test_up_ends_with_counts_and_no_lag(installed: Installed) -> None:
    tail = "\n".join(installed.output.splitlines()[-80:])
    counts = [
        int(row) for row in re.findall(r"^.*\b(?:info|warning|error)\b\D+(\d+)\s*\W*$", tail, re.M)
    ]
    assert counts, tail
    assert min(counts) > 0
    assert re.search(r"total lag\D*0\b", tail, re.I), tail


def test_get_shows_ready_with_useful_columns(kubectl: Kubectl, healthy: None) -> None:
    table = kubectl("get", "kafkaclusters,topics,consumergroups,users")
    headers = [line.split() for line in table.splitlines() if line.startswith("NAME")]
    assert len(headers) == 4
    rows = [line.split() for line in table.splitlines() if line and not line.startswith("NAME")]
    assert {row[0].partition(".")[0] for row in rows} >= {"kafkacluster", "topic", "consumergroup"}
    for header in headers:
        assert "READY" in header
    for name in ("main", "cluster-logs", "log-counts", "collector", "admin"):
        (row,) = [row for row in rows if row[0].endswith(f"/{name}")]
        assert "True" in row


def test_outside_clients_list_and_read_the_topic(kubectl: Kubectl, bootstrap: str) -> None:
    def led_by_all_and_in_sync() -> bool:
        # After a broker was away, the controller evens out the leadership every 300 s.
        listing = json.loads(kcat(bootstrap, "-L", "-J", "-t", "cluster-logs"))
        (found,) = listing["topics"]
        assert len(found["partitions"]) == 6
        assert {each["leader"] for each in found["partitions"]} == {0, 1, 2}
        assert all(len(each["isrs"]) == 3 for each in found["partitions"])
        return True

    eventually(led_by_all_and_in_sync, "six partitions led by all brokers and in sync", 420)
    lines = kcat(bootstrap, "-C", "-t", "cluster-logs", "-o", "beginning", "-c", "50", "-e")
    records = [json.loads(line) for line in lines.splitlines()]
    assert len(records) == 50
    assert all(record["component"] and record["line"] for record in records)


def ask_prometheus(kubectl: Kubectl, expression: str) -> list[dict[str, object]]:
    """Return the series of an expression. Raises KubectlError for one that is none."""
    path = "/api/v1/namespaces/logs/services/prometheus:9090/proxy/api/v1/query?query="
    answer = json.loads(kubectl("get", "--raw", path + urllib.parse.quote(expression)))
    result: list[dict[str, object]] = answer["data"]["result"]
    return result


def test_prometheus_scrapes_brokers_operator_and_job(kubectl: Kubectl) -> None:
    query = functools.partial(ask_prometheus, kubectl)

    def told_by(component: str) -> bool:
        labels = f'consumergroup="log-counts",app_kubernetes_io_component="{component}"'
        return len(query(f"kafka_consumergroup_lag{{{labels}}}")) == 6

    for component in ("spark-driver", "lag-exporter"):
        told = functools.partial(told_by, component)
        eventually(told, f"a lag series for each of the six partitions by {component}")
    eventually(lambda: len(query("odradek_broker_info")) == 3, "a series of each broker")
    eventually(lambda: query('{__name__=~"odradek_operator_.+"}'), "series of the operator")


def test_every_panel_of_the_dashboards_answers(kubectl: Kubectl) -> None:
    wanted = {
        f"{name}: {panel}: {expression}": dashboards.concrete(expression)
        for name, board in dashboards.dashboards().items()
        for panel, expression in dashboards.queries(board)
    }
    found = {place: ask_prometheus(kubectl, one) for place, one in wanted.items()}
    expected = {place for place in wanted if not WITHOUT_SERIES.search(place)}
    assert len(expected) > 80

    def all_answer() -> bool:
        empty = sorted(place for place in expected if not found[place])
        found.update({place: ask_prometheus(kubectl, wanted[place]) for place in empty})
        assert all(found[place] for place in empty), empty
        return True

    eventually(all_answer, "every panel has series", 300, 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"partitions": 0}, "partitions"),
        ({"replicationFactor": 0}, "replicationFactor"),
        ({"topicName": "no/slash"}, "topicName"),
        ({"topicName": ".."}, "topicName|named"),
        ({"bogus": 1}, "bogus"),
    ],
)
def test_impossible_topic_is_refused_at_admission(
    kubectl: Kubectl, change: dict[str, object], reason: str
) -> None:
    with pytest.raises(KubectlError, match=reason):
        kubectl.apply(topic("refused", **change))


def test_topic_with_too_many_replicas_is_not_ready_and_not_written(
    kubectl: Kubectl, bootstrap: str
) -> None:
    kubectl.apply(topic("too-wide", replicationFactor=9))
    try:

        def refused() -> dict[str, Any]:
            condition = kubectl.condition("topic", "too-wide")
            assert condition.get("reason") == "InvalidReplicationFactor", condition
            return condition

        condition = eventually(refused, "a condition on the impossible topic")
        assert condition["status"] == "False"
        assert "9" in condition["message"]
        assert "3" in condition["message"]
        listed = json.loads(kcat(bootstrap, "-L", "-J"))
        assert "too-wide" not in {each["topic"] for each in listed["topics"]}
    finally:
        kubectl("delete", "topic", "too-wide", "--timeout=120s")


def test_deleted_topic_leaves_no_znode_and_no_folder(kubectl: Kubectl, bootstrap: str) -> None:
    kubectl.apply(topic("short-lived", config={"file.delete.delay.ms": "1000"}))
    eventually(
        lambda: kubectl.condition("topic", "short-lived").get("status") == "True", "topic Ready"
    )
    kcat(bootstrap, "-P", "-t", "short-lived", stdin="one\ntwo\n")

    def folders() -> list[str]:
        pods = [f"main-broker-{number}" for number in range(3)]
        return [
            name
            for pod in pods
            for name in kubectl("exec", pod, "--", "ls", LOG_DIR).split()
            if name.startswith("short-lived-")
        ]

    eventually(lambda: len(folders()) >= 6, "a folder of each replica")
    kubectl("delete", "topic", "short-lived", "--timeout=120s")

    def is_unlisted() -> bool:
        listed = json.loads(kcat(bootstrap, "-L", "-J"))
        return "short-lived" not in {each["topic"] for each in listed["topics"]}

    eventually(is_unlisted, "clients are told of the topic no more")
    eventually(lambda: not folders(), "the topic's folders gone")


def test_frame_that_is_not_the_protocol_closes_only_its_connection(bootstrap: str) -> None:
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    trusting = ssl.create_default_context(cadata=login(bootstrap)["ssl.ca.pem"])

    def connect(*, encrypts: bool) -> socket.socket:
        made = socket.create_connection((host, int(port)), 60)
        return trusting.wrap_socket(made, server_hostname=host) if encrypts else made

    with connect(encrypts=True) as good:
        api_versions = struct.pack(">ihhih4s", 14, 18, 0, 7, 4, b"test")
        for hostile in (
            b"GET / HTTP/1.1\r\n\r\n",
            struct.pack(">i", -1),
            struct.pack(">ihhi", 8, 999, 0, 1),
            struct.pack(">ihhih", 10, 3, 8, 1, 2000),
        ):
            for encrypts in (True, False):
                with connect(encrypts=encrypts) as bad:
                    bad.sendall(hostile)
                    assert _ends(bad)
            good.sendall(api_versions)
            size, correlation = struct.unpack(">ii", _exactly(good, 8))
            assert correlation == 7
            _exactly(good, size - 4)


def _ends(connection: socket.socket) -> bool:
    """Return whether the peer closes, after an alert of TLS at most."""
    try:
        return len(connection.recv(100)) <= 7 and connection.recv(1) == b""
    except ConnectionResetError:
        return True


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        piece = connection.recv(count - len(received))
        assert piece, "the broker closed a good connection"
        received += piece
    return received
