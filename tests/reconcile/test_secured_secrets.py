"""What a KafkaCluster with listeners makes of Secrets that are not as it left them: in memory."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError

from odradek.zk.operations import Operation, TransactionFailedError
from odradek_operator.cluster import reconcile, secured
from odradek_operator.cluster.listener_plan import ListenerStep, wanted_plan
from odradek_operator.cluster.own_secrets import NotPreparedError
from odradek_operator.cluster.secured import OutsideHosts
from odradek_operator.shared import certificates, cluster_spec, spec
from tests.reconcile.in_memory import cluster, resource
from tests.support.memory import MemoryKube, MemoryPool, MemoryZooKeeper, context

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCRAM = {"type": "scram-sha-512"}
INTERNAL = {"name": "internal", "port": 9093, "tls": True, "authentication": SCRAM}
ISSUED = {
    "name": "external",
    "port": 9094,
    "tls": True,
    "certificate": {"issuerRef": {"name": "i"}},
}


def owned(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": body["apiVersion"],
            "kind": body["kind"],
            "name": body["metadata"]["name"],
            "uid": body["metadata"]["uid"],
        }
    ]


def secret(name: str, owner: dict[str, Any] | None, **texts: str) -> dict[str, Any]:
    data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    meta = {"name": name, "namespace": "n", "ownerReferences": owned(owner) if owner else []}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data}


def prepare(
    body: dict[str, Any], *others: dict[str, Any], zookeeper: MemoryZooKeeper | None = None
) -> MemoryKube:
    kube = MemoryKube(body, *others)
    pool = MemoryPool({"zk:2181": zookeeper or MemoryZooKeeper()})
    wanted = cluster_spec.parse_cluster(body)
    step = ListenerStep(wanted_plan(wanted))
    effects = context(kube, pool, now=lambda: NOW)
    reconcile._prepare(effects, body, spec.parse_meta(body), wanted, step, OutsideHosts())
    return kube


def text(kube: MemoryKube, name: str, key: str) -> str:
    found = kube.get("v1", "Secret", "n", name)
    assert found is not None
    return base64.b64decode(found["data"][key]).decode()


@pytest.mark.parametrize("bad", ['a"b', "a\\b", "a\nb", "p\u00e4ss", "x" * 2000])
def test_password_that_settings_cannot_hold_is_replaced(bad: str) -> None:
    body = cluster(listeners=[INTERNAL])
    kube = prepare(body, *(secret(one, body, password=bad) for one in ("c-brokers", "c-operator")))
    for name in ("c-brokers", "c-operator"):
        assert text(kube, name, "password") not in ("", bad)
    (line,) = text(kube, "c-brokers", "secret.properties").splitlines()
    assert line.endswith(f'password="{text(kube, "c-brokers", "password")}";')
    # One of a user's own stays.
    kube = prepare(body, secret("c-brokers", body, password="mine"))
    assert text(kube, "c-brokers", "password") == "mine"


def test_authority_of_a_former_cluster_of_the_name_is_waited_for() -> None:
    body, former = cluster(listeners=[INTERNAL]), cluster()
    former["metadata"]["uid"] = "former"
    pair = certificates.make_authority("c-cluster-ca", NOW)
    texts = {"ca.crt": pair.certificate, "ca.key": pair.key}
    with pytest.raises(NotPreparedError, match="former KafkaCluster") as raised:
        prepare(body, secret("c-cluster-ca", former, **texts))
    assert (raised.value.reason, raised.value.waits) == ("SecretTerminating", True)
    user = resource("User", "c-cluster-ca")
    with pytest.raises(NotPreparedError, match="of User c-cluster-ca") as raised:
        prepare(body, secret("c-cluster-ca", user, **texts))
    assert (raised.value.reason, raised.value.waits) == ("SecretConflict", False)
    # A user's own is used, and so is that of this one.
    for owner in (None, body):
        kube = prepare(body, secret("c-cluster-ca", owner, **texts))
        assert text(kube, "c-cluster-ca-cert", "ca.crt") == pair.certificate


def test_certificate_of_somebody_else_is_not_overwritten() -> None:
    theirs = {
        "apiVersion": secured.CERT_MANAGER,
        "kind": "Certificate",
        "metadata": {"name": "c-external", "namespace": "n"},
        "spec": {"dnsNames": ["shop.example"]},
    }
    with pytest.raises(NotPreparedError, match="c-external is not of this") as raised:
        prepare(cluster(listeners=[INTERNAL, ISSUED]), theirs)
    assert raised.value.reason == "CertificateConflict"
    assert theirs["spec"] == {"dnsNames": ["shop.example"]}


class Refusing(MemoryZooKeeper):
    """ZooKeeper whose znodes are not open to the operator."""

    def commit(self, wanted: Sequence[Operation]) -> None:
        raise TransactionFailedError(wanted[0], 0, NoAuthError())


def test_znodes_that_cannot_be_written_are_a_reason() -> None:
    with pytest.raises(NotPreparedError, match="odradek-broker") as raised:
        prepare(cluster(listeners=[INTERNAL]), zookeeper=Refusing())
    assert (raised.value.reason, raised.value.waits) == ("UsersNotWritten", True)
