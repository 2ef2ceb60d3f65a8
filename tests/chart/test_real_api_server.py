"""A real API server takes what the chart and the examples say, and holds the rights they give."""

import base64
import dataclasses
import functools
import json
import textwrap
import urllib.parse
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from charts.odradek.files import apply_crds
from tests.cluster.settings import REPO
from tests.support import apiserver, helm, yaml_text
from tests.support.helm import Manifest
from tests.support.kubectl import Kubectl, KubectlError, eventually

EXAMPLES = REPO / "examples"
RESTRICTED = "restricted-release"
KINDS = ["kafkaclusters", "users", "topics", "reassignments", "consumergroups"]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apiserver.ApiServer]:
    """An API server with this chart installed where only restricted pods may run."""
    with apiserver.ApiServer(tmp_path_factory.mktemp("api")) as server:
        level = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": RESTRICTED, "labels": level}
        server.call.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        # Nothing runs the hook's Job here; a test below does what its pod would.
        options = [*install_options(server), "--no-hooks"]
        helm.run("install", "odradek", str(helm.CHART), *options)
        yield server


@pytest.fixture(scope="module")
def kubectl(api: apiserver.ApiServer) -> Kubectl:
    """kubectl with all rights, in the release's namespace."""
    return dataclasses.replace(api.call, namespace=RESTRICTED)


def install_options(api: apiserver.ApiServer) -> list[str]:
    """Options of helm for the release of these tests: everything that can be switched on."""
    return [
        f"--kubeconfig={api.kubeconfig}",
        f"--namespace={RESTRICTED}",
        "--set=zookeeper.replicas=3,networkPolicy.enabled=true,networkPolicy.nodeCidrs={10.0.0.0/8}",
        "--set=zookeeper.authentication.secretName=zookeeper,zookeeper.authentication.generate=true",
        "--set=networkPolicy.zookeeperFrom[0].podSelector.matchLabels.app=old-consumer",
    ]


def pods(objects: list[Manifest]) -> Iterator[Manifest]:
    """The pods that the controllers would make of these objects."""
    for found in objects:
        if found["kind"] in ("Deployment", "StatefulSet", "Job"):
            template = found["spec"]["template"]
            name = f"{found['metadata']['name']}-pod"
            metadata = template["metadata"] | {"name": name}
            yield {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata,
                "spec": template["spec"],
            }
        elif found["kind"] == "Pod":
            yield found


def dry_run(kubectl: Kubectl, *objects: Manifest, kind: str = "create") -> str:
    """Send objects through admission and validation; nothing is kept."""
    text = json.dumps(listing(objects))
    return kubectl(kind, "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)


def listing(objects: Iterable[Manifest]) -> Manifest:
    """Several objects as the one that kubectl takes as JSON."""
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}


def test_every_pod_of_the_chart_is_admitted_as_restricted(kubectl: Kubectl) -> None:
    objects = helm.template({"zookeeper": {"replicas": 3}}, namespace=RESTRICTED)
    kubectl.apply(listing(o for o in objects if o["kind"] == "ServiceAccount"))
    made = list(pods(objects))
    assert {pod["metadata"]["name"] for pod in made} == {
        "odradek-operator-pod",
        "zookeeper-pod",
        "odradek-crds-pod",
        "odradek-test",
    }
    for pod in made:
        pod["metadata"]["namespace"] = RESTRICTED
        # The claim of a StatefulSet becomes a volume when its controller makes the pod.
        if pod["metadata"]["name"] == "zookeeper-pod":
            claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
            pod["spec"]["volumes"].append(claim)
        dry_run(kubectl, pod)


def test_ensemble_cannot_change_its_size(kubectl: Kubectl, api: apiserver.ApiServer) -> None:
    with pytest.raises(helm.HelmError, match="could outvote the one that holds it"):
        helm.run(
            "upgrade",
            "odradek",
            str(helm.CHART),
            *install_options(api),
            "--set=zookeeper.replicas=5",
            "--no-hooks",
        )


