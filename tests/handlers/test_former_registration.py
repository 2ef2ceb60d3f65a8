"""What the controller decided for a broker before it crashed is not obeyed by what came back."""

from __future__ import annotations

import dataclasses

import pytest

from odradek.handlers import control
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.control import (
    ControlledShutdownRequest,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaRequest,
    StopReplicaTopicV1,
)
from odradek.values import NO_BROKER_EPOCH
from tests.support.replicas import KEY, Replicas

CONTEXT = RequestContext(
    version=2, client_id="1", listener="PLAINTEXT", host="127.0.0.1", connection_id=1
)
PRESENT = 100  # what the broker of these tests is registered under


def lead(broker_epoch: int) -> LeaderAndIsrRequest:
    role = LeaderAndIsrPartitionState(
        partition_index=KEY.partition,
        controller_epoch=1,
        leader=1,
        leader_epoch=7,
        isr=[1, 2],
        zk_version=3,
        replicas=[1, 2],
    )
    return LeaderAndIsrRequest(
        controller_id=2,
        controller_epoch=1,
        broker_epoch=broker_epoch,
        topic_states=[LeaderAndIsrTopicState(topic_name=KEY.topic, partition_states=[role])],
        live_leaders=[],
    )


def stop(broker_epoch: int) -> StopReplicaRequest:
    return StopReplicaRequest(
        controller_id=2,
        controller_epoch=1,
        broker_epoch=broker_epoch,
        delete_partitions=True,
        topics=[StopReplicaTopicV1(name=KEY.topic, partition_indexes=[KEY.partition])],
    )


async def test_an_empty_replica_does_not_lead_what_its_former_life_was_to_lead(
    broker: Broker,
) -> None:
    refused = await control.leader_and_isr(broker, lead(PRESENT - 1), CONTEXT)
    assert refused.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert KEY not in broker.replicas.partitions
    obeyed = await control.leader_and_isr(broker, lead(PRESENT), CONTEXT)
    assert obeyed.error_code == ErrorCode.NONE
    assert broker.replicas.partitions[KEY].is_leader


@pytest.mark.parametrize("names_it", [True, False], ids=["named", "not named"])
async def test_what_came_before_the_registration_was_known_counts_if_it_names_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, names_it: bool
) -> None:
    monkeypatch.setattr(broker.registration, "in_time", False)
    asked = lead(PRESENT if names_it else NO_BROKER_EPOCH)
    answer = await control.leader_and_isr(broker, asked, CONTEXT)
    assert (answer.error_code == ErrorCode.NONE) == names_it


@pytest.mark.parametrize(("registration", "is_kept"), [(PRESENT - 1, True), (PRESENT, False)])
async def test_a_log_is_deleted_only_by_who_knows_of_this_life(
    broker: Broker, replicas: Replicas, registration: int, is_kept: bool
) -> None:
    await control.leader_and_isr(broker, lead(PRESENT), CONTEXT)
    answer = await control.stop_replica(broker, stop(registration), CONTEXT)
    assert (answer.error_code == ErrorCode.STALE_BROKER_EPOCH) == is_kept
    assert (replicas.logs.get(*KEY) is not None) == is_kept


class AskedController:
    """A controller that only notes which broker asks to be shut down, and under which epoch."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> list[object]:
        self.asked.append((broker_id, broker_epoch))
        return []


@pytest.mark.parametrize(("version", "epoch"), [(1, NO_BROKER_EPOCH), (2, PRESENT)])
async def test_the_controller_learns_which_life_of_a_broker_shuts_down(
    broker: Broker, version: int, epoch: int
) -> None:
    controller = AskedController()
    asked = dataclasses.replace(broker, controller=controller)  # type: ignore[arg-type]
    request = ControlledShutdownRequest(broker_id=2, broker_epoch=epoch)
    answer = await control.controlled_shutdown(asked, request, CONTEXT._replace(version=version))
    assert answer.error_code == ErrorCode.NONE
    assert controller.asked == [(2, epoch)]
