"""What the chart renders, for every set of values that it is meant for."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from odradek_operator.cluster import exporter_objects
from odradek_operator.cluster import objects as cluster_objects
from odradek_operator.group import driver_objects
from odradek_operator.shared.apply import WorkloadSettings
from tests.cluster.settings import REPO
from tests.reconcile.test_objects import META, PLATFORM, cluster
from tests.support import helm, yaml_text
from tests.support.helm import Manifest

EXAMPLES = REPO / "examples"
VALUE_SETS: dict[str, tuple[Manifest, tuple[Path, ...]]] = {
    "defaults": ({}, ()),
    "quickstart": ({}, (EXAMPLES / "quickstart/values.yaml",)),
    "production": ({}, (EXAMPLES / "helm/production.yaml",)),
    "one namespace": ({}, (EXAMPLES / "helm/one-namespace.yaml",)),
    "everything": (
        {
            "watchNamespace": "apart",
            "commonLabels": {"team": "logs"},
            "image": {"pullSecrets": ["registry"]},
            "networkPolicy": {
                "enabled": True,
                "nodeCidrs": ["10.0.0.0/8"],
                "sparkUIFrom": [{"podSelector": {"matchLabels": {"app": "proxy"}}}],
                "consoleFrom": [{"podSelector": {"matchLabels": {"app": "ingress"}}}],
            },
            "historyServer": {"enabled": True, "path": "s3a://logs/events", "secretName": "s3"},
            "zookeeper": {"replicas": 5},
        },
        (),
    ),
    "own ZooKeeper": ({"zookeeper": {"enabled": False}}, ()),
}
CLUSTER_SCOPED = {
    "ClusterRole",
    "ClusterRoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
EXPORTER = (cluster(), PLATFORM, WorkloadSettings("operator:1"))
KINDS = ["kafkaclusters", "users", "topics", "reassignments", "consumergroups"]


@pytest.fixture(scope="module", params=VALUE_SETS, ids=str)
def rendered(request: pytest.FixtureRequest) -> list[Manifest]:
    values, files = VALUE_SETS[request.param]
    return helm.template(values, files=files, monitoring=True)


def select(objects: list[Manifest], kind: str, name: str = "") -> list[Manifest]:
    return [o for o in objects if o["kind"] == kind and (not name or o["metadata"]["name"] == name)]


def one(objects: list[Manifest], kind: str, name: str = "") -> Manifest:
    (found,) = select(objects, kind, name)
    return found


def pod_specs(objects: list[Manifest]) -> list[Manifest]:
    specs = []
    for found in objects:
        if found["kind"] == "Pod":
            specs.append(found["spec"])
        elif found["kind"] in ("Deployment", "StatefulSet", "Job"):
            specs.append(found["spec"]["template"]["spec"])
    return specs


def test_copies_of_crds_are_the_sources() -> None:
    sources = {file.name: file.read_text() for file in (REPO / "crds").glob("*.yaml")}
    copies = {file.name: file.read_text() for file in (helm.CHART / "crds").glob("*.yaml")}
    assert len(sources) == len(KINDS)
    assert copies == sources, "cp crds/*.yaml charts/odradek/crds/"
    package = REPO / "operator/src/odradek_local/crds"
    used = {file.name: file.read_text() for file in package.glob("*.yaml")}
    assert used == {name: sources[name] for name in used}, f"cp crds/*.yaml {package}"
    assert used


@pytest.mark.parametrize("name", VALUE_SETS)
def test_lint_finds_nothing(name: str) -> None:
    values, files = VALUE_SETS[name]
    given = [f"--values={file}" for file in files]
    report = helm.run(
        "lint", "--strict", str(helm.CHART), *given, "--values=-", stdin=json.dumps(values)
    )
    assert "0 chart(s) failed" in report
    assert "[WARNING]" not in report


def test_no_rule_has_a_wildcard(rendered: list[Manifest]) -> None:
    roles = select(rendered, "ClusterRole") + select(rendered, "Role")
    assert roles
    for role in roles:
        for rule in role["rules"]:
            for field in ("apiGroups", "resources", "verbs"):
                assert rule[field], f"{role['metadata']['name']}: {field} is empty"
                assert all("*" not in entry for entry in rule[field]), role["metadata"]["name"]


def test_no_role_lists_secrets_or_escalates(rendered: list[Manifest]) -> None:
    for role in select(rendered, "ClusterRole") + select(rendered, "Role"):
        for rule in role["rules"]:
            # The operator reads those of Users and clusters by name.
            read_by_name = rule["verbs"] == ["get", "create", "patch"]
            assert "secrets" not in rule["resources"] or read_by_name
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


def test_every_container_is_bounded_and_restricted(rendered: list[Manifest]) -> None:
    for spec in pod_specs(rendered):
        assert not spec.get("hostNetwork")
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["runAsNonRoot"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            assert ":" in container["image"]
            assert not container["image"].endswith(":latest")


def test_tokens_are_mounted_only_where_the_api_is_called(rendered: list[Manifest]) -> None:
    calling = [spec for spec in pod_specs(rendered) if spec["automountServiceAccountToken"]]
    assert all(spec.get("serviceAccountName") for spec in calling)
    for account in select(rendered, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


def test_names_are_unique(rendered: list[Manifest]) -> None:
    names = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in rendered]
    assert len(names) == len(set(names))


def test_the_longest_names_fit_services_and_labels() -> None:
    longest = "a" * 53
    values: Manifest = {
        "nameOverride": longest,
        "fullnameOverride": longest,
        "zookeeper": {"replicas": 3},
        "historyServer": {"enabled": True, "path": "s3a://b/c"},
    }
    objects = helm.template(values, monitoring=True)
    assert all(len(found["metadata"]["name"]) <= 63 for found in select(objects, "Service"))
    for found in objects:
        labels = [found["metadata"]["labels"]]
        if found["kind"] in ("Deployment", "StatefulSet", "Job"):
            labels.append(found["spec"]["template"]["metadata"]["labels"])
        assert all(len(text) <= 63 for some in labels for text in some.values())


def test_operator_is_one_pod_that_is_replaced_not_doubled() -> None:
    spec = one(helm.template(), "Deployment")["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


def test_operator_is_told_its_images_and_scope() -> None:
    values: Manifest = {
        "watchNamespace": "apart",
        "image": {"broker": {"repository": "r/b", "tag": "1"}, "pullPolicy": "Always"},
    }
    (container,) = one(helm.template(values), "Deployment")["spec"]["template"]["spec"][
        "containers"
    ]
    environment = {e["name"]: e.get("value") for e in container["env"]}
    version = yaml_text.load((helm.CHART / "Chart.yaml").read_text())["appVersion"]
    assert environment["ODRADEK_BROKER_IMAGE"] == "r/b:1"
    assert environment["ODRADEK_SPARK_IMAGE"] == f"localhost/odradek/spark-job:{version}"
    assert environment["ODRADEK_IMAGE_PULL_POLICY"] == "Always"
    assert "ODRADEK_IMAGE_PULL_SECRETS" not in environment
    assert "--namespace=apart" in container["command"]
    assert "--all-namespaces" not in container["command"]


def test_pull_secrets_reach_every_pod_that_pulls_an_image() -> None:
    objects = helm.template({"image": {"pullSecrets": ["one", "two"]}})
    secrets = [{"name": "one"}, {"name": "two"}]
    assert all(spec["imagePullSecrets"] == secrets for spec in pod_specs(objects))
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    environment = {e["name"]: e.get("value") for e in container["env"]}
    assert environment["ODRADEK_IMAGE_PULL_SECRETS"] == "one,two"


@pytest.mark.parametrize(("values", "wanted"), [({}, "json"), ({"logFormat": "plain"}, "plain")])
def test_operator_writes_json_unless_told_otherwise(values: Manifest, wanted: str) -> None:
    deployment = one(helm.template({"operator": values}), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert f"--log-format={wanted}" in container["command"]


def test_images_are_pinned_by_digest_wherever_they_are_named() -> None:
    def digest(digit: str) -> str:
        return f"sha256:{digit * 64}"

    repositories = ("broker", "operator", "sparkJob")
    images: Manifest = {
        name: {"repository": f"r/{name.lower()}", "tag": "1", "digest": digest(str(number))}
        for number, name in enumerate(repositories)
    }
    zookeeper = {"image": {"repository": "r/zookeeper", "digest": digest("a")}}
    objects = helm.template({"image": images, "zookeeper": zookeeper})
    used = {container["image"] for spec in pod_specs(objects) for container in spec["containers"]}
    assert used == {f"r/operator@{digest('1')}", f"r/zookeeper@{digest('a')}"}
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    environment = {e["name"]: e.get("value") for e in container["env"]}
    assert environment["ODRADEK_BROKER_IMAGE"] == f"r/broker@{digest('0')}"
    assert environment["ODRADEK_SPARK_IMAGE"] == f"r/sparkjob@{digest('2')}"


def test_every_pod_of_the_operators_image_runs_where_the_operator_may() -> None:
    placement: Manifest = {
        "nodeSelector": {"pool": "infra"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
    }
    specs = pod_specs(helm.template({"operator": placement, "zookeeper": {"enabled": False}}))
    assert len(specs) == 3
    for spec in specs:
        assert {key: spec.get(key) for key in placement} == placement


def test_operator_is_told_what_identity_jobs_have_elsewhere() -> None:
    annotations = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/lake"}
    values: Manifest = {"sparkJob": {"serviceAccount": {"annotations": annotations}}}
    (container,) = one(helm.template(values), "Deployment")["spec"]["template"]["spec"][
        "containers"
    ]
    environment = {e["name"]: e.get("value") for e in container["env"]}
    told = environment["ODRADEK_SPARK_ACCOUNT_ANNOTATIONS"]
    assert told is not None
    assert json.loads(told) == annotations


def test_one_namespace_needs_no_cluster_scoped_object() -> None:
    objects = helm.template(files=(EXAMPLES / "helm/one-namespace.yaml",))
    assert not [o["kind"] for o in objects if o["kind"] in CLUSTER_SCOPED]


def test_watched_namespace_gets_the_rules_and_the_cluster_only_nodes() -> None:
    everywhere = one(helm.template(), "ClusterRole", "logs-odradek-operator")["rules"]
    objects = helm.template({"watchNamespace": "apart"})
    role = one(objects, "Role", "odradek-operator")
    cluster_role = one(objects, "ClusterRole", "logs-odradek-operator")
    assert role["metadata"]["namespace"] == "apart"
    assert [rule["resources"] for rule in cluster_role["rules"]] == [["nodes"]]
    namespaced = [r for r in role["rules"] if r["resources"] != ["namespaces"]]
    assert all(rule in everywhere for rule in namespaced)
    assert len(namespaced) == len(everywhere) - 2  # nodes and namespaces are the cluster's


def test_policies_of_a_watched_namespace_are_for_it_alone() -> None:
    def chosen(name: str, watched: str) -> Manifest | None:
        objects = helm.template({"watchNamespace": watched})
        kind = "ValidatingAdmissionPolicyBinding"
        found: Manifest = one(objects, kind, f"logs-odradek-{name}")["spec"]
        return found.get("matchResources")

    labels = {"kubernetes.io/metadata.name": "apart"}
    for name in ("limit-jobs", "protect-topics"):
        assert chosen(name, "apart") == {"namespaceSelector": {"matchLabels": labels}}
        assert chosen(name, "") is None


def test_hook_carries_every_crd_and_may_change_only_those() -> None:
    objects = [o for o in helm.template() if "crds" in o["metadata"]["name"]]
    data = one(objects, "ConfigMap")["data"]
    crds = {f"{kind}.odradek.io" for kind in KINDS}
    assert {f"{name}.yaml" for name in crds} | {"apply_crds.py"} == set(data)
    for name in crds:
        source = yaml_text.load((REPO / "crds" / f"{name.split('.')[0]}.yaml").read_text())
        assert yaml_text.load(data[f"{name}.yaml"]) == source
    changing = [r for r in one(objects, "ClusterRole")["rules"] if "patch" in r["verbs"]]
    assert [set(rule["resourceNames"]) for rule in changing] == [crds]
    for found in objects:
        assert found["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"


def test_lone_zookeeper_has_no_budget_and_an_ensemble_finds_its_members() -> None:
    alone = helm.template()
    assert not select(alone, "PodDisruptionBudget")
    assert "server." not in one(alone, "ConfigMap", "zookeeper")["data"]["zoo.cfg"]

    ensemble = helm.template({"zookeeper": {"replicas": 3}}, namespace="zk")
    assert one(ensemble, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    config = one(ensemble, "ConfigMap", "zookeeper")["data"]["zoo.cfg"]
    servers = [line for line in config.splitlines() if line.startswith("server.")]
    domain = "zookeeper-headless.zk.svc.cluster.local"
    assert servers == [f"server.{i + 1}=zookeeper-{i}.{domain}:2888:3888" for i in range(3)]


def test_policy_of_zookeeper_admits_whom_the_values_name_to_its_clients_port_only() -> None:
    peer = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "old-consumer"}}}
    values: Manifest = {"enabled": True, "zookeeperFrom": [peer]}
    policy = one(helm.template({"networkPolicy": values}), "NetworkPolicy", "zookeeper")
    ports = [rule["ports"] for rule in policy["spec"]["ingress"] if peer in rule["from"]]
    assert ports == [[{"port": "client"}]]


def test_policy_of_zookeeper_admits_pods_of_the_operator_where_it_makes_them() -> None:
    made = {"app.kubernetes.io/name": "odradek", "app.kubernetes.io/managed-by": "odradek-operator"}

    def admitted(**values: str) -> list[Manifest]:
        rendered = helm.template({"networkPolicy": {"enabled": True}, **values})
        rules = one(rendered, "NetworkPolicy", "zookeeper")["spec"]["ingress"]
        (rule,) = [rule for rule in rules if {"port": "client"} in rule["ports"]]
        chosen = {"matchLabels": made}
        found = [peer for peer in rule["from"] if peer.get("podSelector") == chosen]
        return [peer["namespaceSelector"] for peer in found]

    assert admitted() == [{}]
    home = {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}
    assert admitted(watchNamespace="shop") == [home]


def test_only_whom_the_values_name_reaches_what_asks_nobody_to_log_in() -> None:
    peer = {"podSelector": {"matchLabels": {"app": "proxy"}}}
    served: Manifest = {"historyServer": {"enabled": True, "path": "s3a://b/c"}}

    def admitted(name: str, port: str, **policy: list[Manifest]) -> list[Manifest]:
        rendered = helm.template({"networkPolicy": {"enabled": True, **policy}, **served})
        found = one(rendered, "NetworkPolicy", name)["spec"]
        assert found["policyTypes"] == ["Ingress"]
        rules = [one for one in found.get("ingress", ()) if {"port": port} in one.get("ports", ())]
        return [peer for rule in rules for peer in rule["from"]]

    for name, port in (("odradek-spark-driver", "ui"), ("odradek-history-server", "http")):
        assert admitted(name, port) == []
        assert admitted(name, port, sparkUIFrom=[peer]) == [peer]
    driver = one(
        helm.template({"networkPolicy": {"enabled": True}}), "NetworkPolicy", "odradek-spark-driver"
    )
    chosen = driver["spec"]["podSelector"]["matchLabels"].items()
    assert chosen <= driver_objects.labels(META).items()


def test_the_test_of_a_release_reaches_all_that_it_asks() -> None:
    scraping = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    objects = helm.template({"networkPolicy": {"enabled": True, "metricsFrom": scraping}})
    pod = one(objects, "Pod", "odradek-test")
    name = pod["metadata"]["labels"]["app.kubernetes.io/name"]
    peer = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": name}}}
    allowed = {
        port["port"]
        for policy in ("odradek-operator", "zookeeper")
        for rule in one(objects, "NetworkPolicy", policy)["spec"]["ingress"]
        for port in rule["ports"]
        if peer in rule["from"]
    }
    assert allowed == {"client", "health", "metrics"}
    (container,) = pod["spec"]["containers"]
    asked = [address.rpartition(":")[2].partition("/")[0] for address in container["args"]]
    assert asked == ["8080", "9406", "2181"]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "historyServer.path is needed"),
        ({"path": "/data/events"}, "historyServer.claimName goes with"),
        ({"path": "s3a://b/c", "claimName": "x"}, "historyServer.claimName goes with"),
        ({"path": "events"}, "at '/historyServer/path'"),
    ],
)
def test_history_server_without_a_folder_to_read_is_refused(values: Manifest, why: str) -> None:
    with pytest.raises(helm.HelmError, match=why):
        helm.template({"historyServer": {"enabled": True, **values}})


def test_large_numbers_are_written_without_an_exponent() -> None:
    # Helm reads numbers as floats, and would write 1e+06.
    objects = helm.template(
        {"zookeeper": {"runAsUser": 1000650000, "maxSessionTimeoutMs": 3600000}}
    )
    pod = one(objects, "StatefulSet", "zookeeper")["spec"]["template"]["spec"]
    for name in ("runAsUser", "runAsGroup", "fsGroup"):
        assert repr(pod["securityContext"][name]) == "1000650000"
    config = one(objects, "ConfigMap", "zookeeper")["data"]["zoo.cfg"]
    assert "maxSessionTimeout=3600000\n" in config


def test_changed_zookeeper_configuration_rolls_its_pods() -> None:
    def annotations(values: Manifest) -> Manifest:
        stateful = one(helm.template(values), "StatefulSet")
        found: Manifest = stateful["spec"]["template"]["metadata"]["annotations"]
        return found

    assert annotations({}) == annotations({"monitoring": {"enabled": False}})
    assert annotations({}) != annotations({"zookeeper": {"tickTimeMs": 3000}})


def test_new_chart_version_alone_restarts_nothing(tmp_path: Path) -> None:
    newer = tmp_path / "odradek"
    shutil.copytree(helm.CHART, newer)
    metadata = yaml_text.load((newer / "Chart.yaml").read_text())
    # The images' tags are the appVersion where none is named.
    (newer / "Chart.yaml").write_text(yaml.safe_dump(metadata | {"version": "9.9.9"}))

    def templates(chart: Path) -> list[Manifest]:
        kinds = ("Deployment", "StatefulSet")
        rendered = helm.template(chart=chart)
        return [one["spec"]["template"] for one in rendered if one["kind"] in kinds]

    assert len(templates(newer)) == 2
    assert templates(newer) == templates(helm.CHART)


def test_monitors_come_only_where_their_kinds_exist() -> None:
    def kinds(*, monitoring: bool = False) -> set[str]:
        rendered = helm.template(monitoring=monitoring)
        return {one["kind"] for one in rendered} & set(helm.MONITORING)

    assert kinds() == set()
    assert kinds(monitoring=True) == set(helm.MONITORING)


def test_namespaces_that_the_operator_names_are_not_replaced_by_its_own() -> None:
    (endpoint,) = one(helm.template(monitoring=True), "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True


def test_targets_are_named_by_their_cluster_and_component() -> None:
    monitors = {
        one["metadata"]["name"]: one["spec"]
        for one in select(helm.template(monitoring=True), "PodMonitor")
    }
    assert set(monitors) == {"odradek", "odradek-zookeeper"}
    for monitor in monitors.values():
        assert "app.kubernetes.io/component" in monitor["podTargetLabels"]
    (endpoint,) = monitors["odradek"]["podMetricsEndpoints"]
    (rule,) = endpoint["relabelings"]
    for labels, expected in (
        (cluster_objects.labels(META), "main"),
        (exporter_objects.deployment(META, *EXPORTER)["metadata"]["labels"], "main"),
        (driver_objects.labels(META), None),
    ):
        names = {f"__meta_kubernetes_pod_label_{re.sub(r'[./-]', '_', one)}": one for one in labels}
        joined = ";".join(labels[names[source]] for source in rule["sourceLabels"])
        found = re.fullmatch(rule["regex"], joined)
        assert (found and found.expand(rule["replacement"].replace("$", "\\"))) == expected


def test_selectors_find_the_pods_of_this_release(rendered: list[Manifest]) -> None:
    labels = [
        o["spec"]["template"]["metadata"]["labels"]
        for o in rendered
        if o["kind"] in ("Deployment", "StatefulSet")
    ]
    for service in select(rendered, "Service"):
        selector = service["spec"]["selector"].items()
        assert len([found for found in labels if selector <= found.items()]) == 1
    made = ("console", "lag-exporter", "spark-driver")
    for policy in select(rendered, "NetworkPolicy"):
        selector = policy["spec"]["podSelector"]["matchLabels"].items()
        # The operator makes these.
        if not {("app.kubernetes.io/component", one) for one in made} & selector:
            assert len([found for found in labels if selector <= found.items()]) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"exporter": {"groups": "a("}},
        {"exporter": {"excludeTopics": "(?<=a)b"}},
        {"monitoring": {"rules": {"ignoreGroups": "*"}}},
    ],
)
def test_expression_that_neither_exporter_nor_prometheus_would_take_is_refused(
    values: Manifest,
) -> None:
    with pytest.raises(helm.HelmError, match="error parsing regexp"):
        helm.template(values, monitoring=True)


def test_view_and_edit_roles_aggregate_every_kind() -> None:
    objects = helm.template()
    for suffix, aggregates in (("view", "view"), ("edit", "edit")):
        role = one(objects, "ClusterRole", f"logs-odradek-{suffix}")
        label = f"rbac.authorization.k8s.io/aggregate-to-{aggregates}"
        assert role["metadata"]["labels"][label] == "true"
        assert set(KINDS) <= set(role["rules"][0]["resources"])
        scaled = {one for one in role["rules"][0]["resources"] if one.endswith("/scale")}
        assert scaled == {f"{kind}/scale" for kind in KINDS if has_scale(kind)}


def has_scale(kind: str) -> bool:
    crd = yaml_text.load((helm.CHART / f"crds/{kind}.yaml").read_text())
    return "scale" in crd["spec"]["versions"][0]["subresources"]


def test_executors_have_tokens_of_a_cloud_only_where_accounts_have_an_identity_there() -> None:
    def policy(values: Manifest | None = None) -> str:
        name = "logs-odradek-limit-jobs"
        return json.dumps(one(helm.template(values), "ValidatingAdmissionPolicy", name))

    annotations = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/jobs"}
    assert "projected" not in policy()
    assert "projected" in policy({"sparkJob": {"serviceAccount": {"annotations": annotations}}})
