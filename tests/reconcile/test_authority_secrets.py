"""A renewal of authorities, as Secrets, status and jobs see it, at virtual times."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from odradek_operator.cluster import reconcile
from odradek_operator.shared import certificates, cluster_secrets, cluster_spec
from odradek_operator.shared.certificates import Pair
from odradek_operator.user import secret_step, user_spec
from odradek_operator.user.secret_step import SecretPlan
from tests.reconcile.in_memory import cluster
from tests.reconcile.test_secured_secrets import NOW, secret, text
from tests.reconcile.test_user_planning import META, admitted
from tests.support.memory import MemoryKube, MemoryPool, MemoryZooKeeper, context

SCRAM = {"type": "scram-sha-512"}
INTERNAL = {"name": "internal", "port": 9093, "tls": True, "authentication": SCRAM}
EXTERNAL = {"name": "external", "port": 9094, "tls": True, "authentication": {"type": "tls"}}
DAY = timedelta(days=1)


class Cluster:
    """A KafkaCluster with an operator, whose clock is `now`."""

    def __init__(self, *others: dict[str, Any], **wanted: Any) -> None:
        body = cluster(listeners=[INTERNAL, EXTERNAL], **wanted)
        self.meta = body["metadata"]
        self.kube = MemoryKube(body, *others)
        self.now: datetime = NOW
        pool = MemoryPool({"zk:2181": MemoryZooKeeper()})
        self.effects = context(self.kube, pool, now=lambda: self.now)

    def look(self, days: float = 0, **notes: str) -> None:
        """Let time pass, and do one pass."""
        self.now += days * DAY
        body = self.kube.get("", "KafkaCluster", "n", self.meta["name"])
        assert body is not None
        named = {f"odradek.io/renew-{key.replace('_', '-')}": one for key, one in notes.items()}
        annotated = {**body, "metadata": {**body["metadata"], "annotations": named}}
        self.kube.create(annotated)
        reconcile.reconcile(self.effects, annotated, None)

    def text(self, name: str, key: str) -> str:
        return text(self.kube, f"{self.meta['name']}-{name}", key)

    def count(self, name: str, key: str) -> int:
        return self.text(name, key).count("BEGIN CERTIFICATE")

    def issued_by(self, name: str, key: str, authority: str) -> bool:
        own = certificates.load(self.text(name, key))[0]
        return own.issuer == certificates.load(authority)[0].subject

    def condition(self, kind: str) -> dict[str, Any]:
        shown = self.kube.statuses[-1]["conditions"]
        return next((one for one in shown if one["type"] == kind), {})

    def told(self) -> list[str]:
        return [one.reason for one in self.kube.told if one.reason.startswith("Authority")]


def test_everybody_trusts_the_next_authority_before_it_signs() -> None:
    one = Cluster()
    one.look()
    assert one.condition("CertificateAuthorities") == {}
    first = one.text("cluster-ca", "ca.crt")
    key = one.text("cluster-ca", "ca.key")
    # Ten years, less sixty days.
    one.look(3591)
    assert one.condition("CertificateAuthorities")["reason"] == "Renewing"
    for name, file in (
        ("cluster-ca-cert", "ca.crt"),
        ("brokers", "internal-trust.pem"),
        ("clients-ca-cert", "ca.crt"),
    ):
        assert one.count(name, file) == 2, name
    # Those of clients, and of brokers.
    assert one.count("brokers", "external-trust.pem") == 4
    assert one.text("cluster-ca", "ca.key") == key
    assert one.issued_by("brokers", "broker.pem", first)
    one.look(31)
    assert one.text("cluster-ca", "ca.key") != key
    following = one.text("cluster-ca", "ca.crt")
    assert one.issued_by("brokers", "broker.pem", following)
    assert not one.issued_by("brokers", "broker.pem", first)
    assert one.issued_by("operator", "user.crt", one.text("clients-ca", "ca.crt"))
    assert one.text("cluster-ca-cert", "ca.crt").startswith(following)
    one.look(2)
    assert one.text("cluster-ca-cert", "ca.crt") == following
    assert one.condition("CertificateAuthorities") == {}
    # Users may show a certificate by the former one for as long as it is valid.
    assert one.count("clients-ca-cert", "ca.crt") == 2
    one.look(91)
    assert one.count("clients-ca-cert", "ca.crt") == 1
    status = one.kube.statuses[-1]["authorities"]
    assert [(found["name"], found["generation"]) for found in status] == [
        ("cluster-ca", 1),
        ("clients-ca", 1),
    ]
    assert sorted(one.told()) == [
        *["AuthorityDropped"] * 2,
        *["AuthorityPublished"] * 2,
        *["AuthoritySigns"] * 2,
    ]
    keys = [line for line in one.text("cluster-ca", "ca.key").splitlines() if "-" not in line]
    shown = repr(one.kube.statuses) + repr(one.kube.told)
    assert not any(line in shown for line in keys)


def test_lives_of_authorities_are_fields_of_the_spec() -> None:
    one = Cluster(clusterCa={"validityDays": 30, "renewalDays": 14})
    one.look()
    own = certificates.load(one.text("cluster-ca", "ca.crt"))[0]
    assert timedelta(days=30) <= own.not_valid_after_utc - NOW < timedelta(days=31)
    one.look(17)
    assert one.count("cluster-ca-cert", "ca.crt") == 2
    assert one.count("clients-ca-cert", "ca.crt") == 1


def test_request_renews_one_authority_at_once() -> None:
    one = Cluster()
    one.look()
    one.look(clients_ca="begin")
    assert one.count("clients-ca-cert", "ca.crt") == 2
    assert one.count("cluster-ca-cert", "ca.crt") == 1
    one.look(1 / 24, clients_ca="begin")
    assert one.told() == ["AuthorityPublished", "AuthoritySigns"]


def test_certificates_are_renewed_while_a_service_is_refused() -> None:
    service = {"kind": "Service", "metadata": {"name": "c-external-bootstrap", "namespace": "n"}}
    one = Cluster(service)
    body = one.kube.get("", "KafkaCluster", "n", "c")
    assert body is not None
    exposed = {**EXTERNAL, "authentication": SCRAM, "expose": {"type": "NodePort"}}
    one.kube.create({**body, "spec": {**body["spec"], "listeners": [INTERNAL, exposed]}})
    one.look()
    assert one.condition("Ready")["reason"] == "ServiceConflict"
    before = one.text("brokers", "broker.pem")
    one.look(61)
    assert one.condition("Ready")["reason"] == "ServiceConflict"
    assert one.text("brokers", "broker.pem") != before


def test_authority_of_the_users_that_ends_is_told_in_time_and_never_written() -> None:
    mine = certificates.make_authority("mine", NOW, timedelta(days=100))
    given = secret("c-cluster-ca", None, **{"ca.crt": mine.certificate, "ca.key": mine.key})
    one = Cluster(given)
    one.look()
    one.look(41)
    ends = one.condition("CertificateAuthorities")
    assert (ends["status"], ends["reason"]) == ("False", "AuthorityEnds")
    assert one.text("cluster-ca", "ca.crt") == mine.certificate
    other = certificates.make_authority("other", one.now)
    one.kube.create(
        secret("c-cluster-ca", None, **{"ca.crt": other.certificate, "ca.key": other.key})
    )
    one.look()
    assert one.condition("CertificateAuthorities")["reason"] == "Renewing"
    assert one.issued_by("brokers", "broker.pem", mine.certificate)
    one.look(31)
    assert one.issued_by("brokers", "broker.pem", other.certificate)
    assert one.text("cluster-ca", "ca.crt") == other.certificate


@pytest.mark.parametrize("own", [True, False], ids=["own", "theirs"])
def test_user_gets_a_certificate_by_the_authority_that_signs(own: bool) -> None:
    wanted = user_spec.parse(admitted("u", "tls"))
    first = certificates.make_authority("first", NOW)
    given = secret("c-clients-ca", None, **{"ca.crt": first.certificate, "ca.key": first.key})
    one = Cluster(*(() if own else (given,)))
    meta = replace(META, namespace="n")
    wanted = replace(wanted, cluster="c")

    def user() -> Pair:
        planned = secret_step.look(one.effects, meta, wanted)
        assert isinstance(planned, SecretPlan)
        if planned.wanted is not None:
            one.kube.create(planned.wanted)
        found = one.kube.get("v1", "Secret", "n", meta.name)
        assert found is not None
        data = {key: base64.b64decode(text) for key, text in found["data"].items()}
        return Pair(
            data[cluster_secrets.USER_CERTIFICATE].decode(),
            data[cluster_secrets.USER_KEY].decode(),
        )

    one.look()
    before = user()
    if own:
        one.look(clients_ca="begin")
    else:
        other = certificates.make_authority("other", one.now)
        one.kube.create(
            secret("c-clients-ca", None, **{"ca.crt": other.certificate, "ca.key": other.key})
        )
        one.look()
    # Brokers do not trust the next one yet.
    assert user() == before
    one.look(1 / 24)
    after = user()
    assert after != before
    assert user() == after
    issuer = certificates.load(one.text("clients-ca", "ca.crt"))[0]
    certificates.load(after.certificate)[0].verify_directly_issued_by(issuer)


def test_spec_without_these_fields_has_the_defaults() -> None:
    wanted = cluster_spec.parse_cluster(cluster())
    assert (wanted.cluster_ca.validity_days, wanted.cluster_ca.renewal_days) == (3650, 60)