def test_ensemble_cannot_be_scaled_by_whoever_renders_no_chart(kubectl: Kubectl) -> None:
    def refusal(*words: str) -> str:
        # The API server takes a new policy into account a moment after it was created.
        try:
            kubectl(*words, "statefulset", "zookeeper", "--dry-run=server")
        except KubectlError as refused:
            return str(refused)
        return ""

    five = ("patch", "--patch", '{"spec": {"replicas": 5}}')
    for change in (("scale", "--replicas=5"), ("scale", "--replicas=0"), five):
        said = eventually(functools.partial(refusal, *change), f"{change}", pause_s=0.2)
        assert "an ensemble keeps its size" in said
    assert not refusal("scale", "--replicas=3")
    assert not refusal("patch", "--patch", '{"spec": {"minReadySeconds": 1}}')


def test_upgrade_of_an_unchanged_release_is_accepted(
    kubectl: Kubectl, api: apiserver.ApiServer
) -> None:
    options = [*install_options(api), "--no-hooks"]
    login = kubectl.get("secret", "zookeeper")["data"]
    assert "has been upgraded" in helm.run("upgrade", "odradek", str(helm.CHART), *options)
    # A password that was made up stays.
    assert kubectl.get("secret", "zookeeper")["data"] == login
    assert base64.b64decode(login["username"]) == b"odradek"
    assert len(base64.b64decode(login["password"])) == 40


def test_login_of_somebody_else_is_left_alone(kubectl: Kubectl, api: apiserver.ApiServer) -> None:
    literal = ("--from-literal=username=mine", "--from-literal=password=known")
    kubectl("create", "secret", "generic", "own", *literal)
    kept = kubectl.get("secret", "own")
    options = [*install_options(api), "--no-hooks"]
    own = "--set=zookeeper.authentication.secretName=own"
    helm.run("upgrade", "odradek", str(helm.CHART), *options, own)
    assert kubectl.get("secret", "own") == kept
    helm.run("upgrade", "odradek", str(helm.CHART), *options)
    # It stayed when nobody named it, as ZooKeeper's data does.
    assert kubectl.get("secret", "zookeeper")["metadata"]["annotations"]["helm.sh/resource-policy"]


def test_login_outlives_its_release_as_the_data_of_zookeeper_does(
    kubectl: Kubectl, api: apiserver.ApiServer
) -> None:
    namespace = "again"
    api.call.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    where = [f"--kubeconfig={api.kubeconfig}", f"--namespace={namespace}"]
    values = [f"--values={EXAMPLES}/helm/one-namespace.yaml", f"--set=watchNamespace={namespace}"]
    own = dataclasses.replace(kubectl, namespace=namespace)
    install = ("install", "again", str(helm.CHART), "--no-hooks", "--skip-crds", *where, *values)
    helm.run(*install)
    login = own.get("secret", "zookeeper")["data"]
    helm.run("uninstall", "again", "--no-hooks", *where)
    helm.run(*install)
    assert own.get("secret", "zookeeper")["data"] == login
    helm.run("uninstall", "again", "--no-hooks", *where)


def test_cluster_that_the_notes_propose_is_accepted(
    kubectl: Kubectl, api: apiserver.ApiServer
) -> None:
    notes = helm.run("get", "notes", "odradek", *install_options(api)[:2])
    proposal = notes.partition("apiVersion:")[2].partition("\n\n")[0]
    cluster = yaml_text.load(textwrap.dedent(f"  apiVersion:{proposal}"))
    assert cluster["metadata"]["namespace"] == RESTRICTED
    host = cluster["spec"]["zookeeper"]["connect"].partition(".")[0]
    kubectl("get", "service", host)
    # Without these a node that runs out of memory ends a broker first.
    assert set(cluster["spec"]["brokers"]["resources"]) == {"requests", "limits"}
    assert all(one["tls"] for one in cluster["spec"]["listeners"])
    assert "created (server dry run)" in dry_run(kubectl, cluster)


