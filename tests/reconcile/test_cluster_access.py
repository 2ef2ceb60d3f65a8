"""How clients of ours reach a cluster, and what their users may do; nothing else is needed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from odradek.protocol.messages.groups import FindCoordinatorRequest
from odradek.security.acls import PatternType
from odradek_operator.group import driver_objects
from odradek_operator.shared import cluster_access
from odradek_operator.shared.broker_client import BrokerError, OperatorClient
from odradek_operator.shared.broker_security import OperatorSecurity
from odradek_operator.shared.cluster_access import ClusterAccess
from odradek_operator.shared.cluster_spec import parse_cluster
from odradek_spark import cluster_conf, config_loading
from tests.reconcile import test_objects


def access(*listeners: dict[str, Any], **spec: Any) -> ClusterAccess | None:
    body = {
        "metadata": {"name": "main", "namespace": "logs"},
        "spec": {
            "zookeeper": {"connect": "z:2181"},
            "brokers": {"replicas": 1, "port": 9092, "metricsPort": 9404, "hostNetwork": True},
            "listeners": list(listeners),
            **spec,
        },
    }
    return cluster_access.of_cluster("main", parse_cluster(body))


def listener(name: str, **fields: Any) -> dict[str, Any]:
    kind = fields.pop("type", "none")
    return {"name": name, "port": 9092, "authentication": {"type": kind}, **fields}


def test_listener_of_brokers_is_that_of_our_clients() -> None:
    assert access() is None
    outer = listener("outer", tls=True, type="tls")
    inner = listener("internal", tls=True, type="scram-sha-256")
    found = access(outer, inner, authorization={"type": "simple"})
    assert found == ClusterAccess("main", "INTERNAL", "SASL_SSL", "SCRAM-SHA-256", True)
    assert found.is_secured
    assert found.tls
    plain = access(listener("any"))
    assert plain == ClusterAccess("main", "ANY", "PLAINTEXT", None, False)
    assert not plain.is_secured
    assert access(outer) == ClusterAccess("main", "OUTER", "SSL", None, False, shows=True)


def test_settings_have_what_the_listener_asks_for() -> None:
    both = ClusterAccess("main", "A", "SASL_SSL", "SCRAM-SHA-512", True)
    assert cluster_access.settings(both, "u", "p") == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="u" password="p";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/etc/odradek/brokers/ca.crt",
    }
    tls = dataclasses.replace(both, protocol="SSL", mechanism=None)
    assert "sasl.mechanism" not in cluster_access.settings(tls, "u", "p")
    sasl = dataclasses.replace(both, protocol="SASL_PLAINTEXT")
    assert not any(one.startswith("ssl.") for one in cluster_access.settings(sasl, "u", "p"))


@pytest.mark.parametrize(
    ("pattern", "name", "kind"),
    [
        (r"logs-.*", "logs-", PatternType.PREFIXED),
        (r"^logs_\w+", "logs_", PatternType.PREFIXED),
        (r"app\.logs\..*", "app", PatternType.PREFIXED),
        (r"logs?", "log", PatternType.PREFIXED),
        (r"logs+", "logs", PatternType.PREFIXED),
        (r"ab{0,2}", "a", PatternType.PREFIXED),
        (r"a|b", "*", PatternType.LITERAL),
        (r"(?i)logs", "*", PatternType.LITERAL),
        (r".*", "*", PatternType.LITERAL),
        (r"[ab]c", "*", PatternType.LITERAL),
        (r"\Qa\E.*", "*", PatternType.LITERAL),
    ],
)
def test_pattern_of_topics_becomes_the_least_acl_that_covers_it(
    pattern: str, name: str, kind: PatternType
) -> None:
    ((found, _), _group) = cluster_access.job_rights((), pattern, "g", None)
    assert (found.name, found.pattern_type) == (name, kind)


def test_missing_credentials_are_a_reason_and_no_connection() -> None:
    security = OperatorSecurity(problem="Secret main-operator is not there yet")
    with (
        OperatorClient({1: ("127.0.0.1", 1)}, security) as client,
        pytest.raises(BrokerError, match="Secret main-operator is not there yet"),
    ):
        client.call(1, FindCoordinatorRequest(key="g"), 1)


def test_driver_and_executors_mount_the_secret_that_admission_allows(tmp_path: Path) -> None:
    parsed = test_objects.group(volume={"size": "1Gi"}).job
    assert parsed is not None
    job = dataclasses.replace(parsed, brokers_secret="g-brokers-1")
    meta, platform = test_objects.META, test_objects.PLATFORM
    text = test_objects.job_text(job)
    pod = driver_objects.driver_pod(meta, job, platform, text)
    volume = {"name": "brokers", "secret": {"secretName": "g-brokers-1"}}
    mount = {"name": "brokers", "mountPath": cluster_access.MOUNT, "readOnly": True}
    assert volume in pod["spec"]["volumes"]
    assert mount in pod["spec"]["containers"][0]["volumeMounts"]

    config = tmp_path / "client.properties"
    config.write_text("security.protocol=PLAINTEXT\n")
    seen = {**json.loads(text), "clientConfig": str(config)}
    variables = dict.fromkeys(("POD_NAME", "POD_NAMESPACE", "POD_IP", "POD_UID"), "x")
    environment = config_loading.parse_environment(variables, 1, 1)
    executor = cluster_conf.executor_pod(
        config_loading.parse_job(json.dumps(seen), environment), environment
    )
    template: Any = executor["spec"]
    assert volume in template["volumes"]
    assert mount in template["containers"][0]["volumeMounts"]
    allowed = driver_objects.executor_limits(meta, job, platform).split()
    assert "secret/g-brokers-1" in allowed
    # Without a Secret a job is what it was: nothing of it is in its file or its pod.
    assert "brokers" not in test_objects.job_text(parsed)
