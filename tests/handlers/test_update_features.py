"""UpdateFeatures is refused as by Kafka with a protocol between brokers before 2.7 (KIP-584)."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from odradek.handlers import features, rules
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from odradek.security.acl_watcher import AclWatcher
from odradek.security.acls import (
    CLUSTER_NAME,
    AclEntry,
    AclOperation,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from odradek.security.authorizer import Authorizer
from odradek.values import Principal
from tests.support.replicas import Replicas

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
REQUEST = UpdateFeaturesRequest(
    feature_updates=[FeatureUpdateKey(feature="f", max_version_level=1, allow_downgrade=False)]
)
RULE = rules.on_cluster(AclOperation.ALTER, rules.refuse_features)


def context(principal: Principal) -> RequestContext:
    return RequestContext(0, "c", "PLAINTEXT", "10.0.0.1", 1, lambda: True, principal)


@pytest.mark.parametrize(
    ("is_controller", "code"),
    [(False, ErrorCode.NOT_CONTROLLER), (True, ErrorCode.INVALID_REQUEST)],
)
async def test_features_are_refused_as_a_whole(
    broker: Broker, is_controller: bool, code: ErrorCode
) -> None:
    controller = SimpleNamespace(active=is_controller)
    asked = dataclasses.replace(broker, controller=controller)  # type: ignore[arg-type]
    answer = await features.update_features(asked, REQUEST, context(ALICE))
    assert (answer.error_code, answer.results) == (code, [])
    assert answer.error_message


async def test_who_may_not_alter_the_cluster_is_told_nothing_else(
    broker: Broker, replicas: Replicas
) -> None:
    watcher = AclWatcher(replicas.session)  # type: ignore[arg-type]
    watcher.loaded = True
    alter = AclEntry(ALICE, PermissionType.ALLOW, AclOperation.ALTER)
    watcher.acls.set(ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME), [alter])
    guarded = dataclasses.replace(broker, authorizer=Authorizer(watcher, []))
    found = []
    for principal in (ALICE, BOB):
        answer = await RULE(guarded, REQUEST, context(principal), features.update_features)
        assert isinstance(answer, UpdateFeaturesResponse)
        found.append((answer.error_code, answer.results))
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert found == [(ErrorCode.NOT_CONTROLLER, []), (refused, [])]
