"""Kafka's Java clients, the releases that applications are built with (P1-P3, G2, O)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import jvm, kafka_peer
from tests.support.broker import Cluster
from tests.support.sampling import some_of

PROGRAM = Path(__file__).with_name("JavaClient.java")
# The one between them is a member of groups in other tests.
VERSIONS = ["2.8.2", "3.9.1", "4.1.0"]
SCENARIOS = [
    "cluster",
    "topics",
    "configs",
    *(f"records {codec}" for codec in ("none", "gzip", "snappy", "lz4", "zstd")),
    "records without idempotence",
    "acks 0",
    "refused records",
    "delete records",
    "group eager",
    "group cooperative",
    "group offsets",
    "log dirs",
    "delete topics",
]


@pytest.mark.parametrize("version", some_of(VERSIONS, ["4.1.0"]))
def test_java_client_does_all_that_applications_do(
    cluster: Cluster, version: str, tmp_path: Path
) -> None:
    classpath = kafka_peer.classpath(kafka_peer.clients(version))
    everything = f"{jvm.compiled(PROGRAM, classpath)}:{classpath}"
    prefix = f"java-{version.replace('.', '-')}"
    done = subprocess.run(
        [
            *(*kafka_peer.JAVA, kafka_peer.scratch(tmp_path), "-Xmx256m", "-cp", everything),
            PROGRAM.stem,
            *(cluster.bootstrap, str(len(cluster.brokers)), prefix),
        ],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.stdout.splitlines() == SCENARIOS, done.stderr[-4000:]
    assert done.returncode == 0
