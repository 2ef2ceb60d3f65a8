"""DescribeGroups: one answer a group."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import cast

import pytest

from odradek.group.coordinator import GroupCoordinator
from odradek.handlers import groups
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest

CONTEXT = RequestContext(5, "c", "PLAINTEXT", "h", 1)


async def test_group_named_twice_is_answered_once(broker: Broker) -> None:
    nobody = SimpleNamespace(find=lambda group_id: (ErrorCode.NONE, None))
    serving = dataclasses.replace(broker, groups=cast("GroupCoordinator", nobody))
    request = DescribeGroupsRequest(groups=["one", "two"] * 1000)
    answer = await groups.describe_groups(serving, request, CONTEXT)
    assert [found.group_id for found in answer.groups] == ["one", "two"]


@pytest.mark.parametrize("deleting", [False, True])
async def test_other_requests_run_between_the_groups(broker: Broker, deleting: bool) -> None:
    events: list[str] = []

    def find(group_id: str) -> tuple[ErrorCode, None]:
        events.append(group_id)
        return ErrorCode.NONE, None

    async def delete_group(group_id: str) -> ErrorCode:
        return find(group_id)[0]

    async def others() -> None:
        for _ in range(3):
            events.append("other")
            await asyncio.sleep(0)

    known = SimpleNamespace(find=find, deletion=SimpleNamespace(delete_group=delete_group))
    serving = dataclasses.replace(broker, groups=cast("GroupCoordinator", known))
    ids = ["one", "two", "three"]
    handling: Coroutine[object, object, object] = (
        groups.delete_groups(serving, DeleteGroupsRequest(groups_names=ids), CONTEXT)
        if deleting
        else groups.describe_groups(serving, DescribeGroupsRequest(groups=ids), CONTEXT)
    )
    await asyncio.gather(handling, others())
    assert events == ["one", "other", "two", "other", "three", "other"]


async def test_who_asks_what_is_allowed_hears_of_every_operation(broker: Broker) -> None:
    nobody = SimpleNamespace(find=lambda group_id: (ErrorCode.NONE, None))
    serving = dataclasses.replace(broker, groups=cast("GroupCoordinator", nobody))
    found = []
    for asks in (False, True):
        request = DescribeGroupsRequest(groups=["one"], include_authorized_operations=asks)
        answer = await groups.describe_groups(serving, request, CONTEXT)
        found.append(answer.groups[0].authorized_operations)
    assert found == [-(2**31), 328]
