"""Who may create, grow and delete topics, on the controller and on brokers that become it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from odradek.handlers import topic_rules
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from odradek.security.acl_watcher import AclWatcher
from odradek.security.acls import (
    AclEntry,
    AclOperation,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from odradek.security.authorizer import Authorizer
from odradek.values import Principal
from tests.support.replicas import Replicas

ALICE = Principal("User", "alice")
MINE, THEIRS = "mine", "theirs"
CONTEXT = RequestContext(5, "c", "PLAINTEXT", "10.0.0.1", 1, lambda: True, ALICE)


def creation(*names: str) -> CreateTopicsRequest:
    topics = [
        CreatableTopic(
            name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        for name in names
    ]
    return CreateTopicsRequest(topics=topics)


def growth(*names: str) -> CreatePartitionsRequest:
    topics = [CreatePartitionsTopic(name=name, count=2) for name in names]
    return CreatePartitionsRequest(topics=topics, timeout_ms=0)


def deletion(*names: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topic_names=[*names], timeout_ms=0)


@pytest.fixture
def office() -> SimpleNamespace:
    """What a broker knows of its own election."""
    return SimpleNamespace(active=False)


@pytest.fixture
def guarded(broker: Broker, replicas: Replicas, office: SimpleNamespace) -> Broker:
    """A broker where Alice may do everything to one topic."""
    watcher = AclWatcher(replicas.session)  # type: ignore[arg-type]
    watcher.loaded = True
    entry = AclEntry(ALICE, PermissionType.ALLOW, AclOperation.ALL)
    watcher.acls.set(ResourcePattern(ResourceType.TOPIC, MINE), [entry])
    return dataclasses.replace(
        broker,
        authorizer=Authorizer(watcher, []),
        controller=office,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("was_active", [True, False])
@pytest.mark.parametrize(
    ("rule", "request_", "named", "empty", "outcomes"),
    [
        (
            topic_rules.create_topics,
            creation(MINE, THEIRS),
            lambda request: [one.name for one in request.topics],
            lambda: CreateTopicsResponse(topics=[]),
            lambda answer: answer.topics,
        ),
        (
            topic_rules.create_partitions,
            growth(MINE, THEIRS),
            lambda request: [one.name for one in request.topics],
            lambda: CreatePartitionsResponse(results=[]),
            lambda answer: answer.results,
        ),
        (
            topic_rules.delete_topics,
            deletion(MINE, THEIRS),
            lambda request: request.topic_names,
            lambda: DeleteTopicsResponse(responses=[]),
            lambda answer: answer.responses,
        ),
    ],
    ids=["create", "grow", "delete"],
)
async def test_broker_that_becomes_the_controller_changes_nothing_without_a_right(
    guarded: Broker,
    office: SimpleNamespace,
    rule: Callable[..., Any],
    request_: object,
    named: Callable[[Any], list[str]],
    empty: Callable[[], object],
    outcomes: Callable[[Any], list[Any]],
    was_active: bool,
) -> None:
    """A request of many topics waits between them, and elections wait for nobody."""
    office.active = was_active
    changed: list[str] = []

    async def handle(broker: Broker, request: object, context: RequestContext) -> object:
        office.active = True
        changed.extend(named(request))
        return empty()

    answer = await rule(guarded, request_, CONTEXT, handle)
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    code = denied if was_active else ErrorCode.NOT_CONTROLLER
    assert changed == [MINE]
    assert [(one.name, one.error_code) for one in outcomes(answer)] == [(THEIRS, code)]
