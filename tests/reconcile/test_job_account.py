"""What the code of a job can do with its account: start executors of its own driver, and no more.

The accounts are those that the operator makes, and the policy is the chart's. The tests act with
the token that the kubelet would mount in a driver.
"""

from __future__ import annotations

import base64
import copy
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from odradek_spark import cluster_conf, config, config_loading
from tests.cluster import settings
from tests.reconcile.conftest import Operator, Place
from tests.reconcile.drivers import reporting
from tests.support import helm, jvm, objects, spark_jars, zookeeper
from tests.support.apiserver import ApiServer
from tests.support.kubectl import KubectlError, eventually
from tests.support.ports import own_address

Pod = dict[str, Any]
SECONDS = 3600
# A machine that is short of time takes minutes to start a JVM with Spark.
PATIENCE_S = 400
SCALES = "/apis/odradek.io/v1alpha1/namespaces/{}/consumergroups"
# Spark itself counts from 1.
_numbers = itertools.count(1_000_000)


def group(name: str, **job: Any) -> dict[str, Any]:
    """A ConsumerGroup with a job that runs somebody's function."""
    return {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": name},
        "spec": {
            "clusterRef": {"name": "main"},
            "topics": ["t"],
            "job": {
                "python": "module:function",
                "image": "registry.test/theirs:1",
                "sink": {"console": {}},
                "volume": {"size": "1Gi"},
                **job,
            },
        },
    }


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


def limit_jobs(api: ApiServer) -> None:
    """Install the chart's policy, where accounts have an identity elsewhere."""
    annotations = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/jobs"}
    values = {"sparkJob": {"serviceAccount": {"annotations": annotations}}}
    # Releases of other tests on the same API server have policies of their own.
    for one in helm.template(values, namespace="limited"):
        if one["metadata"]["name"].endswith("-limit-jobs"):
            objects.client(api.kubeconfig).apply("", one)


@dataclass(frozen=True)
class Job:
    """A driver that the operator started, and what its process could do."""

    place: Place
    admin: objects.ObjectClient
    client: objects.ObjectClient
    driver: Pod
    job: config.Job
    environment: config.Environment
    kubeconfig: Path

    def executor(self) -> Pod:
        """Return an executor as Spark makes it of the template and its own properties."""
        pod: Pod = copy.deepcopy(dict(cluster_conf.executor_pod(self.job, self.environment)))
        conf = cluster_conf.spark_conf(self.job, self.environment, None)
        prefix = conf["spark.kubernetes.executor.podNamePrefix"]
        meta, driver = pod["metadata"], self.driver["metadata"]
        meta["name"] = f"{prefix}-exec-{next(_numbers)}"
        label = "spark.kubernetes.executor.label."
        marks = {key.removeprefix(label): conf[key] for key in conf if key.startswith(label)}
        meta["labels"] = {**meta["labels"], **marks, "spark-role": "executor"}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": driver["name"], "uid": driver["uid"]}
        meta["ownerReferences"] = [{**owner, "controller": True}]
        (container,) = pod["spec"]["containers"]
        container["image"] = conf["spark.kubernetes.container.image"]
        pod["spec"]["serviceAccountName"] = self.job.service_account
        claim = {"claimName": self.job.claim_name}
        pod["spec"]["volumes"].append({"name": "data", "persistentVolumeClaim": claim})
        pod["spec"]["volumes"].append({"name": "spark-local-dir-1", "emptyDir": {}})
        return pod

    def create(self, pod: Pod) -> str:
        """Create a pod as the job, and return why that is refused."""
        return self._refusal(lambda: self.client.create(self.place.namespace, pod))

    def delete(self, name: str) -> str:
        """Delete a pod as the job, and return why that is refused."""
        return self._refusal(lambda: self.client.delete("pod", self.place.namespace, name))

    def delete_all(self, selector: str) -> str:
        """Delete pods as the job, and return why that is refused."""
        return self._refusal(lambda: self.client.delete_all("pod", self.place.namespace, selector))

    def exists(self, name: str) -> bool:
        pods = self.admin.read("pod", self.place.namespace, "")["items"]
        # Nobody ends the containers here: what was deleted is gone, as it was never scheduled.
        return name in [one["metadata"]["name"] for one in pods]

    @staticmethod
    def _refusal(act: Any) -> str:
        try:
            act()
        except objects.ApiError as refused:
            return str(refused)
        return ""


def driver_of(place: Place, api: ApiServer, name: str, folder: Path) -> Job:
    """Wait for the driver that the operator starts, and take its token."""
    place.wait_for("consumergroup", name, "Pending")
    pod = place.kubectl.get("pod", f"{name}-driver")
    admin = objects.client(api.kubeconfig)
    account = pod["spec"]["serviceAccountName"]
    document = yaml.safe_load(api.kubeconfig.read_text())
    token = admin.token(place.namespace, account, SECONDS, pod)
    document["users"][0]["user"] = {"token": token}
    kubeconfig = folder / f"{name}.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(document))
    environment = config.Environment(
        pod_name=pod["metadata"]["name"],
        pod_namespace=place.namespace,
        pod_ip="127.0.0.1",
        pod_uid=pod["metadata"]["uid"],
        uid=10001,
        gid=10001,
    )
    text = place.kubectl.get("configmap", f"{name}-job")["data"]["job.json"]
    job = config_loading.parse_job(text, environment)
    return Job(place, admin, objects.client(kubeconfig), pod, job, environment, kubeconfig)


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