def test_notes_say_what_the_secret_for_zookeeper_lacks(
    kubectl: Kubectl, api: apiserver.ApiServer
) -> None:
    def notes(*sets: str) -> str:
        words = ("upgrade", "odradek", str(helm.CHART), *install_options(api), "--no-hooks")
        return helm.run(*words, "--dry-run=server", *sets).partition("NOTES:")[2]

    assert "the Secret zookeeper" not in notes()
    secured = notes("--set=zookeeper.tls.secretName=tls")
    assert ":2182, authentication: {secretName: zookeeper}}" in secured
    assert "the Secret zookeeper needs ca.crt" in secured
    without = "--set=zookeeper.authentication.secretName=,zookeeper.authentication.generate=false"
    alone = notes("--set=zookeeper.tls.secretName=tls", without)
    assert ":2182, authentication: {secretName: YOUR-SECRET}}" in alone
    assert "The Secret zookeeper must be in namespace apart" in notes("--set=watchNamespace=apart")


# --- rights ---------------------------------------------------------------------------------------

# An account of the release, a namespace, a verb, and a resource with its subresource or name.
Right = tuple[str, str, str, str]
OPERATOR = "odradek-operator"
DELETE = ("delete", "deletecollection")
MAY = [
    (OPERATOR, "other", verb, kind) for verb in ("get", "list", "watch", "patch") for kind in KINDS
]
MAY += [(OPERATOR, "other", "patch", f"{kind}/status") for kind in KINDS]
MAY += [(OPERATOR, "other", "update", f"{kind}/finalizers") for kind in KINDS]
OWNED = [
    "configmaps",
    "persistentvolumeclaims",
    "statefulsets.apps",
    "poddisruptionbudgets.policy",
]
MAY += [(OPERATOR, "other", verb, kind) for verb in ("get", "create", "patch") for kind in OWNED]
# Services of exposed listeners go with the listener.
MAY += [
    (OPERATOR, "other", verb, "services") for verb in ("get", "list", "create", "patch", "delete")
]
MAY += [(OPERATOR, "other", verb, "pods") for verb in ("get", "list", "watch", "create", "delete")]
MAY += [
    (OPERATOR, "other", verb, "deployments.apps") for verb in ("get", "create", "patch", "delete")
]
MAY += [
    (OPERATOR, "other", "create", "events"),
    (OPERATOR, "other", "get", "namespaces"),
    (OPERATOR, RESTRICTED, "create", "leases.coordination.k8s.io"),
    (OPERATOR, RESTRICTED, "update", "leases.coordination.k8s.io/odradek-operator"),
    (OPERATOR, "other", "update", "leases.coordination.k8s.io/odradek-operator"),
    (OPERATOR, "other", "list", "nodes"),
]
ACCOUNTS = [
    "serviceaccounts",
    "roles.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
]
MAY += [(OPERATOR, "other", verb, kind) for verb in ("get", "create", "patch") for kind in ACCOUNTS]
# What a job's Role gives, which nobody can give who has it not.
MAY += [
    *((OPERATOR, "other", verb, "secrets") for verb in ("get", "create", "patch")),
    (OPERATOR, "other", "deletecollection", "pods"),
    (OPERATOR, "other", "use", "executors.odradek.io"),
]
# What the operator made goes with its owner, by the garbage collector's rights.
MAY_NOT = [(OPERATOR, "other", verb, kind) for verb in ("list", "watch", *DELETE) for kind in OWNED]
MAY_NOT += [(OPERATOR, "other", verb, "services") for verb in ("watch", "deletecollection")]
MAY_NOT += [(OPERATOR, "other", verb, kind) for verb in ("list", *DELETE) for kind in ACCOUNTS]
MAY_NOT += [
    (OPERATOR, "other", verb, "deployments.apps") for verb in ("list", "watch", "deletecollection")
]
MAY_NOT += [
    (OPERATOR, "other", "list", "secrets"),
    (OPERATOR, "other", "watch", "secrets"),
    (OPERATOR, "other", "create", "pods/exec"),
    (OPERATOR, "other", "delete", "topics"),
    (OPERATOR, "other", "delete", "secrets"),
    (OPERATOR, "other", "bind", "roles.rbac.authorization.k8s.io"),
    (OPERATOR, "other", "escalate", "roles.rbac.authorization.k8s.io"),
    (OPERATOR, "other", "create", "serviceaccounts/token"),
    (OPERATOR, "other", "create", "clusterroles.rbac.authorization.k8s.io"),
    (OPERATOR, "other", "patch", "pods"),
    (OPERATOR, "other", "patch", "events"),
    (OPERATOR, "other", "get", "nodes"),
    (OPERATOR, "other", "patch", "nodes"),
    (OPERATOR, "other", "list", "namespaces"),
    (OPERATOR, "other", "delete", "namespaces"),
    (OPERATOR, "other", "list", "customresourcedefinitions.apiextensions.k8s.io"),
    (OPERATOR, "other", "patch", "leases.coordination.k8s.io/odradek-operator"),
    (OPERATOR, "other", "get", "leases.coordination.k8s.io/somebody-else"),
    (OPERATOR, RESTRICTED, "update", "leases.coordination.k8s.io/somebody-else"),
]


