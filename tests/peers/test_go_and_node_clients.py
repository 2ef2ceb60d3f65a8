"""Go's and Node's clients, each in a program that does all that applications do with one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.apiserver import require_programs
from tests.support.broker import Cluster
from tests.support.node_packages import node_path

NODE = Path(__file__).with_name("node")
BEGAN_MS = 1_700_000_000_000
PARTITIONS = 2
RECORDS: list[dict[str, Any]] = [
    {
        "partition": number % PARTITIONS,
        "timestamp": BEGAN_MS + number * 1000,
        "key": None if number % 4 == 0 else f"key {number}",
        "value": None if number % 6 == 5 else f"value {number} " * 30,
        "headers": [["number", str(number)], ["number", "again"], ["none", ""]],
    }
    for number in range(12)
]
TASK = {
    "records": RECORDS,
    "partitions": PARTITIONS,
    "replicas": 2,
    "time": BEGAN_MS + 4500,
    "keep": 2,
}
ENDS = {str(partition): len(RECORDS) // PARTITIONS for partition in range(PARTITIONS)}


def run(command: Sequence[str | Path], **environment: str) -> dict[str, Any]:
    """What a client's program found out, doing its task."""
    done = subprocess.run(
        command,
        input=json.dumps(TASK),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def check(answer: dict[str, Any]) -> None:
    written = [{**one, "offset": place // PARTITIONS} for place, one in enumerate(RECORDS)]
    for way in ("read", "group"):
        assert sorted(answer[way], key=lambda one: int(one["timestamp"])) == written, way
    assert sorted(answer["shares"]) == [[0], [1]]
    assert answer["committed"] == answer["ends"] == ENDS
    assert answer["state"] == "Empty"
    assert answer["groups"] == 0
    assert answer["starts"] == {"0": 0, "1": 0}
    assert answer["found"] == {"0": 3, "1": 2}
    assert answer["retention"] == "-1"
    assert answer["kept"] == {"0": TASK["keep"], "1": 0}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("client", ["sarama", "old-sarama", "franz-go"])
def test_go_client(cluster: Cluster, client: str, codec: str) -> None:
    """sarama 1.29 leaves the newest time of a batch out (-1); times are found all the same."""
    program = require_programs(f"{client}-client") / f"{client}-client"
    check(run([program, "roundtrip", cluster.bootstrap, f"{client}-{codec}", codec]))


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_kafkajs(cluster: Cluster, codec: str) -> None:
    """Other codecs come to it from packages of other people."""
    program: list[str | Path] = [
        "node",
        NODE / "client.js",
        "roundtrip",
        cluster.bootstrap,
        f"js-{codec}",
        codec,
    ]
    check(run(program, NODE_PATH=node_path(NODE)))
