"""Requests of delegation tokens are refused with the codes of a Kafka broker without a secret."""

from __future__ import annotations

import dataclasses

import pytest

from odradek import slices
from odradek.handlers import delegation_tokens
from odradek.handlers.context import Broker, RequestContext
from odradek.listeners import ListenerEndpoint
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.delegation_tokens import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from odradek.values import ANONYMOUS, Principal
from tests.handlers.large_requests import MANY, Turns

ALICE = Principal("User", "alice")
NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
DISABLED = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
BOB = CreatableRenewers(principal_type="User", principal_name="bob")
READERS = CreatableRenewers(principal_type="Group", principal_name="readers")
OWNERS: list[list[DescribeDelegationTokenOwner] | None] = [
    None,
    [],
    [DescribeDelegationTokenOwner(principal_type="User", principal_name="alice")],
]


@pytest.fixture
def listening(broker: Broker) -> Broker:
    """The broker with a listener of each security protocol, which has its name."""
    protocols = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
    listeners = tuple(ListenerEndpoint(one, one, "", 9092 + at) for at, one in enumerate(protocols))
    return dataclasses.replace(
        broker, config=dataclasses.replace(broker.config, listeners=listeners)
    )


def context(listener: str, principal: Principal = ALICE) -> RequestContext:
    return RequestContext(2, "c", listener, "h", 1, lambda: True, principal)


async def create(
    broker: Broker, asked: RequestContext, *renewers: CreatableRenewers
) -> CreateDelegationTokenResponse:
    request = CreateDelegationTokenRequest(renewers=list(renewers), max_lifetime_ms=-1)
    return await delegation_tokens.create_token(broker, request, asked)


@pytest.mark.parametrize(
    ("listener", "principal", "code"),
    [
        ("PLAINTEXT", ANONYMOUS, NOT_ALLOWED),
        ("SSL", ANONYMOUS, NOT_ALLOWED),
        ("SSL", ALICE, DISABLED),
        ("SASL_PLAINTEXT", ALICE, DISABLED),
        ("SASL_SSL", ALICE, DISABLED),
    ],
)
async def test_tokens_may_be_asked_for_only_by_who_authenticated_and_there_are_none(
    listening: Broker, listener: str, principal: Principal, code: ErrorCode
) -> None:
    asked = context(listener, principal)
    assert await create(listening, asked, BOB) == CreateDelegationTokenResponse(
        error_code=code,
        principal_type="User",
        principal_name=principal.name,
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
        token_id="",
        hmac=b"",
    )
    renewal = RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=1)
    renewed = await delegation_tokens.renew_token(listening, renewal, asked)
    assert renewed == RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=-1)
    end = ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=-1)
    ended = await delegation_tokens.expire_token(listening, end, asked)
    assert ended == ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=-1)
    for owners in OWNERS:
        question = DescribeDelegationTokenRequest(owners=owners)
        described = await delegation_tokens.describe_tokens(listening, question, asked)
        assert described == DescribeDelegationTokenResponse(error_code=code, tokens=[])


async def test_renewers_are_looked_at_between_the_listener_and_the_secret(
    listening: Broker,
) -> None:
    refused = await create(listening, context("SASL_SSL"), BOB, READERS)
    assert refused.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
    assert (await create(listening, context("PLAINTEXT"), READERS)).error_code == NOT_ALLOWED


async def test_others_run_while_many_renewers_are_looked_at(
    listening: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "KEYS_AT_ONCE", MANY // 5)
    turns = Turns()
    await turns.during(create(listening, context("SASL_SSL"), *[BOB] * MANY))
    assert turns.count >= 3
