"""AlterUserScramCredentials: what ZooKeeper refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from kazoo.exceptions import NoNodeError

from odradek.controller.loop import Controller
from odradek.handlers.context import Broker, RequestContext
from odradek.handlers.user_credentials import alter_user_scram_credentials
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.sasl import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from odradek.zk.operations import Operation, TransactionFailedError
from tests.support.replicas import Replicas

CONTEXT = RequestContext(0, "c", "PLAINTEXT", "h", 1)


async def test_a_parent_that_is_missing_is_told_and_not_tried_for_ever(
    broker: Broker, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Operation] = []

    async def multi(operations: Sequence[Operation]) -> None:
        tried.append(operations[0])
        assert len(tried) < 3
        raise TransactionFailedError(operations[0], 0, NoNodeError())

    monkeypatch.setattr(replicas.session, "multi", multi, raising=False)
    controller = cast("Controller", SimpleNamespace(active=True))
    made = ScramCredentialUpsertion(
        name="alice", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"salted"
    )
    request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[made])
    serving = dataclasses.replace(broker, controller=controller)
    [answer] = (await alter_user_scram_credentials(serving, request, CONTEXT)).results
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert len(tried) == 1
