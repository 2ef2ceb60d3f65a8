"""What refused clients, and those that go before their answer comes, leave for the others."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from odradek.protocol import codec, headers
from odradek.protocol.api import APIS, ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import group_offsets
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.groups import DeleteGroupsRequest, FindCoordinatorRequest
from tests.support.broker import STEADY, Broker, Cluster, wait_until
from tests.support.clients import create_topic
from tests.support.ports import free_port

METRICS_PORT = free_port()
REFUSED_HOST = "127.0.0.7"
RATE = 5
# More than are handled without a pause.
PARTITIONS = 250


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {
        **STEADY,
        "max.connections.per.ip.overrides": f"{REFUSED_HOST}:1",
        "max.connection.creation.rate": str(RATE),
        "odradek.metrics.port": str(METRICS_PORT),
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "log.flush.interval.messages": "1",
    }
    with Cluster(tmp_path_factory.mktemp("going"), settings=settings) as running:
        create_topic(running.bootstrap, "read", partitions=PARTITIONS)
        yield running


def connect(broker: Broker, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), 60, (host, 0))


def frame(key: ApiKey, version: int, request: Any) -> bytes:
    header = headers.encode_request_header(headers.RequestHeader(key, version, 1, "t"))
    body = header + codec.encode(request, version)
    return struct.pack(">i", len(body)) + body


def ask(connection: socket.socket, key: ApiKey, version: int, request: Any) -> Any:
    """Return the answer to a request of a version whose header has no tags."""
    connection.sendall(frame(key, version, request))
    with connection.makefile("rb") as answer:
        (size,) = struct.unpack(">i", answer.read(4))
        return codec.decode(APIS[key].response, version, answer.read(size), 4)[0]


def metric(start: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=60) as answer:
        [line] = [one for one in answer.read().decode().splitlines() if one.startswith(start)]
    return float(line.rpartition(" ")[2])


def test_refused_clients_use_up_no_rate(cluster: Cluster) -> None:
    broker = cluster.brokers[1]
    time.sleep(1)  # the rate of the clients that made the topic
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(connect(broker, REFUSED_HOST))
        ask(held, ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        delayed = metric('odradek_connections_delayed_total{reason="rate"} ')
        refused = metric('odradek_connections_refused_total{reason="per-address"} ')
        others = [stack.enter_context(connect(broker, REFUSED_HOST)) for _ in range(20 * RATE)]
        assert [one.recv(1) for one in others] == [b""] * len(others)
        counted = metric('odradek_connections_refused_total{reason="per-address"} ') - refused
        assert counted == len(others)
        assert metric('odradek_connections_delayed_total{reason="rate"} ') == delayed
        client = stack.enter_context(connect(broker))
        ask(client, ApiKey.API_VERSIONS, 0, ApiVersionsRequest())


def commit(offset: int) -> group_offsets.OffsetCommitRequest:
    return group_offsets.OffsetCommitRequest(
        group_id="readers",
        topics=[
            group_offsets.OffsetCommitRequestTopic(
                name="read",
                partitions=[
                    group_offsets.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata=""
                    )
                    for index in range(PARTITIONS)
                ],
            )
        ],
    )


def committed(connection: socket.socket) -> list[int]:
    """The offsets of the group, once it is loaded."""
    found: list[int] = []

    def is_loaded() -> bool:
        request = group_offsets.OffsetFetchRequest(group_id="readers", topics=None)
        answer = ask(connection, ApiKey.OFFSET_FETCH, 5, request)
        found[:] = [one.committed_offset for topic in answer.topics for one in topic.partitions]
        return bool(answer.error_code == ErrorCode.NONE)

    wait_until(is_loaded, "the group is loaded")
    return found


def test_a_group_lives_on_after_large_commits_of_clients_that_went(cluster: Cluster) -> None:
    """Each commit counts whole or not at all, and what the broker says of it is what it stored."""
    broker = cluster.brokers[1]
    client = connect(broker)

    def has_coordinator() -> bool:
        answer = ask(client, ApiKey.FIND_COORDINATOR, 0, FindCoordinatorRequest(key="readers"))
        return bool(answer.error_code == ErrorCode.NONE)

    wait_until(has_coordinator, "the group has a coordinator")
    assert committed(client) == []
    seen = set()
    for attempt in range(1, 13):
        going = connect(broker)
        # The broker reads these together, so the commit is under way when the first is answered.
        going.sendall(
            frame(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
            + frame(ApiKey.OFFSET_COMMIT, 3, commit(attempt))
        )
        select.select([going], [], [], 60)
        time.sleep(attempt % 4 / 200)  # goes sooner or later
        going.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        going.close()
        found = committed(client)
        assert len(found) in (0, PARTITIONS)
        assert len(set(found)) <= 1, "one commit or another"
        seen.update(found)
    answer = ask(client, ApiKey.OFFSET_COMMIT, 3, commit(100))
    assert {one.error_code for one in answer.topics[0].partitions} == {0}
    assert committed(client) == [100] * PARTITIONS
    client.close()
    broker.kill()
    cluster.zookeeper.end_session_of("/brokers/ids/1")
    broker.start()
    client = connect(broker)
    assert committed(client) == [100] * PARTITIONS
    deleted = ask(client, ApiKey.DELETE_GROUPS, 1, DeleteGroupsRequest(groups_names=["readers"]))
    assert [one.error_code for one in deleted.results] == [ErrorCode.NONE]
    assert committed(client) == []
    client.close()
