"""Certificates of Users while the authority that signs them is replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509

from odradek_operator.cluster import own_secrets
from odradek_operator.shared import authorities, certificates
from odradek_operator.shared.authorities import CLIENTS_CA, AuthorityPolicy, AuthorityState
from odradek_operator.shared.certificates import Pair
from odradek_operator.shared.spec import FINALIZER
from odradek_operator.shared.status import condition_of
from odradek_operator.shared.views import ClusterState, Owner
from odradek_operator.user import reconcile as user_reconcile
from odradek_operator.user.plan import UserCluster
from tests.support.memory import MemoryKube, MemoryZooKeeper, context

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
POLICY = AuthorityPolicy(timedelta(days=30), timedelta(0), timedelta(days=90))
A, B = (certificates.make_authority(name, NOW) for name in "AB")


class HastyKube(MemoryKube):
    """Does something just before a Secret is written, once."""

    before_write: Callable[[], None] | None = None

    def create(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        if wanted["kind"] == "Secret" and wanted["metadata"]["name"] == "seen":
            hasty, self.before_write = self.before_write, None
            if hasty is not None:
                hasty()
        return super().create(wanted)

    apply = create


class World:
    """A User `seen` with a certificate, in a cluster whose clients' authority is A."""

    def __init__(self) -> None:
        self.now = NOW
        self.kube = HastyKube(
            {
                "apiVersion": "odradek.io/v1alpha1",
                "kind": "User",
                "metadata": {
                    "name": "seen",
                    "namespace": "n",
                    "uid": "u",
                    "generation": 1,
                    "creationTimestamp": "2026-11-21T11:00:00Z",
                    "finalizers": [FINALIZER],
                },
                "spec": {"clusterRef": {"name": "c"}, "authentication": {"type": "tls"}},
            }
        )
        self.put_authority(A)
        self.state = authorities.first_state(A)
        self.keep(self.state)

    def put_secret(self, name: str, **texts: str) -> None:
        self.kube.create(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": "n"},
                "data": own_secrets.encode(texts),
            }
        )

    def put_authority(self, pair: Pair) -> None:
        """Replace what the Secret holds, as its owner or the operator would."""
        self.present = pair
        self.put_secret("c-clients-ca", **{"ca.crt": pair.certificate, "ca.key": pair.key})

    def keep(self, state: AuthorityState) -> None:
        self.state = state
        self.put_secret("c-authorities", **{f"{CLIENTS_CA}.json": authorities.encode(state)})

    def look_at_cluster(self) -> None:
        """Do what a reconciliation of the KafkaCluster does with an authority of its owner's."""
        self.keep(authorities.next_state(self.state, self.present, POLICY, self.now))

    def replace_at_once(self) -> None:
        """Let B sign from now on."""
        self.put_authority(B)
        self.keep(authorities.first_state(B))

    def look(self) -> tuple[str, str]:
        """Reconcile the User, and return status and reason of Ready."""
        cluster = UserCluster(ClusterState(Owner.PRESENT), frozenset({"tls"}))
        znodes: Any = MemoryZooKeeper()
        user_reconcile.reconcile(
            context(self.kube, now=lambda: self.now), self.body, cluster, znodes
        )
        told = condition_of(self.body["status"], "Ready")
        assert told is not None
        return told["status"], told["reason"]

    @property
    def body(self) -> dict[str, Any]:
        found = self.kube.get("", "User", "n", "seen")
        assert found is not None
        return found

    def is_signed_by(self, authority: Pair) -> bool:
        """Return whether the User's Secret has a certificate by an authority."""
        texts = own_secrets.decode(self.kube.get("v1", "Secret", "n", "seen"))
        if texts.get("ca.crt") != authority.certificate:
            return False
        own = x509.load_pem_x509_certificate(texts["user.crt"].encode())
        own.verify_directly_issued_by(certificates.load(authority.certificate)[0])
        return True


@pytest.fixture
def world() -> World:
    return World()


READY = ("True", "Synced")
PENDING = ("False", "AuthorityPending")


def test_no_certificate_is_signed_before_brokers_trust_the_authority(world: World) -> None:
    world.put_authority(B)
    # Nobody has published B yet; then it is published, and not everybody knows of it.
    assert world.look() == PENDING
    world.look_at_cluster()
    assert world.look() == PENDING
    assert world.kube.get("v1", "Secret", "n", "seen") is None
    world.now += authorities.PROPAGATION
    world.look_at_cluster()
    assert world.look() == READY
    assert world.is_signed_by(B)


def test_certificate_serves_until_the_next_authority_signs(world: World) -> None:
    assert world.look() == READY
    world.put_authority(B)
    assert world.look() == READY
    world.look_at_cluster()
    assert world.look() == READY
    assert world.is_signed_by(A)
    world.now += authorities.PROPAGATION
    world.look_at_cluster()
    assert world.look() == READY
    assert world.is_signed_by(B)


def test_authority_that_signs_is_used_though_its_secret_has_the_former_one(world: World) -> None:
    assert world.look() == READY
    # The operator ended between two writes.
    published = authorities.TrustedAuthority(B.certificate, NOW)
    (former,) = world.state.trusted
    former = replace(former, retired=NOW)
    world.keep(
        replace(
            world.state,
            trusted=(former, published),
            signing=published.certificate,
            following=B,
            generation=1,
        )
    )
    assert world.look() == READY
    assert world.is_signed_by(B)
    signed = world.kube.get("v1", "Secret", "n", "seen")
    world.put_authority(B)
    assert world.look() == READY
    assert world.kube.get("v1", "Secret", "n", "seen") == signed


@pytest.mark.parametrize("is_new", [True, False])
def test_certificate_of_an_authority_that_is_replaced_meanwhile_is_not_ready(
    world: World, is_new: bool
) -> None:
    if not is_new:
        assert world.look() == READY
        world.now += certificates.VALID * 0.9
    world.kube.before_write = world.replace_at_once
    assert world.look() == PENDING
    assert world.is_signed_by(A)
    assert world.look() == READY
    assert world.is_signed_by(B)
