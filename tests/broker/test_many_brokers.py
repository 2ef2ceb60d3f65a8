"""Brokers that share a machine: several by one command, and none with another's replicas."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.admin import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from odradek.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from tests.support import zookeeper
from tests.support.broker import STEADY, FreshBroker, wait_until
from tests.support.ports import own_address

PORT = 9092
TIMEOUT_MS = 60_000


class Machine(FreshBroker):
    """Two brokers, of this id and the next, on an address that no other has."""

    def __init__(self, folder: Path, first: int, connect: str) -> None:
        self.host = own_address()
        listeners = {"listeners": f"PLAINTEXT://{self.host}:{PORT}"}
        one_each = {"odradek.one.replica.per.node": "true", "default.replication.factor": "2"}
        super().__init__(folder, first, connect, {**STEADY, **listeners, **one_each}, PORT)
        self.address = f"{self.host}:{PORT}"

    def spawn(self, *arguments: str) -> None:
        super().spawn("--count", "2", *arguments)

    def both_are_up(self) -> bool:
        return self.log_text().count(self.says_when_up) == 2


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """Brokers 10 and 11 on one machine, 20 and 21 on another."""
    with zookeeper.Chroot() as shared:
        both = Machine(tmp_path, 10, shared.connect), Machine(tmp_path, 20, shared.connect)
        try:
            for one in both:
                one.spawn()
            for one in both:
                wait_until(one.both_are_up, "two brokers")
            yield both
        finally:
            for one in both:
                one.kill()


async def _refusals(host: str, port: int) -> tuple[int, str, int]:
    """Return what comes of two replicas of a topic on one machine, and of a move of one there."""
    client = PeerClient(host, port, "asker")
    assigned = [CreatableReplicaAssignment(partition_index=0, broker_ids=[10, 11])]
    topic = CreatableTopic(
        name="no", num_partitions=-1, replication_factor=-1, assignments=assigned, configs=[]
    )
    there = ReassignablePartition(partition_index=0, replicas=[20, 21])
    moved = ReassignableTopic(name="spread", partitions=[there])
    try:
        made = await client.call(CreateTopicsRequest(topics=[topic], timeout_ms=1), 2, TIMEOUT_MS)
        answer = await client.call(
            AlterPartitionReassignmentsRequest(topics=[moved]), 0, TIMEOUT_MS
        )
    finally:
        await client.close()
    (refused,), (told,) = made.topics, answer.responses
    return refused.error_code, refused.error_message or "", told.partitions[0].error_code


def test_each_machine_has_one_replica_and_its_brokers_end_together(
    machines: tuple[Machine, Machine],
) -> None:
    first, second = machines
    admin = AdminClient({"bootstrap.servers": first.address, "log_level": 0})
    wait_until(lambda: len(admin.list_topics(timeout=30).brokers) == 4, "four brokers")
    admin.create_topics([NewTopic("spread", 12, 2)])["spread"].result(120)
    known = admin.list_topics("spread", timeout=30).topics["spread"].partitions.values()
    assert [{one // 10 for one in sorted(each.replicas)} for each in known] == [{1, 2}] * 12
    assert {one for each in known for one in each.replicas} == {10, 11, 20, 21}
    with pytest.raises(Exception, match="3 larger than available nodes: 2"):
        admin.create_topics([NewTopic("wider", 1, 3)])["wider"].result(120)
    # Automatically, too.

    def made() -> list[int]:
        found = admin.list_topics("made", timeout=30).topics["made"].partitions
        return sorted(one // 10 for one in found[0].replicas) if found else []

    wait_until(lambda: bool(made()), "a topic that was made automatically")
    assert made() == [1, 2]

    controller = admin.list_topics(timeout=30).controller_id
    machine = first if controller < 20 else second
    code, reason, moved = asyncio.run(_refusals(machine.host, PORT + controller % 10))
    assert (code, moved) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT,) * 2
    assert f"brokers 10 and 11 are on {first.host}" in reason

    # One is killed: the other stops as on a signal, and the command tells how the first ended.
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    os.kill(int(children[1]), signal.SIGKILL)
    assert first.wait() == 128 + signal.SIGKILL
    assert "broker 10 stopped" in first.log_text()
    second.signal(signal.SIGINT)
    assert second.wait() == 0
    said = second.log_text()
    assert ("broker 20 stopped" in said, "broker 21 stopped" in said) == (True, True)
