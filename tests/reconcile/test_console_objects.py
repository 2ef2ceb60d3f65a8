"""The console of a cluster: made as its spec says, gone with what it could do when it says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from odradek.zk import znodes
from odradek_console.command import console as command
from odradek_operator.loop.reconciler import Reconciler
from odradek_operator.runtime import SettingsError, read_settings
from odradek_operator.shared import cluster_access, user_znodes
from odradek_operator.shared.apply import Platform
from odradek_operator.shared.cluster_secrets import CONSOLE_USER
from odradek_operator.shared.spec import ClusterKey
from odradek_operator.shared.status import condition_of
from odradek_operator.shared.store import ResourceStore, key_of
from tests.reconcile.in_memory import cluster, existing_topic
from tests.reconcile.test_exporter_objects import ENVIRONMENT
from tests.support import helm
from tests.support.memory import MemoryKube, MemoryPool, MemoryZooKeeper, context

NAME = "c-console"
USERS = {"users": {"secretName": "people"}}


def platform(values: Mapping[str, Any] | None = None) -> Platform:
    """What an operator reads from the Deployment of the chart with these values for consoles."""
    objects = helm.template({"console": values or {}})
    (deployment,) = [one for one in objects if one["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return read_settings({one["name"]: one.get("value", "") for one in container["env"]}).platform


@pytest.fixture(scope="module")
def installed() -> Platform:
    return platform()


def wanting(console: Mapping[str, Any] | None) -> dict[str, Any]:
    body = cluster()
    if console is not None:
        body["spec"] = {**body["spec"], "console": dict(console)}
    return body


def reconcile(
    kube: MemoryKube,
    body: dict[str, Any],
    given: Platform,
    zookeeper: MemoryZooKeeper | None = None,
) -> None:
    store = ResourceStore()
    store.put(body)
    kube.create(body)
    pool = MemoryPool({"zk:2181": zookeeper or existing_topic()})
    effects = context(kube, pool, platform=given)
    done = Reconciler(effects, store).reconcile("n", ClusterKey("n", "c"), {key_of(body): body})
    assert not [one for one in done.values() if isinstance(one, Exception)]


def secret(name: str, **data: str) -> dict[str, Any]:
    return {"kind": "Secret", "metadata": {"name": name, "namespace": "n"}, "data": data}


def made(given: Platform, console: Mapping[str, Any], *there: Mapping[str, Any]) -> MemoryKube:
    kube = MemoryKube(*there)
    reconcile(kube, wanting(console), given)
    return kube


def pod(kube: MemoryKube) -> dict[str, Any]:
    found = kube.get("apps/v1", "Deployment", "n", NAME)
    assert found is not None
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def arguments(kube: MemoryKube) -> list[str]:
    (container,) = pod(kube)["containers"]
    found: list[str] = container["args"]
    # An option that it does not know, or one that is wrong, would end it with status 2.
    ended = CliRunner().invoke(command, [*found, "--help"])
    assert ended.exit_code == 0, ended.output
    return found


def told(kube: MemoryKube) -> tuple[str, str, str] | None:
    found = condition_of(kube.statuses[-1], "Console")
    return None if found is None else (found["status"], found["reason"], found["message"])


def test_without_users_it_listens_where_only_a_port_forward_comes(installed: Platform) -> None:
    kube = made(installed, {})
    assert told(kube) is None
    found = arguments(kube)
    assert "--host=localhost" in found
    assert "--bootstrap-server=c-brokers.n.svc:9092" in found
    assert {"--namespace=n", "--cluster=c", "--kubernetes"} <= {*found}
    assert not [one for one in found if one.startswith(("--users", "--writable", "--no-records"))]
    # A Service would lead to nothing.
    assert NAME not in kube.names("Service")


def test_with_users_it_listens_for_its_service_and_the_hosts_of_the_spec(
    installed: Platform,
) -> None:
    given = {
        **USERS,
        "certificate": {"secretName": "tls"},
        "hosts": ["console.example.com"],
        "writable": True,
        "records": False,
        "schemaRegistry": {"url": "http://registry:8081"},
    }
    people = secret("people", users="YQ==")
    tls = secret("tls", **{"tls.crt": "YQ==", "tls.key": "YQ=="})
    kube = made(installed, given, people, tls)
    assert told(kube) is None
    found = arguments(kube)
    assert "--host=" in found
    hosts = {one.partition("=")[2] for one in found if one.startswith("--allowed-host=")}
    assert hosts == {
        *(NAME, f"{NAME}.n", f"{NAME}.n.svc", f"{NAME}.n.svc.cluster.local"),
        "console.example.com",
    }
    assert "--schema-registry=http://registry:8081" in found
    assert {"--writable", "--no-records", "--users=/etc/odradek/users/users"} <= {*found}
    mounted = {one["secret"]["secretName"] for one in pod(kube)["volumes"] if "secret" in one}
    assert mounted == {"people", "tls"}
    assert NAME in kube.names("Service")


@pytest.mark.parametrize("writable", [False, True])
def test_it_may_do_no_more_than_it_offers(installed: Platform, *, writable: bool) -> None:
    kube = made(installed, {**USERS, "writable": writable}, secret("people", users="YQ=="))
    role = kube.get("rbac.authorization.k8s.io/v1", "Role", "n", NAME)
    assert role is not None
    rights = {
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert rights == {
        *(("consumergroups", "get"), ("consumergroups", "list")),
        *(("reassignments", "get"), ("reassignments", "list")),
        ("configmaps", "get"),
        *([("reassignments", "patch")] if writable else []),
    }
    assert pod(kube)["serviceAccountName"] == NAME


def test_pod_is_restricted(installed: Platform) -> None:
    (container,) = pod(made(installed, {}))["containers"]
    security = {**pod(made(installed, {}))["securityContext"], **container["securityContext"]}
    assert security["runAsNonRoot"] is True
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize(
    ("there", "reason", "said"),
    [
        ([], "SecretMissing", "Secret people is not there"),
        ([secret("people", other="YQ==")], "SecretIncomplete", "Secret people has no users"),
    ],
)
def test_a_secret_that_is_not_there_is_told_and_holds_up_no_broker(
    installed: Platform, there: list[dict[str, Any]], reason: str, said: str
) -> None:
    kube = made(installed, USERS, *there)
    assert told(kube) == ("False", reason, said)
    assert kube.names("StatefulSet") == ["c-broker"]
    # When it comes, nothing is left to say.
    kube.create(secret("people", users="YQ=="))
    reconcile(kube, wanting(USERS), installed)
    assert told(kube) is None


def test_it_goes_when_it_is_not_wanted_any_more_and_nobody_elses_does(installed: Platform) -> None:
    kube = made(installed, {})
    reconcile(kube, wanting(None), installed)
    assert NAME not in kube.names("Deployment")
    role = kube.get("rbac.authorization.k8s.io/v1", "Role", "n", NAME)
    assert role is not None
    assert role["rules"] == []
    other = {"kind": "Deployment", "metadata": {"name": NAME, "namespace": "n"}}
    kube = MemoryKube(other)
    reconcile(kube, wanting(None), installed)
    assert NAME in kube.names("Deployment")
    # Its Service goes with its users, and with itself.
    kube = made(installed, USERS, secret("people", users="YQ=="))
    assert NAME in kube.names("Service")
    reconcile(kube, wanting({}), installed)
    assert NAME not in kube.names("Service")
    reconcile(kube, wanting(USERS), installed)
    reconcile(kube, wanting(None), installed)
    assert NAME not in kube.names("Service")
    # And it comes back with its rights.
    kube = made(installed, {})
    reconcile(kube, wanting(None), installed)
    reconcile(kube, wanting({}), installed)
    role = kube.get("rbac.authorization.k8s.io/v1", "Role", "n", NAME)
    assert role is not None
    assert role["rules"]


def test_its_user_goes_with_it_whatever_brokers_ask_for_by_then(installed: Platform) -> None:
    kube, zookeeper = made(installed, {}), existing_topic()
    path = user_znodes.user_path(CONSOLE_USER)
    credential = {"SCRAM-SHA-512": user_znodes.scram_entry("SCRAM-SHA-512", "word")}
    zookeeper.put(path, znodes.encode_config(credential))
    reconcile(kube, wanting(None), installed, zookeeper)
    assert NAME not in kube.names("Deployment")
    assert path in [one.path for one in zookeeper.committed]


@pytest.mark.parametrize("kind", ["ServiceAccount", "Role", "RoleBinding", "Service", "Deployment"])
def test_what_is_of_others_under_its_names_is_told_and_left_alone(
    installed: Platform, kind: str
) -> None:
    theirs = {"kind": kind, "metadata": {"name": NAME, "namespace": "n"}}
    kube = made(installed, USERS, theirs, secret("people", users="YQ=="))
    assert told(kube) == (
        *("False", "ResourceConflict"),
        f"{kind} {NAME} exists and does not belong to c",
    )
    assert kube.get("", kind, "n", NAME) == theirs
    assert kube.names("StatefulSet") == ["c-broker"]


def test_it_starts_anew_with_another_certificate(installed: Platform) -> None:
    given = {**USERS, "certificate": {"secretName": "tls"}}
    tls = secret("tls", **{"tls.crt": "YQ==", "tls.key": "YQ=="})
    found = set()
    kube = MemoryKube(secret("people", users="YQ=="))
    for version in ("7", "8", "8"):
        kube.create({**tls, "metadata": {**tls["metadata"], "resourceVersion": version}})
        reconcile(kube, wanting(given), installed)
        deployment = kube.get("apps/v1", "Deployment", "n", NAME)
        assert deployment is not None
        found.add(deployment["spec"]["template"]["metadata"]["annotations"]["odradek.io/secrets"])
    assert found == {"7", "8"}


def test_values_of_the_chart_reach_its_pod() -> None:
    place = {"nodeSelector": {"pool": "infra"}, "tolerations": [{"operator": "Exists"}]}
    found = pod(made(platform(place), {}))
    assert {key: found[key] for key in place} == place
    (container,) = found["containers"]
    assert container["image"] == "localhost/odradek/operator:0.1.0"
    assert container["resources"]["limits"] == {"memory": "512Mi"}


def test_an_installation_without_an_image_says_so() -> None:
    kube = made(read_settings(ENVIRONMENT).platform, {})
    assert told(kube) == (
        *("False", "NoConsoleImage"),
        "the operator's installation names no image of consoles",
    )
    with pytest.raises(SettingsError, match="ODRADEK_CONSOLE"):
        read_settings({**ENVIRONMENT, "ODRADEK_CONSOLE": "[]"})


@pytest.mark.parametrize("records", [False, True])
def test_its_user_reads_topics_only_where_records_are_shown(*, records: bool) -> None:
    rights = {
        (pattern.resource_type.name, operation.name)
        for pattern, operation in cluster_access.console_rights(records=records)
    }
    assert rights == {
        *(("CLUSTER", "DESCRIBE"), ("CLUSTER", "DESCRIBE_CONFIGS"), ("GROUP", "DESCRIBE")),
        *(("TOPIC", "DESCRIBE"), ("TOPIC", "DESCRIBE_CONFIGS")),
        *([("TOPIC", "READ")] if records else []),
    }
