"""What the API server refuses of a KafkaCluster's listeners, and of what depends on them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.reconcile.test_crds import CLUSTER, REMOVE, change
from tests.support import objects
from tests.support.apiserver import ApiServer
from tests.support.kubectl import Kubectl, QuickKubectl

INTERNAL: dict[str, Any] = {
    "name": "internal",
    "port": 9093,
    "tls": True,
    "authentication": {"type": "scram-sha-512"},
}
EXTERNAL: dict[str, Any] = {
    "name": "external",
    "port": 9094,
    "tls": True,
    "authentication": {"type": "tls"},
    "certificate": {"secretName": "brokers"},
}
PLAIN: dict[str, Any] = {"name": "plaintext", "port": 9092}
OAUTH: dict[str, Any] = {
    "type": "oauth",
    "jwksEndpointUri": "https://issuer.test:8443/keys?v=1",
    "validIssuerUri": "https://issuer.test/realms/a",
    "audience": "brokers",
    "userNameClaim": "preferred_username",
}
TOKENS: dict[str, Any] = {"name": "tokens", "port": 9095, "tls": True, "authentication": OAUTH}
NODE_PORT: dict[str, Any] = {"type": "NodePort"}
BALANCED: dict[str, Any] = {
    "type": "LoadBalancer",
    "advertisedHostTemplate": "broker-{nodeId}.example.com",
    "advertisedPortTemplate": "1909{nodeId}",
    "annotations": {"external-dns.alpha.kubernetes.io/hostname": "broker-{nodeId}.example.com"},
    "externalTrafficPolicy": "Local",
    "loadBalancerSourceRanges": ["203.0.113.0/24", "2001:db8::/32"],
    "bootstrap": {"nodePort": 31090, "alternativeNames": ["kafka.example.com", "203.0.113.7"]},
    "brokers": [{"broker": 0, "nodePort": 31000}, {"broker": 999, "nodePort": 31999}],
}
SECURE = copy.deepcopy(CLUSTER)
SECURE["metadata"]["name"] = "secure"
SECURE["spec"]["listeners"] = [INTERNAL, EXTERNAL]
SECURE["spec"]["authorization"] = {"type": "simple", "superUsers": ["User:admin", "User:CN=a,O=b"]}


@pytest.fixture(scope="module")
def kubectl(api: ApiServer) -> Kubectl:
    api.create_namespace("listener-crd")
    return QuickKubectl(api.kubectl, api.kubeconfig, "listener-crd")


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("listeners", [], "should have at least 1 items"),
        ("listeners", [{"name": "plaintext"}], "listeners.*port: Required value"),
        ("listeners", [PLAIN, {**PLAIN, "port": 9099}], "Duplicate value"),
        ("listeners", [PLAIN, {**EXTERNAL, "port": 9092}], "each listener needs a port of its own"),
        ("listeners", [{**PLAIN, "name": "metrics"}], "metrics is the name of another port"),
        ("listeners", [{**PLAIN, "name": "Plain"}], "should match"),
        ("listeners", [{**PLAIN, "port": 9404}], "the port of brokers.metricsPort"),
        ("brokers/port", 9000, "brokers.port is none of the listeners"),
        ("listeners", [INTERNAL, {**EXTERNAL, "tls": False}], "of type tls needs tls: true"),
        ("listeners", [INTERNAL, {**PLAIN, "certificate": {"secretName": "a"}}], "needs tls: true"),
        ("listeners", [{**INTERNAL, "certificate": {}}], "give either secretName or issuerRef"),
        (
            "listeners",
            [{**INTERNAL, "certificate": {"secretName": "a", "issuerRef": {"name": "b"}}}],
            "give either secretName or issuerRef",
        ),
        ("listeners", [{**INTERNAL, "authentication": {"type": "gssapi"}}], "supported values"),
        ("listeners", [TOKENS], "brokers, the operator and jobs have no tokens"),
        ("listeners", [PLAIN, {**TOKENS, "name": "internal"}], "have no tokens"),
        ("listeners", [INTERNAL, {**TOKENS, "tls": False}], "of type oauth needs tls: true"),
        (
            "listeners",
            [INTERNAL, {**TOKENS, "authentication": {"type": "oauth"}}],
            "oauth needs jwksEndpointUri and validIssuerUri",
        ),
        (
            "listeners",
            [INTERNAL, {**TOKENS, "authentication": {**OAUTH, "type": "scram-sha-512"}}],
            "are of type oauth",
        ),
        *(
            (
                "listeners",
                [INTERNAL, {**TOKENS, "authentication": {**OAUTH, "jwksEndpointUri": uri}}],
                "should match",
            )
            for uri in (
                "http://issuer/keys",
                "https://",
                "https://a:0/",
                "https://a:65536/",
                "https://a,https://b",
                "https://a/\nsuper.users=User:b",
                "file:///etc/passwd",
            )
        ),
        ("listeners", [EXTERNAL], "need those of the operator's own CA"),
        ("listeners", [PLAIN], "authorization needs authentication on the listener of brokers"),
        ("listeners", REMOVE, "authorization needs listeners"),
        ("listeners", [{**INTERNAL, "expose": NODE_PORT}], "the listener that is named internal"),
        ("listeners", [{**PLAIN, "expose": NODE_PORT}, EXTERNAL], "expose another one"),
        *(
            ("listeners", [INTERNAL, {**EXTERNAL, "expose": expose}], why)
            for expose, why in (
                ({}, "type: Required value"),
                ({"type": "Ingress"}, "supported values"),
                ({**BALANCED, "type": "NodePort"}, "loadBalancerSourceRanges is of type"),
                ({**BALANCED, "preferredNodePortAddressType": "InternalIP"}, "is of type NodePort"),
                (
                    {
                        **NODE_PORT,
                        "advertisedHostTemplate": "a",
                        "preferredNodePortAddressType": "InternalIP",
                    },
                    "give either",
                ),
                (
                    {"type": "LoadBalancer", "advertisedHostTemplate": "a.example"},
                    "would advertise the same address",
                ),
                (
                    {
                        **NODE_PORT,
                        "advertisedHostTemplate": "a",
                        "advertisedPortTemplate": "9092",
                    },
                    "would advertise the same address",
                ),
                *(
                    ({**NODE_PORT, "advertisedHostTemplate": host}, "should match")
                    for host in ("-a", "a..b", "{brokerId}.a", "{nodeId", "a/b", "A", "a b", "a.")
                ),
                ({**NODE_PORT, "advertisedHostTemplate": "a-.b"}, "does not end with a hyphen"),
                ({**NODE_PORT, "advertisedHostTemplate": "a" * 64}, "at most 63 characters"),
                *(
                    ({**NODE_PORT, "advertisedPortTemplate": port}, "should match")
                    for port in ("a", "-1", "{nodeId}a")
                ),
                ({**BALANCED, "loadBalancerSourceRanges": []}, "at least 1 items"),
                ({**BALANCED, "loadBalancerSourceRanges": ["10.0.0.1"]}, "should match"),
                ({**NODE_PORT, "annotations": {"odradek.io/service-hash": "x"}}, "the operator's"),
                ({**NODE_PORT, "bootstrap": {"nodePort": 0}}, "greater than or equal to 1"),
                ({**NODE_PORT, "bootstrap": {"alternativeNames": ["a,b"]}}, "should match"),
                ({**NODE_PORT, "brokers": [{"broker": 1}]}, "nodePort: Required value"),
                (
                    {
                        **NODE_PORT,
                        "brokers": [{"broker": 1, "nodePort": 1}, {"broker": 1, "nodePort": 2}],
                    },
                    "Duplicate value",
                ),
                ({**NODE_PORT, "externalTrafficPolicy": "Nobody"}, "supported values"),
            )
        ),
        ("authorization/type", "opa", "supported values"),
        ("authorization/superUsers", ["admin"], "should match"),
        ("authorization/superUsers", ["User:a;User:b"], "should match"),
        ("brokers", {"replicas": 6, "perNode": 2}, "leave at least perNode between any two"),
        ("brokers/config", {"ssl.client.auth": "none"}, "decide about TLS, SASL and authorizers"),
        ("brokers/config", {"super.users": "User:a"}, "decide about TLS, SASL and authorizers"),
    ],
)
def test_listeners_that_contradict_themselves_are_refused(
    kubectl: Kubectl, path: str, value: Any, why: str
) -> None:
    wrong = change(change(SECURE, "metadata/name", "wrong"), f"spec/{path}", value)
    with pytest.raises(objects.ApiError, match=why):
        objects.client(kubectl.kubeconfig).create(kubectl.namespace, wrong)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("listeners", [INTERNAL]),
        ("listeners", [PLAIN, INTERNAL]),
        ("listeners", [INTERNAL, TOKENS]),
        ("listeners", [{**EXTERNAL, "expose": BALANCED}, INTERNAL]),
        ("listeners", [INTERNAL, {**PLAIN, "expose": NODE_PORT}]),
        (
            "listeners",
            [INTERNAL, {**PLAIN, "expose": {**NODE_PORT, "advertisedHostTemplate": "a.example"}}],
        ),
        ("listeners", [{**EXTERNAL, "certificate": {"issuerRef": {"name": "ca"}}}, INTERNAL]),
        ("brokers/config", {"num.partitions": "3", "listeners.of.mine": "x"}),
    ],
)
def test_listeners_may_be_added_and_taken_away(kubectl: Kubectl, path: str, value: Any) -> None:
    kubectl.apply(change(SECURE, f"spec/{path}", value))
    found = kubectl.get("kafkacluster", "secure")["spec"]
    assert {one["tls"] for one in found["listeners"]} <= {True, False}
    assert found["authorization"]["allowEveryoneIfNoAclFound"] is False
    kubectl("delete", "kafkacluster", "secure")


def test_names_of_exposed_listeners_fit_into_those_of_services(kubectl: Kubectl) -> None:
    long = change(SECURE, "metadata/name", "c" * 38)
    listener = {**EXTERNAL, "name": "l" * 15, "expose": NODE_PORT}
    wrong = change(long, "spec/listeners", [INTERNAL, listener])
    with pytest.raises(objects.ApiError, match="at most 52 characters together"):
        objects.client(kubectl.kubeconfig).create(kubectl.namespace, wrong)
    kubectl.apply(change(wrong, "metadata/name", "c" * 37))
    kubectl("delete", "kafkacluster", "c" * 37)
