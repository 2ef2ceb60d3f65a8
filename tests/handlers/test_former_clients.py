"""Requests of clients that have hung up, read late: as those of their successors may be already."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import cast

from odradek.group.coordinator import GroupCoordinator
from odradek.group.members import JoinResult, JoinSpec
from odradek.handlers import groups, producers
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import JoinGroupRequest
from odradek.protocol.messages.producers import InitProducerIdRequest
from odradek.transaction.coordinator import TransactionCoordinator
from odradek.transaction.decisions import Answer
from odradek.transaction.transaction import ProducerIdAndEpoch

CONNECTED = RequestContext(4, "c", "PLAINTEXT", "h", 2)
HUNG_UP = RequestContext(4, "c", "PLAINTEXT", "h", 1, is_connected=lambda: False)


async def test_a_producer_that_has_hung_up_fences_nobody(broker: Broker) -> None:
    asked: list[str] = []

    async def init_producer_id(transactional_id: str, *_: object) -> Answer:
        asked.append(transactional_id)
        return Answer(ErrorCode.NONE, ProducerIdAndEpoch(7, len(asked)))

    coordinator = SimpleNamespace(init_producer_id=init_producer_id)
    serving = dataclasses.replace(broker, transactions=cast("TransactionCoordinator", coordinator))
    request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000)
    answer = await producers.init_producer_id(serving, request, CONNECTED)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, 1)
    late = await producers.init_producer_id(serving, request, HUNG_UP)
    assert (late.error_code, late.producer_epoch) == (ErrorCode.NETWORK_EXCEPTION, -1)
    assert asked == ["x"]


async def test_a_member_that_has_hung_up_takes_nobodys_place(broker: Broker) -> None:
    asked: list[JoinSpec] = []

    async def join(group_id: str, spec: JoinSpec) -> JoinResult:
        asked.append(spec)
        return JoinResult(ErrorCode.NONE, f"i-{len(asked)}", 1)

    coordinator = cast("GroupCoordinator", SimpleNamespace(join=join))
    serving = dataclasses.replace(broker, groups=coordinator)
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        group_instance_id="i",
        protocol_type="consumer",
        protocols=[],
    )
    answer = await groups.join_group(serving, request, CONNECTED._replace(version=7))
    assert (answer.error_code, answer.member_id) == (ErrorCode.NONE, "i-1")
    late = await groups.join_group(serving, request, HUNG_UP._replace(version=7))
    assert (late.error_code, late.member_id) == (ErrorCode.NETWORK_EXCEPTION, "")
    assert len(asked) == 1
