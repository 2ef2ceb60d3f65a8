"""Who may commit offsets in a transaction: members, producers, and what is refused besides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from odradek.group.coordinator import GroupCoordinator
from odradek.group.members import JoinSpec
from odradek.group.offsets import CommittedOffset
from odradek.log.partition.verification import Verification
from odradek.protocol.errors import ErrorCode
from odradek.values import OFFSETS_TOPIC, TopicPartition
from tests.support.offsets_in_transactions import NOBODY, Coordinating, codes
from tests.support.replicas import Replicas

PRODUCER, OTHER = 7, 8


async def joined(coordinator: GroupCoordinator, instance_id: str | None = None) -> tuple[str, int]:
    """Return the only member of group m, and its generation."""
    spec = JoinSpec(
        "", instance_id, "c", "/h", 10_000, 10_000, "consumer", (("range", b""),), False
    )
    answer = await coordinator.join("m", spec)
    assert answer.error is ErrorCode.NONE
    synced = await coordinator.sync(
        "m", answer.member_id, instance_id, answer.generation, (None, None), {}
    )
    assert synced.error is ErrorCode.NONE
    return answer.member_id, answer.generation


@pytest.fixture
async def with_members(tmp_path: Path) -> AsyncIterator[Coordinating]:
    """A coordinator where the static member of group m has joined."""
    async with Replicas(tmp_path, group_initial_rebalance_delay_ms="0") as built:
        coordinating = Coordinating(built)
        await coordinating.start()
        yield coordinating
        coordinating.coordinator.close()


async def test_members_and_generations_are_checked_as_kafka_does(
    with_members: Coordinating,
) -> None:
    member_id, generation = await joined(with_members.coordinator, "i")
    cases: list[tuple[tuple[str, str | None, int], ErrorCode]] = [
        (NOBODY, ErrorCode.NONE),
        ((member_id, "i", generation), ErrorCode.NONE),
        ((member_id, None, generation), ErrorCode.NONE),
        ((member_id, "unknown", generation), ErrorCode.NONE),
        ((member_id, "i", -1), ErrorCode.NONE),
        (("", None, generation), ErrorCode.NONE),
        (("", "i", -1), ErrorCode.FENCED_INSTANCE_ID),
        (("other", "i", generation + 1), ErrorCode.FENCED_INSTANCE_ID),
        (("other", None, generation + 1), ErrorCode.UNKNOWN_MEMBER_ID),
        ((member_id, "i", generation + 1), ErrorCode.ILLEGAL_GENERATION),
        (("", None, generation - 1), ErrorCode.ILLEGAL_GENERATION),
    ]
    for member, code in cases:
        answer = await with_members.commit_in_transaction(PRODUCER, {0: 2}, "m", member)
        assert answer == codes(0, code=code), member


@pytest.mark.parametrize(
    ("member", "code"),
    [
        (("", None, 0), ErrorCode.NONE),
        (("", None, 1), ErrorCode.ILLEGAL_GENERATION),
        (("gone", None, 1), ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
async def test_group_that_is_not_there_has_no_members_and_generation_0(
    coordinating: Coordinating, member: tuple[str, str | None, int], code: ErrorCode
) -> None:
    answer = await coordinating.commit_in_transaction(PRODUCER, {0: 2}, "new", member)
    assert answer == codes(0, code=code)
    assert ("new" in coordinating.listed()) is (code is ErrorCode.NONE)


async def test_commit_that_names_no_member_is_taken_in_a_rebalance(
    with_members: Coordinating,
) -> None:
    coordinator = with_members.coordinator
    await joined(coordinator)
    spec = JoinSpec("", None, "c", "/h", 10_000, 10_000, "consumer", (("range", b""),), False)
    joining = asyncio.create_task(coordinator.join("m", spec))
    await asyncio.sleep(0)
    assert await with_members.commit_in_transaction(PRODUCER, {0: 2}, "m") == codes(0)
    coordinator.close()
    await joining


async def test_former_epoch_of_a_producer_is_refused(coordinating: Coordinating) -> None:
    await coordinating.commit_in_transaction(PRODUCER, {0: 2}, epoch=3)
    answer = await coordinating.commit_in_transaction(PRODUCER, {0: 5}, epoch=2)
    assert answer == codes(0, code=ErrorCode.INVALID_PRODUCER_EPOCH)
    await coordinating.append_marker(OTHER, commit=True)
    assert coordinating.state() == await coordinating.state_in_log()


@pytest.mark.parametrize(
    ("producer_id", "epoch", "code"),
    [
        (-1, 0, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (PRODUCER, -1, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
async def test_commit_without_a_producer_is_refused(
    coordinating: Coordinating, producer_id: int, epoch: int, code: ErrorCode
) -> None:
    answer = await coordinating.commit_in_transaction(producer_id, {0: 2}, epoch=epoch)
    assert answer == codes(0, code=code)
    assert coordinating.unstable() == set()


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
    ],
)
async def test_errors_of_the_append_are_told_as_kafka_tells_them(
    coordinating: Coordinating, outcome: ErrorCode, code: ErrorCode
) -> None:
    coordinating.appends.failure = outcome
    assert await coordinating.commit_in_transaction(PRODUCER, {0: 2}) == codes(0, code=code)


@pytest.mark.parametrize(
    ("fits", "is_too_large"),
    [
        ("x" * 10, "x" * 11),
        ("\u00e9" * 10, "\u00e9" * 11),
        ("\u20ac" * 10, "\u20ac" * 11),
        ("\U0001f600" * 5, "\U0001f600" * 5 + "x"),
    ],
    ids=["1 byte", "2 bytes", "3 bytes", "two units of UTF-16"],
)
async def test_too_much_metadata_is_refused_by_partition(
    coordinating: Coordinating, fits: str, is_too_large: str
) -> None:
    """Kafka counts as Java does, not the bytes of UTF-8."""
    metadata = (fits, is_too_large)
    commits = {
        TopicPartition("t", index): CommittedOffset(2, text, 0)
        for index, text in enumerate(metadata)
    }
    answer = await coordinating.coordinator.commits.commit_in_transaction(
        "g", NOBODY, (PRODUCER, 0), commits, coordinating.verify
    )
    too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert answer == codes(0) | codes(1, code=too_large)
    assert coordinating.unstable() == {0}


async def test_topic_of_an_old_message_format_has_no_transactions(tmp_path: Path) -> None:
    async with Replicas(tmp_path, log_message_format_version="0.10.2") as replicas:
        old = Coordinating(replicas)
        await old.start()
        answer = await old.commit_in_transaction(PRODUCER, {0: 2})
        assert answer == codes(0, code=ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
        assert await old.commit({0: 2}) == codes(0)
        old.coordinator.close()


async def test_group_without_a_name_commits_in_no_transaction(coordinating: Coordinating) -> None:
    answer = await coordinating.commit_in_transaction(PRODUCER, {0: 2}, group="")
    assert answer == codes(0, code=ErrorCode.INVALID_GROUP_ID)


async def test_broker_that_does_not_coordinate_the_group_refuses(
    coordinating: Coordinating, replicas: Replicas
) -> None:
    await replicas.take(leader=2, replicas=(1, 2), epoch=1, topic=OFFSETS_TOPIC)
    answer = await coordinating.commit_in_transaction(PRODUCER, {0: 2})
    assert answer == codes(0, code=ErrorCode.NOT_COORDINATOR)
    await replicas.lead(topic=OFFSETS_TOPIC, epoch=2)
    answer = await coordinating.commit_in_transaction(PRODUCER, {0: 2})
    assert answer == codes(0, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    await coordinating.loaded()


# --- verification ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
async def test_offset_outside_of_an_ongoing_transaction_is_not_written(
    coordinating: Coordinating, found: ErrorCode, code: ErrorCode
) -> None:
    async def refuse(waiting: Mapping[TopicPartition, Verification]) -> Any:
        return dict.fromkeys(waiting, found)

    trusted, coordinating.verify = coordinating.verify, refuse
    assert await coordinating.commit_in_transaction(PRODUCER, {0: 2}) == codes(0, code=code)
    assert coordinating.unstable() == set()
    coordinating.verify = trusted
    assert await coordinating.commit_in_transaction(PRODUCER, {0: 2}) == codes(0)


async def test_offset_that_waits_while_a_marker_comes_is_late(coordinating: Coordinating) -> None:
    async def answer_late(waiting: Mapping[TopicPartition, Verification]) -> Any:
        await coordinating.append_marker(PRODUCER, commit=True)
        return dict.fromkeys(waiting, ErrorCode.NONE)

    coordinating.verify = answer_late
    late = await coordinating.commit_in_transaction(PRODUCER, {0: 2})
    assert late == codes(0, code=ErrorCode.INVALID_TXN_STATE)
    assert coordinating.unstable() == set()


async def test_leadership_that_is_lost_while_the_coordinator_is_asked_commits_nothing(
    coordinating: Coordinating,
) -> None:
    async def lose(waiting: Mapping[TopicPartition, Verification]) -> Any:
        coordinating.epoch += 1
        await coordinating.replicas.take(
            leader=2, replicas=(1, 2), epoch=coordinating.epoch, topic=OFFSETS_TOPIC
        )
        return dict.fromkeys(waiting, ErrorCode.NONE)

    coordinating.verify = lose
    lost = await coordinating.commit_in_transaction(PRODUCER, {0: 2})
    assert lost == codes(0, code=ErrorCode.NOT_COORDINATOR)
