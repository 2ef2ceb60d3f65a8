"""Every file of examples/ as the API server, and the tools that it is for, would take it."""

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest

from tests.cluster.settings import REPO
from tests.support import helm, yaml_text
from tests.support.apiserver import ApiServer
from tests.support.helm import Manifest
from tests.support.kubectl import Kubectl

EXAMPLES = REPO / "examples"
GITOPS_CRDS = Path(__file__).parent / "gitops_crds"
# Folders whose files are for `kubectl apply`.
APPLIED = ("kubectl", "autoscaling", "argocd", "flux")
# Namespaces that a user of the examples has already, or that the tools make.
NAMESPACES = ("logs", "analytics", "argocd", "flux-system")


def files(folder: str) -> list[Path]:
    return sorted((EXAMPLES / folder).glob("*.yaml"))


def documents(file: Path) -> list[Manifest]:
    return [found for found in yaml_text.load_all(file.read_text()) if found]


@pytest.fixture(scope="module")
def kubectl(api_server: ApiServer) -> Kubectl:
    """kubectl on an API server that knows our kinds, and those of Argo CD, Flux and KEDA."""
    call = api_server.call
    call("apply", "--server-side", "-f", str(GITOPS_CRDS))
    api_server.install_crds()
    for name in NAMESPACES:
        call.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return dataclasses.replace(call, namespace="logs")


