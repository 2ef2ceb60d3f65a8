"""The outbox: order, repetition, overflow, and what answers mean."""

import asyncio
from types import SimpleNamespace

import pytest

from odradek.controller import outbox as module
from odradek.controller.events import (
    LeaderAndIsr,
    ReplicasFailed,
    ReplicasStopped,
    ResendRequired,
    StopReplicas,
    UpdateMetadata,
)
from odradek.controller.outbox import Outbox, Sender
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import control
from odradek.values import TopicPartition
from tests.controller.conftest import until
from tests.controller.transcript import brokers

ONE = TopicPartition("t", 0)


class Scripted:
    """A peer that answers each call with the next of `answers`; an exception is raised."""

    def __init__(self):
        self.calls = []
        self.registrations = []
        self.answers = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = False

    async def call(self, request, version, timeout_ms):
        await self.gate.wait()
        self.calls.append((type(request).__name__, version, request.controller_epoch))
        self.registrations.append(request.broker_epoch)
        answer = self.answers.pop(0) if self.answers else control.UpdateMetadataResponse()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self):
        self.closed = True


@pytest.fixture
async def rig():
    rig = SimpleNamespace(peer=Scripted(), told=[], fenced=[])
    rig.outbox = Outbox(
        Sender(1, 5, "PLAINTEXT", 1000),
        lambda host, port: rig.peer,
        rig.told.append,
        lambda: rig.fenced.append(True),
    )
    rig.outbox.update_brokers(brokers(["2"]))
    yield rig
    await rig.outbox.close()


def update():
    return UpdateMetadata((2,), (), ())


async def test_requests_go_out_in_order_and_are_repeated_until_acknowledged(rig):
    rig.peer.answers = [ConnectionError("down"), TimeoutError("slow")]
    rig.outbox.send(update())
    rig.outbox.send(StopReplicas(2, (ONE,), delete=False))
    rig.peer.answers += [
        control.UpdateMetadataResponse(),
        control.StopReplicaResponse(partition_errors=[]),
    ]
    await until(lambda: len(rig.peer.calls) == 4)
    assert rig.peer.calls == [("UpdateMetadataRequest", 5, 5)] * 3 + [("StopReplicaRequest", 1, 5)]


async def test_requests_name_the_registration_that_they_are_meant_for(rig):
    rig.outbox.update_brokers(brokers(["2@57"]))
    refused = {"error_code": ErrorCode.STALE_BROKER_EPOCH, "partition_errors": []}
    rig.peer.answers = [
        control.UpdateMetadataResponse(error_code=ErrorCode.STALE_BROKER_EPOCH),
        control.LeaderAndIsrResponse(**refused),
        control.StopReplicaResponse(**refused),
    ]
    rig.outbox.send(update())
    rig.outbox.send(LeaderAndIsr(2, (), ()))
    rig.outbox.send(StopReplicas(2, (ONE,), delete=True))
    rig.outbox.send(update())
    await until(lambda: len(rig.peer.calls) == 4)
    assert rig.peer.registrations == [57] * 4
    assert not rig.told, "a broker that came back is told everything anyway"
    assert not rig.fenced


async def test_newer_controller_known_to_a_broker_deposes(rig):
    rig.peer.answers = [control.UpdateMetadataResponse(error_code=11)]
    rig.outbox.send(update())
    await until(lambda: rig.fenced)


async def test_answers_become_events(rig):
    def error(kind, number, code):
        return kind(topic_name="t", partition_index=number, error_code=code)

    rig.peer.answers = [
        control.LeaderAndIsrResponse(
            partition_errors=[
                error(control.LeaderAndIsrPartitionError, 0, 56),
                error(control.LeaderAndIsrPartitionError, 1, 11),
            ]
        ),
        control.StopReplicaResponse(
            partition_errors=[
                error(control.StopReplicaPartitionError, 0, 0),
                error(control.StopReplicaPartitionError, 1, 56),
                error(control.StopReplicaPartitionError, 2, 3),
            ]
        ),
    ]
    three = tuple(TopicPartition("t", number) for number in range(3))
    rig.outbox.send(LeaderAndIsr(2, (), ()))
    rig.outbox.send(StopReplicas(2, three, delete=True))
    await until(lambda: len(rig.told) == 2)
    assert rig.told == [
        ReplicasFailed(2, frozenset({ONE})),
        ReplicasStopped(2, frozenset({three[0], three[2]}), frozenset({three[1]})),
    ]


async def test_overflow_asks_to_tell_everything_again(rig, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_QUEUE", 3)
    rig.peer.gate.clear()
    for _ in range(6):
        rig.outbox.send(update())
    assert rig.told == [ResendRequired(2)]
    assert rig.outbox.queued() < 4


async def test_gone_or_restarted_broker_gets_nothing_of_what_was_meant_before(rig):
    rig.peer.gate.clear()
    rig.outbox.send(update())
    old, rig.peer = rig.peer, Scripted()
    rig.outbox.update_brokers(brokers(["2@99"]))
    old.gate.set()
    rig.outbox.send(StopReplicas(2, (ONE,), delete=False))
    rig.peer.answers = [control.StopReplicaResponse(partition_errors=[])]
    await until(lambda: rig.peer.calls)
    assert [name for name, _, _ in rig.peer.calls] == ["StopReplicaRequest"]
    rig.outbox.update_brokers({})
    await until(lambda: rig.peer.closed)
    rig.outbox.send(update())
    assert rig.outbox.queued() == 0
