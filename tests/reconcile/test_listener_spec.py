"""spec.listeners and spec.authorization, as the operator reads them."""

from typing import Any

import pytest

from odradek_operator.shared import cluster_spec, listener_spec, spec
from odradek_operator.shared.listener_spec import AuthorizationSpec, IssuerRef, ListenerSpec


def parse(config: dict[str, str] | None = None, **wanted: Any) -> cluster_spec.ClusterSpec:
    return cluster_spec.parse_cluster(
        {
            "kind": "KafkaCluster",
            "metadata": {"name": "main"},
            "spec": {
                "zookeeper": {"connect": "zk:2181"},
                "brokers": {"replicas": 3, "config": config or {}},
                **wanted,
            },
        }
    )


def test_listeners_of_the_contract() -> None:
    scram = {"type": "scram-sha-512"}
    issuer = {"issuerRef": {"name": "ca", "kind": "ClusterIssuer"}}
    internal = {"name": "internal", "port": 9092, "tls": True, "authentication": scram}
    external = {"name": "external", "port": 9094, "tls": True, "authentication": {"type": "tls"}}
    plain = {"name": "plaintext", "port": 9095}
    read = parse(
        listeners=[external, {**internal, "certificate": issuer}, plain],
        authorization={"type": "simple", "superUsers": ["User:admin"]},
    )
    assert read.listeners == (
        ListenerSpec("external", 9094, True, "tls"),
        ListenerSpec(
            "internal", 9092, True, "scram-sha-512", issuer=IssuerRef("ca", "ClusterIssuer")
        ),
        ListenerSpec("plaintext", 9095),
    )
    assert [one.protocol for one in read.listeners] == ["SSL", "SASL_SSL", "PLAINTEXT"]
    assert [one.mechanism for one in read.listeners] == [None, "SCRAM-SHA-512", None]
    assert [one.of_own_ca for one in read.listeners] == [True, False, False]
    assert listener_spec.broker_listener(read.listeners).name == "internal"
    assert listener_spec.broker_listener(read.listeners[::2]).name == "external"
    assert read.authorization == AuthorizationSpec(("User:admin",), False)


def test_a_cluster_without_listeners_is_as_before() -> None:
    read = parse({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"})
    assert (read.listeners, read.authorization, read.port) == ((), None, 9092)


@pytest.mark.parametrize(
    "name", ["ssl.keystore.location", "authorizer.class.name", "super.users", "listener.name.a.x"]
)
def test_settings_by_hand_beside_listeners_are_refused(name: str) -> None:
    with pytest.raises(spec.InvalidSpec) as refused:
        parse({name: "x"}, listeners=[{"name": "plaintext", "port": 9092}])
    assert refused.value.reason == "InvalidConfig"
    assert name in refused.value.message
