"""SyncGroup: since version 5 members say which protocol they take the group to have (KIP-559)."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import cast

import pytest

from odradek.group.coordinator import GroupCoordinator
from odradek.group.members import SyncResult
from odradek.handlers import groups
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import SyncGroupRequest


@pytest.mark.parametrize(
    ("version", "protocol_type", "protocol_name", "error"),
    [
        (4, None, None, ErrorCode.NONE),
        (5, "consumer", "range", ErrorCode.NONE),
        (5, None, "range", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (5, "consumer", None, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
async def test_members_name_type_and_name_since_version_5(
    broker: Broker,
    version: int,
    protocol_type: str | None,
    protocol_name: str | None,
    error: ErrorCode,
) -> None:
    async def sync(*_: object) -> SyncResult:
        return SyncResult(ErrorCode.NONE)

    coordinator = cast("GroupCoordinator", SimpleNamespace(sync=sync))
    request = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id="m",
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=[],
    )
    answer = await groups.sync_group(
        dataclasses.replace(broker, groups=coordinator),
        request,
        RequestContext(version, "c", "PLAINTEXT", "h", 1),
    )
    assert answer.error_code == error
