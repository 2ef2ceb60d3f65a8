"""What a broker holds for its peers is bounded by its configuration."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
import urllib.request
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from odradek import config_loading
from odradek.net.connection_quotas import ConnectionLimits, ConnectionQuotas
from odradek.protocol import codec, headers
from odradek.protocol.api import ApiKey
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.server.dynamic_settings import SettingChanges
from tests.support.broker import STEADY, Broker, Cluster, FreshBroker, wait_until
from tests.support.clients import consume_all, create_topic, produce_all
from tests.support.memory_use import resident_bytes
from tests.support.ports import free_port

CLIENT_HOST = "127.0.0.5"
REQUEST_BYTES = 2_000_000
MEBIBYTE = 1024 * 1024
METRICS_PORT = free_port()
# Longer than a busy machine takes to ask on forty connections.
IDLE_MS = 15_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {
        **STEADY,
        "max.connections": "60",
        "max.connections.per.ip": "20",
        "max.connections.per.ip.overrides": "127.0.0.7:2,127.0.0.8:40",
        "socket.request.max.bytes": str(REQUEST_BYTES),
        "queued.max.request.bytes": str(4 * REQUEST_BYTES),
        "connections.max.idle.ms": str(IDLE_MS),
        "odradek.queued.max.response.bytes": str(32 * MEBIBYTE),
        "odradek.conversion.max.bytes": str(16 * MEBIBYTE),
        "odradek.metrics.port": str(METRICS_PORT),
    }
    with Cluster(tmp_path_factory.mktemp("limits"), settings=settings, kind=FreshBroker) as running:
        create_topic(running.bootstrap, "bounded")
        yield running


def ask(connection: socket.socket) -> bool:
    """Whether the broker answers on this connection."""
    header = headers.encode_request_header(headers.RequestHeader(ApiKey.API_VERSIONS, 0, 1, "t"))
    body = header + codec.encode(ApiVersionsRequest(), 0)
    try:
        connection.sendall(struct.pack(">i", len(body)) + body)
        return len(connection.recv(100)) > 0
    except (ConnectionError, TimeoutError):
        return False


@contextlib.contextmanager
def connections(broker: Broker, host: str, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), 60, (host, 0)))
            for _ in range(count)
        ]


@pytest.mark.parametrize(("host", "allowed"), [("127.0.0.6", 20), ("127.0.0.7", 2)])
def test_an_address_has_so_many_connections(cluster: Cluster, host: str, allowed: int) -> None:
    before = metric("odradek_connections_refused_total", "per-address")
    with connections(cluster.brokers[1], host, allowed + 3) as opened:
        assert [ask(one) for one in opened] == [True] * allowed + [False] * 3
    assert metric("odradek_connections_refused_total", "per-address") == before + 3


async def test_name_server_that_fails_between_check_and_change_keeps_no_other_limit_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    former = ConnectionLimits(1, 100, 100, 60_000, max_connections_of_ip={"10.0.0.1": 4})
    quotas = ConnectionQuotas(former)
    changes = SettingChanges(Mock(), Mock(), Mock(), quotas)
    changed, _ = config_loading.from_values(
        {
            "broker.id": "1",
            "zookeeper.connect": "unused",
            "max.connections": "7",
            "max.connections.per.ip.overrides": "broker..example:5",
        }
    )
    await changes.of_broker(changed)
    assert quotas.limits.max_connections == 7
    assert quotas.limits.max_connections_of_ip == {"10.0.0.1": 4}
    assert "keeping the former max.connections.per.ip.overrides: failed to look" in caplog.text


def test_all_have_so_many_connections_and_the_next_waits_for_a_place(cluster: Cluster) -> None:
    broker = cluster.brokers[1]
    with connections(broker, "127.0.0.8", 40) as first, connections(broker, "127.0.0.9", 20):
        # The controller's own connection takes one of the sixty places.
        assert all(map(ask, first))
        with connections(broker, CLIENT_HOST, 1) as [late]:
            late.settimeout(1)
            assert not ask(late)
            assert metric("odradek_connections_delayed_total", "max-connections") >= 1
            for one in first:
                one.close()
            late.settimeout(60)
            assert late.recv(100)


def test_larger_requests_are_refused_and_just_allowed_ones_taken(cluster: Cluster) -> None:
    with cluster.brokers[1].connect() as connection:
        connection.sendall(struct.pack(">i", REQUEST_BYTES + 1))
        assert connection.recv(1) == b""
    value = b"x" * (1_000_000)
    assert produce_all(cluster.bootstrap, "bounded", [value], **{"message.max.bytes": 1_900_000})


def test_idle_connections_are_closed(cluster: Cluster) -> None:
    with connections(cluster.brokers[1], CLIENT_HOST, 1) as [idle]:
        began = time.monotonic()
        assert ask(idle)
        idle.settimeout(120)
        while idle.recv(4096):
            pass
        assert time.monotonic() - began > IDLE_MS / 1000


def test_slow_senders_hold_no_more_than_the_memory_for_requests(cluster: Cluster) -> None:
    broker = cluster.brokers[1]
    before = resident_bytes(broker.pid)
    half = struct.pack(">i", REQUEST_BYTES) + bytes(REQUEST_BYTES // 2)
    with connections(broker, "127.0.0.8", 40) as senders:
        for sender in senders:
            sender.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sender.send(half)
        # What was sent before is read before this is answered.
        assert produce_all(cluster.bootstrap, "bounded", [b"small"])
        # Without the bound these would be 40 MB and their buffers twice that.
        assert resident_bytes(broker.pid) - before < 24 * MEBIBYTE
    value = b"y" * 900_000
    assert produce_all(cluster.bootstrap, "bounded", [value], **{"message.max.bytes": 1_900_000})


def test_slow_readers_cost_no_memory_and_hold_up_nobody(cluster: Cluster) -> None:
    broker = cluster.brokers[1]
    create_topic(cluster.bootstrap, "read-slowly")
    produce_all(cluster.bootstrap, "read-slowly", [b"z" * 100_000] * 50)
    before = resident_bytes(broker.pid)
    with connections(broker, "127.0.0.8", 30) as readers:
        fetch = fetch_frame("read-slowly")
        for reader in readers:
            reader.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                reader.send(fetch * 50)
        assert len(consume_all(cluster.bootstrap, "read-slowly", 1, 50)) == 50
        assert resident_bytes(broker.pid) - before < 16 * MEBIBYTE
    wait_until(lambda: broker.running, "the broker lives")


def test_old_consumers_that_do_not_read_hold_no_more_than_their_share(cluster: Cluster) -> None:
    broker = cluster.brokers[1]
    create_topic(cluster.bootstrap, "converted")
    answer_bytes = 8_000_000
    produce_all(cluster.bootstrap, "converted", [b"c" * 100_000] * (answer_bytes // 100_000))
    asked = fetch_frame("converted", 2)
    with connections(broker, "127.0.0.8", 14) as silent:
        for one in silent:
            one.sendall(asked)
        with connections(broker, CLIENT_HOST, 1) as [reader]:
            reader.settimeout(120)
            reader.sendall(asked)
            most = 0.0
            while not select.select([reader], [], [], 0.1)[0]:
                most = max(most, unsent_bytes())
            left = struct.unpack(">i", reader.recv(4, socket.MSG_WAITALL))[0]
            assert left > answer_bytes
            while left:
                left -= len(reader.recv(min(left, MEBIBYTE)))
        # Without the bounds these would be 112 MB.
        assert 24 * MEBIBYTE < most < 64 * MEBIBYTE
        assert metric("odradek_connections_closed_total", "slow-answer") > 0
        assert produce_all(cluster.bootstrap, "bounded", [b"meanwhile"])


def metric(name: str, reason: str) -> float:
    return shown(f'{name}{{reason="{reason}"}} ')


def unsent_bytes() -> float:
    return shown("odradek_unsent_response_bytes ")


def shown(start: str) -> float:
    """The value of the series of the broker that starts so."""
    with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=60) as answer:
        [line] = [one for one in answer.read().decode().splitlines() if one.startswith(start)]
    return float(line.rpartition(" ")[2])


def fetch_frame(topic: str, version: int = 11) -> bytes:
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=50 * MEBIBYTE,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MEBIBYTE)
                ],
            )
        ],
    )
    header = headers.encode_request_header(headers.RequestHeader(ApiKey.FETCH, version, 1, "slow"))
    body = header + codec.encode(request, version)
    return struct.pack(">i", len(body)) + body
