"""What commands try again, and for how long."""

from __future__ import annotations

from typing import cast

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import groups
from odradek.protocol.messages import offsets as offset_messages
from odradek.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from odradek.protocol.messages.topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from odradek.protocol.schema import Request, ResponseT
from odradek.tools import retries
from odradek.tools.client import LATEST, ToolClient
from odradek.tools.errors import NothingDoneError, ToolError
from odradek.tools.group_stores import Coordinators
from odradek.tools.produce import LineWriter
from odradek.tools.retries import Retries, call_controller
from odradek.values import TopicPartition

PARTITION = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_PAUSE_S", 0.01)


class Scripted(ToolClient):
    """Broker 1 leads, coordinates and controls; the answers come from a list, errors are raised."""

    def __init__(self, *answers: object) -> None:
        super().__init__([])
        self.nodes = {1: ("unused", 1)}
        self.leaders = {PARTITION: 1}
        self.controller = 1
        self.answers = list(answers)
        self.asked: list[object] = []
        self.looks = 0

    async def connect(self) -> None:
        self.looks += 1

    async def call(self, node: int, request: Request[ResponseT], version: int) -> ResponseT:
        if isinstance(request, groups.FindCoordinatorRequest):
            found = groups.FindCoordinatorResponse(node_id=1, host="unused", port=1)
            return cast("ResponseT", found)
        self.asked.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return cast("ResponseT", answer)


def listed(code: ErrorCode, offset: int = -1) -> offset_messages.ListOffsetsResponse:
    told = offset_messages.ListOffsetsPartitionResponse(
        partition_index=0, error_code=code, offset=offset
    )
    return offset_messages.ListOffsetsResponse(
        topics=[offset_messages.ListOffsetsTopicResponse(name="t", partitions=[told])]
    )


def deleted_group(code: ErrorCode) -> groups.DeleteGroupsResponse:
    result = groups.DeletableGroupResult(group_id="g", error_code=code)
    return groups.DeleteGroupsResponse(results=[result])


def deleted_topic(code: ErrorCode) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(responses=[DeletableTopicResult(name="t", error_code=code)])


def produced(code: ErrorCode) -> ProduceResponse:
    told = PartitionProduceResponse(index=0, error_code=code, base_offset=0)
    return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[told])])


LOST = ToolError("broker 1: the peer closed the connection", 1)
NOT_REACHED = NothingDoneError("broker 1: Connection refused")


