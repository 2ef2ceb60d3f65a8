"""What the group coordinator hears of roles that the controller gives."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from odradek.handlers import control
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.messages.control import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from odradek.values import OFFSETS_TOPIC

CONTEXT = RequestContext(
    version=2, client_id="1", listener="PLAINTEXT", host="127.0.0.1", connection_id=1
)


@pytest.mark.parametrize(("topic", "times"), [(OFFSETS_TOPIC, 1), ("orders", 0)])
async def test_it_is_told_of_those_for_the_topic_of_offsets_once_they_are_taken(
    broker: Broker, topic: str, times: int
) -> None:
    led: list[bool] = []

    def notice_roles() -> None:
        led.extend(one.is_leader for one in broker.replicas.partitions.values())

    groups = SimpleNamespace(notice_roles=notice_roles)
    broker = replace(broker, groups=groups)  # type: ignore[arg-type]
    role = LeaderAndIsrPartitionState(
        partition_index=0,
        controller_epoch=1,
        leader=1,
        leader_epoch=7,
        isr=[1, 2],
        zk_version=3,
        replicas=[1, 2],
    )
    told = LeaderAndIsrTopicState(topic_name=topic, partition_states=[role])
    asked = LeaderAndIsrRequest(
        controller_id=2,
        controller_epoch=1,
        broker_epoch=100,
        topic_states=[told],
        live_leaders=[],
    )
    await control.leader_and_isr(broker, asked, CONTEXT)
    assert led == [True] * times
