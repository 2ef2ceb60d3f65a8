"""DescribeGroups: one answer a group."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import cast

from odradek.group.coordinator import GroupCoordinator
from odradek.handlers import groups
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import DescribeGroupsRequest

CONTEXT = RequestContext(5, "c", "PLAINTEXT", "h", 1)


async def test_group_named_twice_is_answered_once(broker: Broker) -> None:
    nobody = SimpleNamespace(find=lambda group_id: (ErrorCode.NONE, None))
    serving = dataclasses.replace(broker, groups=cast("GroupCoordinator", nobody))
    request = DescribeGroupsRequest(groups=["one", "two"] * 1000)
    answer = await groups.describe_groups(serving, request, CONTEXT)
    assert [found.group_id for found in answer.groups] == ["one", "two"]


async def test_who_asks_what_is_allowed_hears_of_every_operation(broker: Broker) -> None:
    nobody = SimpleNamespace(find=lambda group_id: (ErrorCode.NONE, None))
    serving = dataclasses.replace(broker, groups=cast("GroupCoordinator", nobody))
    found = []
    for asks in (False, True):
        request = DescribeGroupsRequest(groups=["one"], include_authorized_operations=asks)
        answer = await groups.describe_groups(serving, request, CONTEXT)
        found.append(answer.groups[0].authorized_operations)
    assert found == [-(2**31), 328]
