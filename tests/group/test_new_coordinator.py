"""A broker that has just become leader of a partition of `__consumer_offsets`."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from odradek import config_loading
from odradek.group.coordinator import GroupCoordinator
from odradek.group.members import JoinSpec
from odradek.handlers.groups import leave_group
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import groups as messages
from odradek.values import OFFSETS_TOPIC, TopicPartition
from tests.group.test_commit_order import run_ready_callbacks

KEY = TopicPartition(OFFSETS_TOPIC, 0)
LED = SimpleNamespace(
    key=KEY,
    offline=False,
    is_leader=True,
    leadership_generation=0,
    log=SimpleNamespace(log_start_offset=0, log_end_offset=0),
)
NEWCOMER = JoinSpec(
    member_id="",
    instance_id=None,
    client_id="c",
    client_host="/127.0.0.1",
    session_timeout_ms=30_000,
    rebalance_timeout_ms=30_000,
    protocol_type="consumer",
    protocols=(("range", b""),),
    requires_known_id=True,
)


class UnreadPartitionCount:
    """`__consumer_offsets` has one partition, which is known once it is read."""

    count: int | None = None

    def __call__(self) -> int | None:
        return self.count

    async def learn(self) -> None:
        await asyncio.sleep(0)
        self.count = 1


def new_coordinator() -> GroupCoordinator:
    config, _ = config_loading.from_values({"broker.id": "1", "zookeeper.connect": "unused"})
    return GroupCoordinator(
        config,
        SimpleNamespace(partitions={KEY: LED}),
        UnreadPartitionCount(),  # type: ignore[arg-type]
        lambda _: True,
    )


async def test_joins_fail_with_not_coordinator_until_the_leadership_is_known() -> None:
    """With COORDINATOR_NOT_AVAILABLE instead, as Kafka never answers here, clients give up."""
    coordinator = new_coordinator()
    early = await coordinator.join("g", NEWCOMER)
    assert early.error is ErrorCode.NOT_COORDINATOR
    coordinator.notice_roles()
    await run_ready_callbacks()
    assert (await coordinator.join("g", NEWCOMER)).error is ErrorCode.MEMBER_ID_REQUIRED
    coordinator.close()


async def test_members_that_ask_for_their_share_while_groups_are_loaded_join_again() -> None:
    """Java's consumers end upon COORDINATOR_LOAD_IN_PROGRESS in an answer to SyncGroup."""
    coordinator = new_coordinator()
    await coordinator.partition_count.learn()
    assert coordinator.find("g")[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    synced = await coordinator.sync("g", "m", None, 1, (None, None), {})
    assert synced.error is ErrorCode.REBALANCE_IN_PROGRESS
    await run_ready_callbacks()
    coordinator.close()


async def test_members_that_leave_an_unknown_group_get_unknown_member_id() -> None:
    coordinator = new_coordinator()
    await coordinator.partition_count.learn()
    async with asyncio.timeout(30):
        while coordinator.find("g")[0] is not ErrorCode.NONE:
            await asyncio.sleep(0)
    broker = SimpleNamespace(groups=coordinator)
    old = messages.LeaveGroupRequest(group_id="g", member_id="m")
    answer = await leave_group(broker, old, SimpleNamespace(version=2))  # type: ignore[arg-type]
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    members = [
        messages.MemberIdentity(member_id="m", group_instance_id=None),
        messages.MemberIdentity(member_id="", group_instance_id="i"),
    ]
    new = messages.LeaveGroupRequest(group_id="g", members=members)
    answer = await leave_group(broker, new, SimpleNamespace(version=3))  # type: ignore[arg-type]
    assert answer.error_code == ErrorCode.NONE
    assert [
        (each.member_id, each.group_instance_id, each.error_code) for each in answer.members
    ] == [
        ("m", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", "i", ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    coordinator.close()
