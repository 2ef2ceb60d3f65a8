"""Which partitions commands and the console call under-replicated, and whom they ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.admin import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from odradek.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from odradek.tools.client import ToolClient
from odradek.tools.errors import NothingDoneError, ToolError
from odradek.tools.under_replication import (
    adding_replicas,
    adding_replicas_or_warning,
    under_replicated,
)

NO_CONTROLLER = NothingDoneError("the cluster has no controller")


class FakeToolClient:
    """A cluster of one partition, whose controller answers or fails."""

    def __init__(
        self,
        replicas: Sequence[int],
        isr: Sequence[int],
        answer: ListPartitionReassignmentsResponse | ToolError,
    ) -> None:
        partition = MetadataResponsePartition(
            partition_index=0, leader_id=1, replica_nodes=list(replicas), isr_nodes=list(isr)
        )
        self.topic = MetadataResponseTopic(name="t", partitions=[partition])
        self.answer = answer
        self.asked = 0

    def topics(self) -> list[MetadataResponseTopic]:
        return [self.topic]

    async def call_controller(self, *_: object) -> ListPartitionReassignmentsResponse:
        self.asked += 1
        if isinstance(self.answer, ToolError):
            raise self.answer
        return self.answer

    @property
    def client(self) -> ToolClient:
        return cast("ToolClient", self)


def adding(*replicas: int) -> ListPartitionReassignmentsResponse:
    moving = OngoingPartitionReassignment(
        partition_index=0, replicas=[], adding_replicas=list(replicas), removing_replicas=[]
    )
    return ListPartitionReassignmentsResponse(
        topics=[OngoingTopicReassignment(name="t", partitions=[moving])]
    )


@pytest.mark.parametrize(
    ("replicas", "isr", "added", "is_under"),
    [
        ((1, 2), (1,), (), True),
        ((1, 2), (1,), (2,), False),
        ((3, 1, 2), (1, 2), (3,), False),
        ((3, 1, 2), (1,), (3,), True),
        # Only how many are in sync counts, as in Kafka.
        ((3, 1, 2), (1, 3), (3,), False),
        # The reassignment began after the metadata was read.
        ((1, 2), (1,), (3,), True),
    ],
)
async def test_what_is_added_is_not_missed(
    replicas: tuple[int, ...], isr: tuple[int, ...], added: tuple[int, ...], is_under: bool
) -> None:
    brokers = FakeToolClient(replicas, isr, adding(*added))
    found = under_replicated(brokers.topic, await adding_replicas(brokers.client))
    assert found == (brokers.topic.partitions if is_under else [])


async def test_nobody_is_asked_while_all_are_in_sync() -> None:
    brokers = FakeToolClient((1, 2), (2, 1), NO_CONTROLLER)
    assert await adding_replicas(brokers.client) == {}
    assert brokers.asked == 0


async def test_without_the_right_to_ask_everything_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    refusal = ListPartitionReassignmentsResponse(error_code=code, topics=[])
    assert await adding_replicas_or_warning(FakeToolClient((1, 2), (1,), refusal).client) == {}
    assert capsys.readouterr().err == ""


async def test_silent_controller_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    brokers = FakeToolClient((1, 2), (1,), NO_CONTROLLER)
    with pytest.raises(NothingDoneError):
        await adding_replicas(brokers.client)
    assert await adding_replicas_or_warning(brokers.client) == {}
    assert capsys.readouterr().err == (
        "odradek: warning: the cluster has no controller; replicas that a reassignment adds "
        "count as missing\n"
    )


async def test_other_refusals_are_errors() -> None:
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    refusal = ListPartitionReassignmentsResponse(error_code=code, topics=[])
    with pytest.raises(ToolError, match=r"^the list of reassignments: UNKNOWN_SERVER_ERROR"):
        await adding_replicas(FakeToolClient((1, 2), (1,), refusal).client)