def review(right: Right) -> Manifest:
    """The question to the API server's authorizer whether an account has this right."""
    account, namespace, verb, resource = right
    kind, _, below = resource.partition("/")
    plural, _, group = kind.partition(".")
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{RESTRICTED}:{account}",
            "resourceAttributes": {
                "namespace": namespace,
                "verb": verb,
                "group": "odradek.io" if plural in KINDS else group,
                "resource": plural,
                # Below a lease is a name, below everything else a subresource.
                ("name" if plural == "leases" else "subresource"): below,
            },
        },
    }


@pytest.fixture(scope="module")
def verdicts(kubectl: Kubectl) -> dict[Right, bool]:
    """All questions in one request."""
    rights = MAY + MAY_NOT
    template = '{{.status.allowed}}{{"\\n"}}'
    options = ("-o", f"go-template={template}", "-f", "-")
    answers = kubectl("create", *options, stdin=json.dumps(listing(map(review, rights))))
    return dict(zip(rights, (line == "true" for line in answers.split()), strict=True))


@pytest.mark.parametrize("right", MAY, ids=" ".join)
def test_accounts_may_what_they_need(verdicts: dict[Right, bool], right: Right) -> None:
    assert verdicts[right]


@pytest.mark.parametrize("right", MAY_NOT, ids=" ".join)
def test_accounts_may_nothing_else(verdicts: dict[Right, bool], right: Right) -> None:
    assert not verdicts[right]


# --- CRDs -----------------------------------------------------------------------------------------


def certificate_authority(api: apiserver.ApiServer) -> str:
    """What the kubelet would mount beside a token."""
    (cluster,) = yaml_text.load(api.kubeconfig.read_text())["clusters"]
    return Path(cluster["cluster"]["certificate-authority"]).read_text()