@pytest.mark.parametrize(
    "first",
    [
        NOT_REACHED,
        LOST,
        listed(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        listed(ErrorCode.LEADER_NOT_AVAILABLE),
        listed(ErrorCode.REPLICA_NOT_AVAILABLE),
        listed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_offsets_are_asked_for_again_where_the_leader_moves(first: object) -> None:
    for ask in (Retries.every_offset, Retries.offsets_of_led):
        brokers = Scripted(first, listed(ErrorCode.NONE, 7))
        assert await ask(Retries(brokers), [PARTITION], LATEST) == {PARTITION: 7}
        assert brokers.looks == 1


async def test_offsets_that_are_refused_are_not_asked_for_again() -> None:
    brokers = Scripted(listed(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(ToolError, match=r"^t-0: TOPIC_AUTHORIZATION_FAILED$") as failure:
        await Retries(brokers).every_offset([PARTITION], LATEST)
    assert (failure.value.status, brokers.looks) == (2, 0)


async def test_partitions_without_a_leader_are_left_out_where_they_may_be() -> None:
    brokers = Scripted(listed(ErrorCode.NONE, 7))
    brokers.leaders[TopicPartition("t", 1)] = -1
    assert await Retries(brokers).offsets_of_led(list(brokers.leaders), LATEST) == {PARTITION: 7}
    assert brokers.looks == 0


async def test_a_topic_that_is_deleted_ends_the_wait() -> None:
    brokers = Scripted(listed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    brokers.leaders = {}
    with pytest.raises(ToolError, match=r"^topic t does not exist any more$") as failure:
        await Retries(brokers).every_offset([PARTITION], LATEST)
    assert failure.value.status == 1


async def test_a_wait_ends_with_the_last_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(retries, "LONGEST_WAIT_S", 0.5)
    monkeypatch.setattr(retries, "_SILENT_S", 0.0)
    brokers = Scripted(NOT_REACHED, listed(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    with pytest.raises(ToolError, match=r"^t-0 has no leader$") as failure:
        await Retries(brokers).every_offset([PARTITION], LATEST)
    assert failure.value.status == 1
    assert capsys.readouterr().err == f"odradek: {NOT_REACHED}; retrying for up to 0.5 s\n"


async def test_each_wait_is_announced_once_and_a_short_one_never(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = Retries(Scripted(None))
    await waits.wait(LOST)
    await waits.wait(None)
    monkeypatch.setattr(retries, "_SILENT_S", 0.0)
    for _ in range(2):
        for _ in range(3):
            await waits.wait(LOST)
        await waits.wait(None)
    said = capsys.readouterr().err.splitlines()
    assert said == [f"odradek: {LOST}; retrying for up to 30 s"] * 2


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    ],
)
async def test_a_group_is_deleted_once_its_coordinator_is_there(code: ErrorCode) -> None:
    brokers = Scripted(deleted_group(code), deleted_group(ErrorCode.NONE))
    await Coordinators(brokers).delete("g")
    assert len(brokers.asked) == 2


async def test_a_group_that_is_gone_after_a_lost_answer_is_deleted() -> None:
    gone = deleted_group(ErrorCode.GROUP_ID_NOT_FOUND)
    await Coordinators(Scripted(LOST, gone)).delete("g")
    for answers in ([gone], [NOT_REACHED, gone]):
        with pytest.raises(ToolError, match=r"^group g: GROUP_ID_NOT_FOUND$") as failure:
            await Coordinators(Scripted(*answers)).delete("g")
        assert failure.value.status == 2


async def delete_topic(brokers: ToolClient) -> DeleteTopicsResponse:
    request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1)
    return await call_controller(
        brokers, request, 3, lambda answer: [one.error_code for one in answer.responses]
    )


@pytest.mark.parametrize("first", [NOT_REACHED, deleted_topic(ErrorCode.NOT_CONTROLLER)])
async def test_a_change_waits_for_the_controller(first: object) -> None:
    done = deleted_topic(ErrorCode.NONE)
    brokers = Scripted(first, done)
    assert (await delete_topic(brokers), len(brokers.asked)) == (done, 2)


async def test_a_change_that_a_controller_may_have_made_is_not_asked_for_again() -> None:
    brokers = Scripted(LOST)
    with pytest.raises(ToolError) as failure:
        await delete_topic(brokers)
    assert (failure.value, len(brokers.asked)) == (LOST, 1)


@pytest.mark.parametrize(
    "first",
    [
        NOT_REACHED,
        produced(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        produced(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        produced(ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
async def test_lines_that_nobody_took_are_sent_again(first: object) -> None:
    brokers = Scripted(first, produced(ErrorCode.NONE))
    writer = LineWriter(brokers, "t", None)
    await writer.write([(None, b"a"), (None, b"b")])
    assert (writer.acknowledged, len(brokers.asked)) == (2, 2)


async def test_lines_are_sent_again_without_those_that_are_acknowledged() -> None:
    brokers = Scripted(
        produced(ErrorCode.MESSAGE_TOO_LARGE),
        produced(ErrorCode.NONE),
        produced(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        produced(ErrorCode.NONE),
    )
    writer = LineWriter(brokers, "t", None)
    await writer.write([(None, b"a"), (None, b"b"), (None, b"c")])
    assert writer.acknowledged == 3
    sizes = [
        len(bytes(one.topic_data[0].partition_data[0].records or b""))
        for one in brokers.asked
        if isinstance(one, ProduceRequest)
    ]
    whole, first, rest, again = sizes
    assert first < rest == again < whole


async def test_lines_that_somebody_may_have_are_not_sent_again() -> None:
    brokers = Scripted(LOST)
    writer = LineWriter(brokers, "t", None)
    with pytest.raises(ToolError) as failure:
        await writer.write([(None, b"a")])
    assert (failure.value, writer.acknowledged, len(brokers.asked)) == (LOST, 0, 1)
