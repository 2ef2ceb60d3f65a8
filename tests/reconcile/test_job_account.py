"""What the code of a job can do with its account: start executors of its own driver, and no more.

The accounts are those that the operator makes, and the policy is the chart's. The tests act with
the token that the kubelet would mount in a driver.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reconcile.conftest import Operator, Place
from tests.reconcile.drivers import reporting
from tests.reconcile.job_drivers import SECONDS, Job, Pod, driver_of, group, limit_jobs, run_at
from tests.reconcile.job_spark import PATIENCE_S, SparkDriver, kill
from tests.support import objects, zookeeper
from tests.support.apiserver import ApiServer
from tests.support.kubectl import KubectlError, eventually
from tests.support.ports import own_address

SCALES = "/apis/odradek.io/v1alpha1/namespaces/{}/consumergroups"

# Executors of such a job are as welcome as those of the least.
ADDED: dict[str, Any] = {
    "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}],
    "secretRefs": [{"name": "s3"}],
    "podAnnotations": {"team": "web"},
    "template": {
        "metadata": {"labels": {"team": "web"}},
        "spec": {
            "volumes": [{"name": "models", "configMap": {"name": "models"}}],
            "containers": [
                {
                    "name": "spark",
                    "envFrom": [{"configMapRef": {"name": "settings"}}],
                    "volumeMounts": [{"name": "models", "mountPath": "/models"}],
                }
            ],
        },
    },
}


# Kubernetes changes pods of a namespace with such a thing before the policy sees them.
DEFAULTS: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "defaults"},
    "spec": {"limits": [{"type": "Container", "default": {"ephemeral-storage": "1Gi"}}]},
}


@pytest.fixture(scope="module")
def job(
    api: ApiServer, zk: zookeeper.Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Job]:
    """A hostile job, beside another one and beside brokers."""
    name, folder = "job-accounts", tmp_path_factory.mktemp("jobs")
    api.create_namespace(name)
    limit_jobs(api)
    log = folder / "operator.log"
    with zk.client() as root:
        root.ensure_path(f"/{name}")
    with zk.client(f"/{name}") as client, Operator(api, name, log, "operator-0"):
        place = Place(api, zk, client, name)
        place.create_cluster()
        place.kubectl.apply(DEFAULTS)
        place.kubectl.apply(group("hostile", **ADDED), group("victim"))
        driver_of(place, api, "victim", folder)
        hostile = driver_of(place, api, "hostile", folder)
        # Rights and policies count a moment after they were written.
        first = hostile.executor()
        eventually(lambda: not hostile.create(first), "an executor is admitted", pause_s=0.2)
        stranger = broker("hostile-probe")
        place.kubectl.apply(stranger)

        def limited() -> bool:
            if not hostile.exists("hostile-probe"):
                place.kubectl.apply(stranger)
            return "not owned" in hostile.delete("hostile-probe")

        eventually(limited, "the policy counts", pause_s=0.2)
        yield hostile
    print(log.read_text())


def secret_of(job: Job, name: str) -> str:
    """Return the name of the Secret that the driver and executors of a job share."""
    uid = job.place.kubectl.get("consumergroup", name)["metadata"]["uid"]
    return f"{name}-auth-{uid[:8]}"


def broker(name: str = "main-broker-0") -> Pod:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"odradek.io/cluster": "main"}},
        "spec": {"containers": [{"name": "broker", "image": "registry.test/broker:1"}]},
    }


def changed(pod: Pod, path: str, value: Any) -> Pod:
    """Return a copy with one field set; a number in the path is a place in a list."""
    at: Any = pod
    *parents, last = path.split("/")
    for name in parents:
        at = at[int(name)] if isinstance(at, list) else at.setdefault(name, {})
    if isinstance(at, list):
        at.append(value)
    else:
        at[last] = value
    return pod


_C = "spec/containers/0"
# What EKS' webhook adds to the pods of an account with a role.
CLOUD = {"serviceAccountToken": {"path": "token", "audience": "sts.amazonaws.com"}}
ATTACKS: list[tuple[str, Any, str]] = [
    (f"{_C}/securityContext", {"privileged": True}, "run restricted"),
    (f"{_C}/securityContext/allowPrivilegeEscalation", True, "run restricted"),
    (f"{_C}/securityContext/capabilities", {"drop": ["ALL"], "add": ["NET_RAW"]}, "restricted"),
    (f"{_C}/securityContext/runAsUser", 0, "run restricted"),
    (f"{_C}/ports", [{"containerPort": 9092, "hostPort": 9092}], "run restricted"),
    (f"{_C}/image", "registry.test/miner:1", "image of their job"),
    (f"{_C}/envFrom", [{"secretRef": {"name": "victim-auth"}}], "Secrets and ConfigMaps"),
    (
        f"{_C}/env",
        [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "victim-auth", "key": "secret"}}}],
        "Secrets and ConfigMaps",
    ),
    ("spec/hostNetwork", True, "share nothing"),
    ("spec/hostPID", True, "share nothing"),
    ("spec/hostIPC", True, "share nothing"),
    ("spec/nodeName", "node1", "share nothing"),
    ("spec/volumes/+", {"name": "h", "hostPath": {"path": "/"}}, "no other volumes"),
    ("spec/volumes/+", {"name": "s", "secret": {"secretName": "victim-auth"}}, "no other volumes"),
    (
        "spec/volumes/+",
        {"name": "c", "persistentVolumeClaim": {"claimName": "victim-data"}},
        "no other volumes",
    ),
    *(
        ("spec/volumes/+", {"name": "t", "projected": {"sources": sources}}, "no other volumes")
        for sources in (
            [{"serviceAccountToken": {"path": "t"}}],
            [{"serviceAccountToken": {"path": "t", "audience": "https://kubernetes.default.svc"}}],
            [CLOUD, {"secret": {"name": "victim-auth"}}],
        )
    ),
    ("spec/serviceAccountName", "odradek-job-victim", "account of their job"),
    ("spec/automountServiceAccountToken", True, "no token"),
    ("spec/securityContext/runAsNonRoot", False, "not as root"),
    ("spec/securityContext/seccompProfile", {"type": "Unconfined"}, "not as root"),
    ("spec/priorityClassName", "system-node-critical", "priority class"),
    (
        "spec/initContainers",
        [{"name": "i", "image": "registry.test/theirs:1", "securityContext": {"privileged": True}}],
        "restricted",
    ),
    ("metadata/name", "main-broker-1", "no other pod has"),
    ("metadata/labels/odradek.io~1group", "victim", "its own ConsumerGroup"),
    ("metadata/labels/odradek.io~1cluster", "main", "no other labels"),
    ("metadata/labels/app", "shop", "no other labels"),
    ("metadata/annotations/sidecar.istio.io~1inject", "true", "no other annotations"),
    ("metadata/annotations/odradek.io~1executor-limits", "image/any", "not the one"),
    ("metadata/ownerReferences", [], "is not owned by the driver"),
]


def test_hostile_job_gets_no_pod_but_its_executors(job: Job) -> None:
    for path, value, why in ATTACKS:
        pod = job.executor()
        if path.startswith("metadata/labels/") or path.startswith("metadata/annotations/"):
            _, kind, key = path.split("/")
            pod["metadata"][kind][key.replace("~1", "/")] = value
        else:
            changed(pod, path, value)
        refused = job.create(pod)
        assert why in refused, (path, refused)
        assert not job.exists(pod["metadata"]["name"]), path
    # The same pod without any of these is welcome.
    assert job.create(job.executor()) == ""
    identified = {"name": "aws-iam-token", "projected": {"sources": [CLOUD]}}
    assert job.create(changed(job.executor(), "spec/volumes/+", identified)) == ""


def test_hostile_job_cannot_join_another_driver(job: Job) -> None:
    victim = job.admin.read("pod", job.place.namespace, "victim-driver")["metadata"]
    pod = job.executor()
    pod["metadata"]["ownerReferences"][0].update(name=victim["name"], uid=victim["uid"])
    assert "owned" in job.create(pod)
    names = [secret_of(job, one) for one in ("hostile", "victim")]
    read = [job.admin.read("secret", job.place.namespace, name) for name in names]
    assert len({one["data"]["secret"] for one in read}) == 2
    for name in names:
        with pytest.raises(objects.ApiError, match="Forbidden"):
            job.client.read("secret", job.place.namespace, name)


def test_hostile_job_ends_no_pod_but_its_executors(job: Job) -> None:
    job.admin.create(job.place.namespace, broker())
    own = job.executor()
    assert job.create(own) == ""
    kept = ("main-broker-0", "victim-driver", "hostile-driver")
    for name in kept:
        assert "is not owned by the driver" in job.delete(name), name
    # The API server asks the policy for each pod of such a request.
    for selector in ("odradek.io/cluster=main", "odradek.io/group=victim", "!spark-role"):
        assert "is not owned by the driver" in job.delete_all(selector), selector
    assert all(map(job.exists, kept))
    assert job.create(again := job.executor()) == ""
    assert job.delete(again["metadata"]["name"]) == ""
    assert job.delete_all("odradek.io/group=hostile,spark-role=executor") == ""
    assert not job.exists(again["metadata"]["name"])


def test_account_of_a_job_has_no_right_beside_pods(job: Job) -> None:
    name, group = {"name": "hostile"}, "rbac.authorization.k8s.io"
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"}
    bound = {"roleRef": role, "subjects": []}
    for kind, version, rest in (
        ("ConfigMap", "v1", {}),
        ("Service", "v1", {"spec": {"ports": [{"port": 1}]}}),
        ("PersistentVolumeClaim", "v1", {}),
        ("RoleBinding", f"{group}/v1", bound),
    ):
        body = {"apiVersion": version, "kind": kind, "metadata": name, **rest}
        with pytest.raises(objects.ApiError, match="Forbidden"):
            job.client.create(job.place.namespace, body)
    with pytest.raises(objects.ApiError, match="Forbidden"):
        job.client.apply(job.place.namespace, broker("hostile-driver"))
    with pytest.raises(objects.ApiError, match="Forbidden"):
        job.client.token(job.place.namespace, "odradek-job-victim", SECONDS)


def test_template_that_asks_for_more_is_refused_by_the_name_of_its_field(job: Job) -> None:
    job.place.kubectl.apply(group("greedy", template={"spec": {"hostNetwork": True}}))
    told = job.place.wait_for("consumergroup", "greedy", "InvalidJob")
    assert told["message"] == "spec.job.template.spec.hostNetwork may not be set"
    assert not job.exists("greedy-driver")


def test_executors_have_the_default_priority_where_the_cluster_has_one(
    job: Job, api: ApiServer, tmp_path: Path
) -> None:
    usual = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "usual"},
        "value": 7,
        "globalDefault": True,
    }
    job.admin.apply("", usual)
    try:
        job.place.kubectl.apply(group("usual"))
        other = driver_of(job.place, api, "usual", tmp_path)
        assert other.driver["spec"]["priorityClassName"] == "usual"
        mine = other.executor()
        eventually(lambda: not other.create(mine), "an executor is admitted", pause_s=0.2)
        # The account of the first job was made when there was no default.
        assert "priority class" in job.create(job.executor())
        # As if somebody had deleted it, or the operator had ended before it knew the priority.
        for kind in ("rolebinding", "role"):
            job.admin.delete(kind, job.place.namespace, "odradek-job-usual")
        eventually(lambda: "orbidden" in other.create(other.executor()), "no rights", pause_s=0.2)
        address = own_address()
        with reporting(address, {"state": "Running", "executors": 0, "executorsWanted": 1}):
            run_at(job.place, "usual", address)
            job.place.wait_for("consumergroup", "usual", "ExecutorsPending")
            mine = other.executor()
            eventually(lambda: not other.create(mine), "an executor is admitted again", pause_s=0.2)
    finally:
        job.admin.delete("priorityclass", "", "usual")


def test_job_is_scaled_without_a_restart_of_its_driver(job: Job) -> None:
    kubectl, address = job.place.kubectl, own_address()
    before = kubectl.get("pod", "victim-driver")["metadata"]["uid"]
    report = {"state": "Running", "executors": 1, "executorsWanted": 1, "lastBatchId": 0}

    def told() -> str:
        return str(kubectl.get("configmap", "victim-job")["data"]["executors"])

    with reporting(address, report):
        run_at(job.place, "victim", address)
        job.place.wait_for("consumergroup", "victim", "Running")
        kubectl("scale", "consumergroup", "victim", "--replicas=3")
        eventually(lambda: told() == "3\n", "the driver is told", pause_s=0.5)
        waits = job.place.wait_for("consumergroup", "victim", "ExecutorsPending")
        assert waits["message"].startswith("1 of 3 executors run")
        report.update(executors=3, executorsWanted=3)
        job.place.wait_for("consumergroup", "victim", "Running")
        # What an autoscaler reads.
        found = json.loads(
            kubectl("get", "--raw", f"{SCALES.format(job.place.namespace)}/victim/scale")
        )
        selector = "app.kubernetes.io/component=spark-executor,odradek.io/group=victim"
        assert found["spec"] == {"replicas": 3}
        assert found["status"] == {"replicas": 3, "selector": selector}
    with pytest.raises(KubectlError, match="instances"):
        kubectl("scale", "consumergroup", "victim", "--replicas=0")
    assert kubectl.get("pod", "victim-driver")["metadata"]["uid"] == before


def test_ui_of_a_job_has_a_service_that_goes_with_its_driver(job: Job) -> None:
    kubectl, address = job.place.kubectl, own_address()
    body = group("shown", ui={"enabled": True})
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "taken-driver-ui"},
        "spec": {"ports": [{"port": 1}], "selector": {"their": "own"}},
    }
    kubectl.apply(body, foreign, group("taken", ui={"enabled": True}))

    def owned(former: str = "") -> str:
        driver = str(kubectl.get("pod", "shown-driver")["metadata"]["uid"])
        assert driver != former
        return driver

    def service_of(driver: str) -> Pod:
        found: Pod = kubectl.get("service", "shown-driver-ui")
        assert [one["uid"] for one in found["metadata"]["ownerReferences"]] == [driver]
        return found

    report = {"state": "Running", "executors": 1, "lastBatchId": 0}
    first = eventually(owned, "a driver", pause_s=0.2)
    with reporting(address, report):
        run_at(job.place, "shown", address)
        found = eventually(lambda: service_of(first), "its Service", pause_s=0.2)
        assert found["spec"]["type"] == "ClusterIP"
        labels = kubectl.get("pod", "shown-driver")["metadata"]["labels"]
        assert found["spec"]["selector"].items() <= labels.items()
        (port,) = found["spec"]["ports"]
        (container,) = kubectl.get("pod", "shown-driver")["spec"]["containers"]
        ports = {one["name"]: one["containerPort"] for one in container["ports"]}
        assert (port["port"], ports[port["targetPort"]]) == (4040, 4040)
        kubectl("delete", "pod", "shown-driver", "--force", "--grace-period=0")
        second = eventually(lambda: owned(first), "the next driver", pause_s=0.2)
        run_at(job.place, "shown", address)
        eventually(lambda: service_of(second), "its Service", pause_s=0.2)
        run_at(job.place, "taken", address)
        job.place.wait_for("consumergroup", "taken", "Running")
    assert kubectl.get("service", "taken-driver-ui")["spec"]["selector"] == {"their": "own"}
    (other,) = kubectl.get("pod", "victim-driver")["spec"]["containers"]
    assert [one["name"] for one in other["ports"]] == ["metrics"]
    with pytest.raises(KubectlError, match="volume"):
        kubectl.apply(
            group("bad", volume=None, checkpoint={"url": "s3a://b/c"}, eventLog={"path": "/data/e"})
        )


def test_what_the_operator_made_for_a_job_goes_with_its_resource(job: Job) -> None:
    uid = job.place.kubectl.get("consumergroup", "hostile")["metadata"]["uid"]
    for kind, name in (
        ("serviceaccount", "odradek-job-hostile"),
        ("role", "odradek-job-hostile"),
        ("rolebinding", "odradek-job-hostile"),
        ("secret", secret_of(job, "hostile")),
        ("configmap", "hostile-job"),
        ("pod", "hostile-driver"),
    ):
        meta = job.admin.read(kind, job.place.namespace, name)["metadata"]
        assert [one["uid"] for one in meta["ownerReferences"]] == [uid], kind
        assert meta["labels"]["odradek.io/group"] == "hostile", kind


@pytest.mark.full(
    "tests/reconcile/test_job_account.py::test_hostile_job_gets_no_pod_but_its_executors"
)
def test_spark_starts_and_ends_executors_within_these_limits(
    job: Job, api: ApiServer, tmp_path: Path
) -> None:
    driver = SparkDriver(job, api, tmp_path)
    running: list[subprocess.Popen[bytes]] = []
    try:
        (pod,) = eventually(driver.pods, "an executor's pod", pause_s=0.2)
        stolen = tmp_path / "stolen"
        stolen.write_bytes(driver.key.read_bytes()[::-1])
        stranger = driver.run(pod, stolen)
        running.append(stranger)
        assert stranger.wait(timeout=PATIENCE_S) != 0
        driver.archive.keep()
        assert driver.ask("count") == 0
        running.append(driver.run(pod, driver.key))
        eventually(
            lambda: driver.ask("count") == 1, "the executor is registered", PATIENCE_S, pause_s=0.5
        )
        assert driver.ask("resize 3") == 1
        eventually(lambda: len(driver.pods()) == 3, "more executors", pause_s=0.5)
        (second, *_) = [
            one for one in driver.pods() if one["metadata"]["name"] != pod["metadata"]["name"]
        ]
        running.append(driver.run(second, driver.key))
        eventually(
            lambda: driver.ask("count") == 2, "another is registered", PATIENCE_S, pause_s=0.5
        )
        driver.ask("resize 1")
        # The younger one is told to end.
        assert running[2].wait(timeout=PATIENCE_S) is not None
        eventually(lambda: driver.ask("count") == 1, "one is left", pause_s=0.5)
        eventually(lambda: len(driver.pods()) == 1, "executors that wait are withdrawn")
        assert driver.stop() == 0
        assert running[1].wait(timeout=PATIENCE_S) is not None
        eventually(lambda: not driver.pods(), "all executors are deleted", pause_s=0.5)
        assert "Forbidden" not in driver.said()
        assert "forbidden" not in driver.said()
    finally:
        for one in running:
            kill(one)
        driver.close()