def dry_run(kubectl: Kubectl, *objects: Manifest, kind: str = "create") -> str:
    """Send objects through admission and validation; nothing is kept."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    return kubectl(kind, "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)


def test_no_example_is_left_out() -> None:
    tried = {*(one for folder in APPLIED for one in files(folder)), *files("helm")}
    others = set(EXAMPLES.rglob("*.yaml")) - tried
    assert {file.parent.name for file in others} == {"quickstart", "plain"}


@pytest.mark.parametrize(
    "file",
    [one for folder in APPLIED for one in files(folder)],
    ids=lambda file: f"{file.parent.name}/{file.name}",
)
def test_example_is_accepted(kubectl: Kubectl, file: Path) -> None:
    for found in documents(file):
        # Each file says where it belongs; the namespace that one of them makes is there already.
        where = dataclasses.replace(kubectl, namespace=found["metadata"].get("namespace", "logs"))
        assert re.search(
            r"(created|configured) \(server dry run\)", dry_run(where, found, kind="apply")
        )


def test_schema_of_the_tools_refuses_what_they_do_not_know(kubectl: Kubectl) -> None:
    (application,) = documents(EXAMPLES / "argocd/application.yaml")
    application["spec"]["syncPolicy"]["automatic"] = {}
    with pytest.raises(AssertionError, match=r"unknown field.*automatic"):
        dry_run(dataclasses.replace(kubectl, namespace="argocd"), application)


@pytest.mark.parametrize("file", [EXAMPLES / "quickstart/values.yaml", *files("helm")], ids=str)
def test_release_with_example_values_is_accepted(kubectl: Kubectl, file: Path) -> None:
    objects = helm.template(files=(file,), namespace="logs")
    by_namespace: dict[str, list[Manifest]] = {}
    for one in objects:
        by_namespace.setdefault(one["metadata"].get("namespace", "logs"), []).append(one)
    for namespace, found in by_namespace.items():
        # The admission of pods wants service accounts that exist.
        made = [one for one in found if one["kind"] != "Pod"]
        dry_run(dataclasses.replace(kubectl, namespace=namespace), *made)


def test_chart_takes_the_values_that_gitops_tools_give_it() -> None:
    (application,) = documents(EXAMPLES / "argocd/application.yaml")
    source = application["spec"]["source"]
    releases = documents(EXAMPLES / "flux/release.yaml")
    (flux,) = [one["spec"] for one in releases if one["kind"] == "HelmRelease"]
    assert source["path"] == flux["chart"]["spec"]["chart"] == "charts/odradek"
    for values in (source["helm"]["valuesObject"], flux["values"]):
        # Both apply the CRDs themselves.
        names = [one["metadata"]["name"] for one in helm.template(values)]
        assert [name for name in names if name.endswith("-crds")] == []
    assert (flux["install"]["crds"], flux["upgrade"]["crds"]) == ("Create", "CreateReplace")


def releases() -> list[tuple[str, Manifest]]:
    """Namespace and values of each release that the examples install."""
    found = []
    for file in files("helm"):
        (namespace,) = re.findall(r"^# helm upgrade .* -n (\S+)", file.read_text(), re.MULTILINE)
        found.append((namespace, yaml_text.load(file.read_text())))
    argo = documents(EXAMPLES / "argocd/application.yaml")[0]["spec"]
    values = argo["source"]["helm"]["valuesObject"]
    found.append((argo["destination"]["namespace"], values))
    for one in documents(EXAMPLES / "flux/release.yaml"):
        if one["kind"] == "HelmRelease":
            found.append((one["spec"]["targetNamespace"], one["spec"]["values"]))
    return found


def test_resources_find_zookeeper_in_every_example_of_a_release() -> None:
    shown = [one for file in files("kubectl") for one in documents(file)]
    clusters = [one["spec"]["zookeeper"] for one in shown if one["kind"] == "KafkaCluster"]
    servers = {one["connect"] for one in clusters}
    logins = {one["authentication"]["secretName"] for one in clusters}
    assert len(releases()) == 4
    for namespace, values in releases():
        objects = helm.template(values, namespace=namespace)
        made = {
            (one["kind"], one["metadata"]["name"], one["metadata"].get("namespace"))
            for one in objects
        }
        assert ("Service", "zookeeper", namespace) in made
        assert servers == {f"zookeeper.{namespace}.svc.cluster.local:2181"}
        # Who asks nobody for a login has no user for it.
        authentication = values["zookeeper"]["authentication"]
        assert logins == {authentication["secretName"]}
        is_made = ("Secret", "zookeeper", namespace) in made
        assert is_made == authentication.get("generate", False)


def test_namespaces_that_gitops_tools_make_admit_brokers() -> None:
    level = {"pod-security.kubernetes.io/enforce": "privileged"}
    for file in files("argocd"):
        for one in documents(file):
            if one["kind"] == "Application":
                policy = one["spec"]["syncPolicy"]
                assert "CreateNamespace=true" in policy["syncOptions"]
                assert policy["managedNamespaceMetadata"] == {"labels": level}
    made = {one["kind"]: one for one in documents(EXAMPLES / "flux/release.yaml")}
    release = made["HelmRelease"]["spec"]
    namespace = made["Namespace"]["metadata"]
    assert (namespace["name"], namespace["labels"]) == (release["targetNamespace"], level)
    assert namespace["annotations"] == {"kustomize.toolkit.fluxcd.io/prune": "disabled"}
    assert "createNamespace" not in release["install"]


def test_topics_of_argo_wait_for_the_kinds_that_the_other_application_brings() -> None:
    (topics,) = documents(EXAMPLES / "argocd/topics.yaml")
    assert topics["spec"]["syncPolicy"]["retry"]["limit"] < 0


def test_flux_waits_for_resources_that_exist() -> None:
    (kustomization,) = documents(EXAMPLES / "flux/topics.yaml")
    shown = [*files("kubectl"), EXAMPLES / "quickstart/kafka.yaml"]
    known = {(one["kind"], one["metadata"]["name"]) for file in shown for one in documents(file)}
    waits = {(one["kind"], one["name"]) for one in kustomization["spec"]["healthChecks"]}
    assert waits <= known


def test_quickstart_is_accepted_whole(kubectl: Kubectl) -> None:
    rendered = kubectl("kustomize", str(EXAMPLES / "quickstart"))
    objects = list(yaml_text.load_all(rendered))
    answer = dry_run(kubectl, *objects, kind="apply")
    for expected in ("main", "cluster-logs", "log-counts"):
        assert f"/{expected} created (server dry run)" in answer


def rendered_plain(kubectl: Kubectl, folder: Path) -> list[Manifest]:
    """Return the quickstart with its component plain, as if its line were switched on."""
    quickstart = os.path.relpath(EXAMPLES / "quickstart", folder)
    choice = {"resources": [quickstart], "components": [f"{quickstart}/plain"]}
    (folder / "kustomization.yaml").write_text(json.dumps(choice))
    return list(yaml_text.load_all(kubectl("kustomize", str(folder))))


def test_quickstart_can_be_switched_to_plain_text(kubectl: Kubectl, tmp_path: Path) -> None:
    line = "\n# components: [plain]\n"
    assert line in (EXAMPLES / "quickstart/kustomization.yaml").read_text()
    objects = rendered_plain(kubectl, tmp_path)
    assert "main created (server dry run)" in dry_run(kubectl, *objects, kind="apply")
    (cluster,) = [one for one in objects if one["kind"] == "KafkaCluster"]
    assert not {"listeners", "authorization"} & {*cluster["spec"]}
    assert "authentication" not in cluster["spec"]["zookeeper"]
    collectors = [one for one in objects if one["metadata"]["name"].startswith("collector")]
    pods = [one["spec"]["template"]["spec"] for one in collectors if "template" in one["spec"]]
    assert len(pods) == 2
    for pod in pods:
        (container,) = pod["containers"]
        found = {one["name"]: one.get("value") for one in container["env"]}
        assert found["BOOTSTRAP"] == "main-brokers.logs.svc.cluster.local:9092"
        assert not {"CREDENTIALS", "USERNAME"} & {*found}
        mounted = {one["name"] for one in container["volumeMounts"]}
        assert mounted == {one["name"] for one in pod["volumes"]}
        assert "credentials" not in mounted


def test_quickstart_images_are_the_ones_that_are_built(kubectl: Kubectl) -> None:
    rendered = yaml_text.load_all(kubectl("kustomize", str(EXAMPLES / "quickstart")))
    images = {
        container["image"]
        for found in rendered
        if found["kind"] in ("Deployment", "DaemonSet")
        for container in found["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"localhost/odradek/collector:dev", "localhost/odradek/prometheus:dev"}


def test_example_values_name_the_service_that_the_quickstart_connects_to() -> None:
    objects = helm.template(files=(EXAMPLES / "quickstart/values.yaml",), namespace="logs")
    services = {o["metadata"]["name"] for o in objects if o["kind"] == "Service"}
    kafka = (EXAMPLES / "quickstart/kafka.yaml").read_text()
    cluster = next(o for o in yaml_text.load_all(kafka) if o["kind"] == "KafkaCluster")
    host, _, port = cluster["spec"]["zookeeper"]["connect"].partition(":")
    assert host.split(".")[0] in services
    assert host.endswith(".logs.svc.cluster.local")
    assert port == "2181"
    (login,) = [one["metadata"]["name"] for one in objects if one["kind"] == "Secret"]
    assert cluster["spec"]["zookeeper"]["authentication"] == {"secretName": login}


def test_quickstart_fits_on_nodes_of_two_cores(kubectl: Kubectl) -> None:
    def millicores(quantity: object) -> int:
        text = str(quantity)
        return int(text[:-1]) if text.endswith("m") else int(float(text) * 1000)

    rendered = list(yaml_text.load_all(kubectl("kustomize", str(EXAMPLES / "quickstart"))))
    specs = {
        o["kind"]: o["spec"] for o in rendered if o["kind"] in ("KafkaCluster", "ConsumerGroup")
    }
    job = specs["ConsumerGroup"]["job"]
    # The worst node: driver and executors, whose volume is local, a broker, and every other pod.
    executor = job["sparkConf"]["spark.kubernetes.executor.request.cores"]
    wanted = [job["driver"]["cores"], *[executor] * job["executors"]["instances"]]
    wanted.append(specs["KafkaCluster"]["brokers"]["resources"]["requests"]["cpu"])
    release = helm.template(files=(EXAMPLES / "quickstart/values.yaml",))
    (operator,) = [one for one in release if one["kind"] == "Deployment"]
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    wanted.append(json.loads(environment["ODRADEK_EXPORTER"])["resources"]["requests"]["cpu"])
    for found in rendered + release:
        if found["kind"] in ("Deployment", "StatefulSet", "DaemonSet"):
            containers = found["spec"]["template"]["spec"]["containers"]
            wanted += [c["resources"]["requests"]["cpu"] for c in containers]
    assert sum(map(millicores, wanted)) <= 2000
