"""What coordinators hear of roles that the controller gives."""

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
from odradek.values import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition

CONTEXT = RequestContext(
    version=2, client_id="1", listener="PLAINTEXT", host="127.0.0.1", connection_id=1
)


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize(
    ("topic", "who"),
    [(OFFSETS_TOPIC, ["groups"]), (TRANSACTIONS_TOPIC, ["transactions"]), ("orders", [])],
)
async def test_each_is_told_of_those_for_its_topic_once_they_are_taken(
    broker: Broker, topic: str, who: list[str], grouped: bool
) -> None:
    told: list[str] = []

    def coordinator(name: str) -> SimpleNamespace:
        def notice_roles() -> None:
            assert all(one.is_leader for one in broker.replicas.partitions.values())
            told.append(name)

        return SimpleNamespace(notice_roles=notice_roles)

    broker = replace(
        broker,
        groups=coordinator("groups"),  # type: ignore[arg-type]
        transactions=coordinator("transactions"),  # type: ignore[arg-type]
    )
    role = LeaderAndIsrPartitionState(
        topic_name=topic,
        partition_index=0,
        controller_epoch=1,
        leader=1,
        leader_epoch=7,
        isr=[1, 2],
        zk_version=3,
        replicas=[1, 2],
    )
    of_topic = LeaderAndIsrTopicState(topic_name=topic, partition_states=[role])
    asked = LeaderAndIsrRequest(
        controller_id=2,
        controller_epoch=1,
        broker_epoch=100,
        topic_states=[of_topic] if grouped else [],
        ungrouped_partition_states=[] if grouped else [role],
        live_leaders=[],
    )
    await control.leader_and_isr(broker, asked, CONTEXT)
    assert broker.replicas.partitions[TopicPartition(topic, 0)].is_leader
    assert told == who