def point_to(api: apiserver.ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what the kubelet would tell a pod of the API server's place."""
    url = urllib.parse.urlsplit(api.url)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(url.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(url.port))


def complete(kubectl: Kubectl, job: str) -> None:
    """Tell the API server what the controller of Jobs would when the pod has ended well."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [{"type": name, "status": "True"} for name in ("SuccessCriteriaMet", "Complete")]
    status = {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": conditions}
    patch = json.dumps({"status": status})
    kubectl("patch", "job", job, "--subresource=status", "--type=merge", f"--patch={patch}")


@pytest.mark.full(
    "tests/e2e/test_release.py::test_upgrade_from_the_previous_chart_brings_its_crds_and_restarts_nothing"
)
def test_installation_over_old_crds_restores_them_with_its_hooks_own_rights(
    kubectl: Kubectl,
    api: apiserver.ApiServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # An older chart had fewer columns and no short name.
    old = [{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns"}]
    old += [{"op": "remove", "path": "/spec/names/shortNames"}]
    kubectl("patch", "crd", "topics.odradek.io", "--type=json", f"--patch={json.dumps(old)}")

    again = dataclasses.replace(kubectl, namespace="again")
    install = ["install", "odradek", str(helm.CHART), "--set=zookeeper.enabled=false"]
    install += [f"--kubeconfig={api.kubeconfig}", "--namespace=again", "--create-namespace"]
    with ThreadPoolExecutor() as thread:
        installed = thread.submit(lambda: helm.run(*install, timeout_s=300))
        jobs = ("get", "jobs", "--ignore-not-found", "-o", "name")
        eventually(lambda: "odradek-crds" in again(*jobs), "the hook's Job", pause_s=0.2)
        account = tmp_path / "serviceaccount"
        account.mkdir()
        (account / "token").write_text(again("create", "token", "odradek-crds"))
        (account / "ca.crt").write_text(certificate_authority(api))
        mounted = tmp_path / "crds"
        mounted.mkdir()
        for name, text in again.get("configmap", "odradek-crds")["data"].items():
            (mounted / name).write_text(text)
        point_to(api, monkeypatch)
        # The API server takes new rights into account a moment after they were given.
        who = "--as=system:serviceaccount:again:odradek-crds"
        may = ("auth", "can-i", "patch", "customresourcedefinitions/topics.odradek.io", who)
        eventually(lambda: again(*may), "the hook's rights", pause_s=0.2)
        assert apply_crds.main(str(mounted), str(account)) == 0, capsys.readouterr().err
        assert capsys.readouterr().out.count(" applied\n") == len(KINDS)
        complete(again, "odradek-crds")
        assert "STATUS: deployed" in installed.result()

    left = again("get", "jobs,configmaps,serviceaccounts,clusterroles", "-o", "name")
    assert "-crds" not in left
    restored: dict[str, Any] = kubectl.get("crd", "topics.odradek.io")["spec"]
    source = yaml_text.load((REPO / "crds/topics.yaml").read_text())["spec"]
    assert restored["names"] == source["names"]
    columns = source["versions"][0]["additionalPrinterColumns"]
    assert len(restored["versions"][0]["additionalPrinterColumns"]) == len(columns)


def test_hook_fails_loudly_without_rights(
    kubectl: Kubectl,
    api: apiserver.ApiServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "token").write_text("nobody")
    (tmp_path / "ca.crt").write_text(certificate_authority(api))
    (tmp_path / "topics.odradek.io.yaml").write_text((REPO / "crds/topics.yaml").read_text())
    point_to(api, monkeypatch)
    assert apply_crds.main(str(tmp_path), str(tmp_path)) == 1
    assert "401" in capsys.readouterr().err


# --- resources ------------------------------------------------------------------------------------


def test_protected_topic_cannot_be_deleted_until_its_policy_changes(kubectl: Kubectl) -> None:
    topic = yaml_text.load((EXAMPLES / "kubectl/topic-placed-by-hand.yaml").read_text())
    topic["metadata"]["namespace"] = RESTRICTED
    kubectl.apply(topic)
    assert topic["spec"]["deletionPolicy"] == "Protect"

    def refusal() -> str:
        # The API server takes a new policy into account a moment after it was created.
        try:
            kubectl("delete", "topic", "audit", "--dry-run=server")
        except KubectlError as refused:
            return str(refused)
        return ""

    assert "deletionPolicy Protect" in eventually(refusal, "deletion is refused", pause_s=0.2)
    patch = '{"spec": {"deletionPolicy": "Retain"}}'
    kubectl("patch", "topic", "audit", "--type=merge", f"--patch={patch}")
    kubectl("delete", "topic", "audit")
