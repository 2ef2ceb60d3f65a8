"""What the API server refuses of Users: nobody can write one that could never work."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.reconcile.test_crds import change
from tests.support import objects
from tests.support.apiserver import ApiServer
from tests.support.kubectl import Kubectl

USER: dict[str, Any] = {
    "apiVersion": "odradek.io/v1alpha1",
    "kind": "User",
    "metadata": {"name": "u"},
    "spec": {
        "clusterRef": {"name": "c"},
        "authentication": {
            "type": "scram-sha-512",
            "password": {"valueFrom": {"secretKeyRef": {"name": "s", "key": "password"}}},
        },
        "authorization": {
            "acls": [
                {"resource": {"type": "topic", "name": "t"}, "operations": ["Read", "Write"]},
                {
                    "resource": {"type": "group", "name": "app-", "patternType": "prefix"},
                    "operations": ["All"],
                    "host": "10.0.0.1",
                    "type": "deny",
                },
                {"resource": {"type": "cluster"}, "operations": ["IdempotentWrite"]},
            ]
        },
        "quotas": {"producerByteRate": 1, "requestPercentage": 0.5},
    },
}
CERTIFIED = change(USER, "spec/authentication", {"type": "tls"})


@pytest.fixture(scope="module")
def kubectl(api: ApiServer) -> Kubectl:
    api.create_namespace("user-crd")
    space = Kubectl(api.kubectl, api.kubeconfig, "user-crd")
    space.apply(USER, change(CERTIFIED, "metadata/name", "v"))
    return space


def create(kubectl: Kubectl, body: dict[str, Any]) -> None:
    objects.client(kubectl.kubeconfig).create(kubectl.namespace, body)


def password_of(secret: str) -> dict[str, Any]:
    return {"valueFrom": {"secretKeyRef": {"name": secret, "key": "password"}}}


def acl(type_: str = "topic", name: str | None = "t", **fields: Any) -> list[dict[str, Any]]:
    resource = {"type": type_, "name": name} if name is not None else {"type": type_}
    resource |= fields.pop("resource", {})
    return [{"resource": resource, "operations": ["Describe"], **fields}]


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("metadata/name", "odradek-broker", "are those of brokers and of the operator"),
        ("spec/authentication/type", "plain", "supported values"),
        ("spec/authentication/type", "tls", "a password goes with scram"),
        ("spec/authentication/password", {"value": "secret"}, "unknown field"),
        ("spec/authentication/password", password_of("../../other/secrets/s"), "should match"),
        ("spec/authentication/password", password_of("S"), "should match"),
        ("spec/deletionPolicy", "Protect", "supported values"),
        ("spec/quotas", {"producerByteRate": 0}, "greater than or equal to 1"),
        ("spec/quotas", {"consumerByteRate": -5}, "greater than or equal to 1"),
        ("spec/quotas", {"consumerByteRate": 2**63}, "consumerByteRate"),
        ("spec/quotas", {"consumerByteRate": 10**400}, "is invalid|cannot|unable|BadRequest"),
        ("spec/quotas", {"producerByteRate": 1.5}, "must be of type integer"),
        ("spec/quotas", {"requestPercentage": 0}, "greater than 0"),
        ("spec/quotas", {"requestPercentage": "55"}, "must be of type number"),
        ("spec/quotas", {"controllerMutationRate": -0.5}, "greater than 0"),
        ("spec/authorization", {"type": "opa", "acls": []}, "supported values"),
        ("spec/authorization/acls", acl("delegationToken"), "supported values"),
        ("spec/authorization/acls", acl(name=None), "needs a name"),
        ("spec/authorization/acls", acl(name=""), "at least 1 chars"),
        ("spec/authorization/acls", acl("group", "a/b"), "should match"),
        ("spec/authorization/acls", acl("group", "a\nb"), "should match"),
        ("spec/authorization/acls", acl("group", "a\u0080b"), "should match"),
        ("spec/authorization/acls", acl("group", "a\ue000b"), "should match"),
        ("spec/authorization/acls", acl("group", ".."), "ZooKeeper cannot keep"),
        ("spec/authorization/acls", acl("topic", "a b"), "ASCII letters"),
        ("spec/authorization/acls", acl("topic", "x" * 250), "ASCII letters"),
        ("spec/authorization/acls", acl("cluster", "main"), "the cluster has one name"),
        (
            "spec/authorization/acls",
            acl("cluster", None, resource={"patternType": "prefix"}),
            "has no prefix",
        ),
        (
            "spec/authorization/acls",
            acl(name="*", resource={"patternType": "prefix"}),
            "with patternType literal only",
        ),
        ("spec/authorization/acls", acl(resource={"patternType": "match"}), "supported values"),
        ("spec/authorization/acls", acl(operations=[]), "at least 1 items"),
        ("spec/authorization/acls", acl(operations=["Read", "Read"]), "Duplicate value"),
        ("spec/authorization/acls", acl(operations=["read"]), "supported values"),
        ("spec/authorization/acls", acl(operations=["ClusterAction"]), "operations on a topic are"),
        ("spec/authorization/acls", acl("group", operations=["Write"]), "operations on a group"),
        (
            "spec/authorization/acls",
            acl("cluster", None, operations=["Read"]),
            "operations on the cluster",
        ),
        (
            "spec/authorization/acls",
            acl("transactionalId", operations=["Read"]),
            "operations on a transactionalId",
        ),
        ("spec/authorization/acls", acl(host="example.org"), "should match"),
        ("spec/authorization/acls", acl(host=""), "at least 1 chars"),
        ("spec/authorization/acls", acl(type="maybe"), "supported values"),
        ("spec/authorization/acls", acl() * 201, "at most 200 items"),
    ],
)
def test_nonsense_is_refused_at_creation(kubectl: Kubectl, path: str, value: Any, why: str) -> None:
    fresh = change(change(USER, "metadata/name", "fresh"), path, value)
    with pytest.raises(objects.ApiError, match=why):
        create(kubectl, fresh)


@pytest.mark.parametrize(
    "acls",
    [
        acl("group", "Größe: 1 %"),
        acl("group", "x" * 255),
        acl(name="*"),
        acl("cluster", "kafka-cluster"),
        acl(host="0:0:0:0:0:0:0:1"),
    ],
)
def test_what_kafka_takes_is_taken(kubectl: Kubectl, acls: list[dict[str, Any]]) -> None:
    body = change(change(USER, "metadata/name", "taken"), "spec/authorization/acls", acls)
    kubectl.apply(body)


def test_common_name_has_its_limit(kubectl: Kubectl) -> None:
    with pytest.raises(objects.ApiError, match="at most 64 characters"):
        create(kubectl, change(CERTIFIED, "metadata/name", "x" * 65))
    create(kubectl, change(CERTIFIED, "metadata/name", "x" * 64))


def test_cluster_and_kind_of_authentication_are_immutable(kubectl: Kubectl) -> None:
    client = objects.client(kubectl.kubeconfig)
    with pytest.raises(objects.ApiError, match="clusterRef is immutable"):
        client.apply(kubectl.namespace, change(USER, "spec/clusterRef/name", "other"))
    changed = change(CERTIFIED, "metadata/name", "v")
    with pytest.raises(objects.ApiError, match="may change between"):
        client.apply(kubectl.namespace, change(changed, "spec/authentication/type", "tls-external"))
    client.apply(kubectl.namespace, change(USER, "spec/authentication/type", "scram-sha-256"))


def test_most_acls_that_a_user_can_have_are_taken(kubectl: Kubectl) -> None:
    one = acl("topic", "x" * 249, operations=["Read", "Write", "Create", "Delete", "Alter"])
    body = change(USER, "metadata/name", "much")
    kubectl.apply(change(body, "spec/authorization/acls", copy.deepcopy(one * 200)))


def test_columns_tell_what_a_user_is(kubectl: Kubectl) -> None:
    header = kubectl("get", "ku").splitlines()[0].split()
    wanted = "NAME CLUSTER AUTHENTICATION USERNAME SECRET EFFECTIVE READY AGE"
    assert header == wanted.split()
    assert kubectl.get("ku", "u")["spec"]["authorization"]["acls"][0] == {
        "resource": {"type": "topic", "name": "t", "patternType": "literal"},
        "operations": ["Read", "Write"],
        "host": "*",
        "type": "allow",
    }
