"""What settings change of a real broker that no other test names."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.support.broker import STEADY, Broker, Cluster, wait_until
from tests.support.clients import QUIET, create_topic, make_topic
from tests.support.quotas import alter, ask, produce

TOPIC = "named"
_PIDFD_GETFD = 438


def fetch_session(broker: Broker) -> int:
    """Ask for a session; return its id, 0 for none."""
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    topics = [FetchTopic(topic=TOPIC, partitions=[part])]
    request = FetchRequest(
        replica_id=-1, max_wait_ms=0, min_bytes=0, session_id=0, session_epoch=0, topics=topics
    )
    return ask(broker, request, 11).session_id


@pytest.mark.parametrize("slots", [0, 2])
def test_max_incremental_fetch_session_cache_slots_is_the_number_of_sessions(
    tmp_path: Path, slots: int
) -> None:
    settings = {**STEADY, "max.incremental.fetch.session.cache.slots": str(slots)}
    with Cluster(tmp_path, settings=settings) as cluster:
        create_topic(cluster.bootstrap, TOPIC)
        made = [fetch_session(cluster.brokers[1]) != 0 for _ in range(3)]
        assert made == [number < slots for number in range(3)]


def buffers_of_accepted(broker: Broker) -> tuple[int, int]:
    """Return the sizes that the kernel gave the broker's end of a connection, send and receive."""
    with broker.connect() as mine:
        found: list[tuple[int, int]] = []

        def look() -> bool:
            found.extend(_buffers(broker.pid, mine.getsockname()))
            return bool(found)

        wait_until(look, "the connection is accepted")
        return found[0]


def _buffers(pid: int, peer: tuple[str, int]) -> list[tuple[int, int]]:
    """Return those of the sockets of a process that are connected to `peer`."""
    found = []
    for one in _sockets(pid):
        # A socket that listens has no peer.
        with one, contextlib.suppress(OSError):
            if one.getpeername() == peer:
                options = (socket.SO_SNDBUF, socket.SO_RCVBUF)
                send, receive = (one.getsockopt(socket.SOL_SOCKET, each) for each in options)
                found.append((send, receive))
    return found


def _sockets(pid: int) -> Iterator[socket.socket]:
    """Yield duplicates of the sockets of a process."""
    system, process = ctypes.CDLL(None), os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            descriptor = system.syscall(_PIDFD_GETFD, process, int(name), 0)
            if descriptor < 0:
                continue  # closed meanwhile
            try:
                yield socket.socket(fileno=descriptor)
            except OSError:
                os.close(descriptor)  # no socket
    finally:
        os.close(process)


def test_socket_send_and_receive_buffer_bytes_are_those_of_connections(tmp_path: Path) -> None:
    settings = {
        **STEADY,
        "socket.send.buffer.bytes": "20000",
        "socket.receive.buffer.bytes": "30000",
    }
    with Cluster(tmp_path, settings=settings) as cluster:
        # Linux doubles what is asked for, to have room for its own accounts.
        assert buffers_of_accepted(cluster.brokers[1]) == (40_000, 60_000)


def limit(
    broker: Broker, key: str, value: float, least: float, is_over: Callable[[str], bool]
) -> None:
    """Limit client `limited`, and return once that counts: the later limit of another does."""
    for client, most in (("limited", value), ("canary", least)):
        [answer] = alter(broker, [("client-id", client)], {key: most}).entries
        assert answer.error_code == 0
    wait_until(lambda: is_over("canary"), f"{key} counts")


def test_quota_window_size_seconds_is_the_time_over_which_rates_are_taken(tmp_path: Path) -> None:
    settings = {**STEADY, "quota.window.num": "2", "quota.window.size.seconds": "3600"}
    with Cluster(tmp_path, settings=settings) as cluster:
        broker = cluster.brokers[1]
        create_topic(cluster.bootstrap, TOPIC)

        def is_over(client: str) -> bool:
            return ask(broker, produce(TOPIC, 5000), 7, client).throttle_time_ms > 0

        # Each is of 5000 bytes. A window may have 36,000; one of a second 10.
        limit(broker, "producer_byte_rate", 10, 1, is_over)
        assert [is_over("limited") for _ in range(6)] == [False] * 6
        assert [is_over("limited") for _ in range(3)][-1]


def test_controller_quota_window_size_seconds_is_how_much_may_be_saved_up(tmp_path: Path) -> None:
    settings = {
        **STEADY,
        "controller.quota.window.num": "1",
        "controller.quota.window.size.seconds": "1000",
    }
    with Cluster(tmp_path, settings=settings) as cluster:
        broker = cluster.brokers[1]

        def is_over(client: str) -> bool:
            topic = CreatableTopic(
                name=f"t{time.monotonic_ns()}",
                num_partitions=1,
                replication_factor=1,
                assignments=[],
                configs=[],
            )
            request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
            [made] = ask(broker, request, 6, client).topics
            return made.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED

        # Five topics per 1000 s.
        limit(broker, "controller_mutation_rate", 0.005, 0.0001, is_over)
        assert [is_over("limited") for _ in range(5)] == [False] * 5
        assert [is_over("limited") for _ in range(2)][-1]


def test_replica_fetch_min_bytes_lets_followers_wait_for_more(tmp_path: Path) -> None:
    settings = {
        **STEADY,
        "replica.fetch.min.bytes": "500000",
        "replica.fetch.wait.max.ms": "60000",
        "replica.lag.time.max.ms": "600000",
        "replica.socket.timeout.ms": "120000",
    }
    with Cluster(tmp_path, brokers=2, settings=settings) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        make_topic(admin, NewTopic(TOPIC, 1, replica_assignment=[[1, 2]]))

        def error(size: int, timeout_ms: int) -> int:
            request = produce(TOPIC, size, acks=-1)
            request = dataclasses.replace(request, timeout_ms=timeout_ms)
            answer = ask(cluster.brokers[1], request, 7)
            return answer.responses[0].partition_responses[0].error_code

        assert error(10, 1000) == ErrorCode.REQUEST_TIMED_OUT
        assert error(600_000, 30_000) == ErrorCode.NONE
