"""Secrets whose password a user changes just while the operator writes them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from odradek_operator.shared import client_users, spec
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.client_users import ClientUserError
from odradek_operator.shared.cluster_access import ClusterAccess
from odradek_operator.shared.kube import KubeError
from odradek_operator.user import secret_step, user_spec
from odradek_operator.user.secret_step import SecretPlan
from tests.reconcile import kills
from tests.reconcile.users import user
from tests.support.apiserver import ApiServer
from tests.support.kubectl import QuickKubectl
from tests.support.memory import context

NAMESPACE = "changed-secrets"


class ReadThenChanged:
    """The operator's client of the real API server. Somebody else does something after a read."""

    def __init__(self, kube: kills.FusedKube) -> None:
        self._kube = kube
        self.meanwhile: Callable[[], None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kube, name)

    def get(self, *path: str) -> dict[str, Any] | None:
        found = self._kube.get(*path)
        act, self.meanwhile = self.meanwhile, None
        if act is not None:
            act()
        return found


class World:
    """A namespace, and the operator's view of it."""

    def __init__(self, api: ApiServer) -> None:
        self._kubectl = QuickKubectl(api.kubectl, api.kubeconfig, NAMESPACE)
        self.kube = ReadThenChanged(kills.client(api.kubeconfig))
        stand_in: Any = self.kube
        self.context: ReconcileContext = context(stand_in)

    def change(self, name: str, password: str) -> None:
        """Give a Secret another password, as a user does."""
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
        self._kubectl.apply({**secret, "stringData": {"password": password}})

    def delete(self, name: str) -> None:
        """Delete a Secret, as a user does who wants another password."""
        self._kubectl("delete", "secret", name)

    def exists(self, name: str) -> bool:
        """Return whether there is such a Secret."""
        return self.kube.get("v1", "Secret", NAMESPACE, name) is not None

    def password(self, name: str) -> str:
        """Return the password in a Secret."""
        return base64.b64decode(self._kubectl.get("secret", name)["data"]["password"]).decode()


def resource(kind: str, name: str, uid: str) -> dict[str, Any]:
    """Return a resource as far as its Secret goes."""
    identity = {"namespace": NAMESPACE, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"}
    body = user(name)
    return {**body, "kind": kind, "metadata": {**body["metadata"], **identity}}


@pytest.fixture(scope="module")
def world(api: ApiServer) -> World:
    api.create_namespace(NAMESPACE)
    return World(api)


def test_password_that_is_changed_meanwhile_stays_the_users_of_the_operator(world: World) -> None:
    access = ClusterAccess("main", "A", "SASL_PLAINTEXT", "SCRAM-SHA-512", False)
    meta = spec.parse_meta(resource("KafkaCluster", "main", "1"))
    client = client_users.of_cluster(meta, "main-operator", "operator", ())
    ensure = partial(client_users.ensure, world.context, None, access, NAMESPACE, client)
    with pytest.raises(ClientUserError, match="ZooKeeper does not answer"):
        ensure()
    world.change("main-operator", "by-hand")
    world.kube.meanwhile = lambda: world.change("main-operator", "another")
    with pytest.raises(KubeError) as raised:
        ensure()
    assert raised.value.code == 409
    assert world.password("main-operator") == "another"


def test_password_that_is_changed_meanwhile_stays_a_users(world: World) -> None:
    body = resource("User", "shop", "2")
    meta, wanted = spec.parse_meta(body), user_spec.parse(body)

    def planned() -> SecretPlan:
        found = secret_step.look(world.context, meta, wanted)
        assert isinstance(found, SecretPlan)
        return found

    assert secret_step.carry_out(world.context, planned())
    world.change("shop", "by-hand")
    world.kube.meanwhile = lambda: world.change("shop", "another")
    late = planned()
    assert late.password == "by-hand"
    assert not secret_step.carry_out(world.context, late)
    assert world.password("shop") == "another"
    assert secret_step.carry_out(world.context, planned())
    assert world.password("shop") == "another"


def test_secret_that_is_deleted_meanwhile_does_not_come_back_with_its_password(
    world: World,
) -> None:
    body = resource("User", "gone", "3")
    meta, wanted = spec.parse_meta(body), user_spec.parse(body)

    def planned() -> SecretPlan:
        found = secret_step.look(world.context, meta, wanted)
        assert isinstance(found, SecretPlan)
        return found

    assert secret_step.carry_out(world.context, planned())
    world.change("gone", "known-to-others")
    late = planned()
    world.delete("gone")
    assert not secret_step.carry_out(world.context, late)
    assert not world.exists("gone")
    assert secret_step.carry_out(world.context, planned())
    assert world.password("gone") != "known-to-others"