def run_at(place: Place, name: str, address: str) -> None:
    """Say that a driver runs, as its kubelet would."""
    image = {"image": "i", "imageID": "", "restartCount": 0}
    status = {
        "phase": "Running",
        "podIP": address,
        "containerStatuses": [{"name": "driver", "ready": True, **image}],
    }
    patch = json.dumps({"status": status})
    words = ("--subresource=status", "--type=merge", f"-p={patch}")
    place.kubectl("patch", "pod", f"{name}-driver", *words)


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


# What the driver does with Spark, with the number of executors from standard input.
SPARK = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from odradek_spark import cluster_conf, config_loading, executors
import os

environment = config_loading.parse_environment(os.environ, uid=10001, gid=10001)
job = config_loading.parse_job(Path(os.environ["ODRADEK_JOB"]).read_text(), environment)
Path("executor.yaml").write_text(cluster_conf.executor_pod_text(job, environment))
conf = cluster_conf.spark_conf(job, environment, "executor.yaml")
conf["spark.authenticate.secret.file"] = os.environ["AUTH_FILE"]
conf["spark.driver.bindAddress"] = "127.0.0.1"
conf["spark.dynamicAllocation.executorIdleTimeout"] = "1s"
builder = SparkSession.builder
for name, value in conf.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
scale = executors.Scale("executors", job.executor_instances)
assert scale.follow(spark) is None
print("started", flush=True)
for line in sys.stdin:
    word, _, number = line.strip().partition(" ")
    if word == "resize":
        Path("executors").write_text(number + "\\n")
        assert scale.follow(spark) == int(number)
    print(executors.registered(spark), flush=True)
spark.stop()
"""


def kill(process: subprocess.Popen[Any]) -> None:
    """End a process and its JVM, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class SparkDriver:
    """Spark with the job's own properties and rights, where its pods run nowhere."""

    def __init__(self, job: Job, api: ApiServer, folder: Path) -> None:
        self.job, self.folder = job, folder
        pod = job.job.pod
        assert pod is not None
        self.key = folder / "secret"
        secret = job.admin.read("secret", job.place.namespace, pod.auth_secret)
        self.key.write_bytes(base64.b64decode(secret["data"]["secret"]))
        text = job.place.kubectl.get("configmap", f"{pod.name}-job")["data"]["job.json"]
        (folder / "job.json").write_text(text)
        self.log = (folder / "driver.log").open("ab")
        self.archive = jvm.Archive("spark-executor", f"{spark_jars.home()}/jars/*")
        self.process = subprocess.Popen(
            [sys.executable, "-c", SPARK],
            cwd=folder,
            env={
                **os.environ,
                "KUBECONFIG": str(job.kubeconfig),
                "ODRADEK_SPARK_MASTER": f"k8s://{api.url}",
                "ODRADEK_JOB": str(folder / "job.json"),
                "AUTH_FILE": str(self.key),
                "POD_NAME": job.environment.pod_name,
                "POD_NAMESPACE": job.environment.pod_namespace,
                "POD_UID": job.environment.pod_uid,
                "POD_IP": "127.0.0.1",
                "SPARK_LOCAL_DIRS": str(folder),
                "SPARK_HOME": str(spark_jars.home()),
                "SPARK_SUBMIT_OPTS": " ".join(spark_jars.java_options()),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "started\n", self.said()

    def said(self) -> str:
        return (self.folder / "driver.log").read_text()

    def ask(self, line: str) -> int:
        """Send a command, and return how many executors are registered."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def pods(self) -> list[Pod]:
        found = self.job.admin.read("pod", self.job.place.namespace, "")["items"]
        uid = self.job.environment.pod_uid
        return [
            one
            for one in found
            if one["metadata"].get("ownerReferences", [{}])[0].get("uid") == uid
            and "spark-app-selector" in one["metadata"]["labels"]
        ]

    def run(self, pod: Pod, key: Path) -> subprocess.Popen[bytes]:
        """Run the container of an executor's pod as a kubelet would, with a key of one's choice."""
        (container,) = pod["spec"]["containers"]
        variables = {one["name"]: one.get("value", "") for one in container["env"]}
        for name, value in variables.items():
            if value.startswith("-Dspark.authenticate.secret.file="):
                variables[name] = f"-Dspark.authenticate.secret.file={key}"
        variables |= {"SPARK_EXECUTOR_POD_IP": "127.0.0.1", "SPARK_HOME": str(spark_jars.home())}
        variables |= {"SPARK_EXECUTOR_POD_NAME": pod["metadata"]["name"]}
        variables["JAVA_TOOL_OPTIONS"] = " ".join([*spark_jars.QUICK, *self.archive.options])
        return subprocess.Popen(
            [str(settings.REPO / "operator/spark_job/spark-entrypoint"), *container["args"]],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], **variables, "SPARK_EXECUTOR_MEMORY": "480m"},
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    def stop(self) -> int:
        """End it as a driver ends itself, and return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout=PATIENCE_S)

    def close(self) -> None:
        kill(self.process)
        self.log.close()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


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
