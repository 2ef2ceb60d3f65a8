"""What the API server refuses: nobody can write a resource that could never work."""

import copy
from typing import Any

import pytest

from tests.cluster.settings import REPO
from tests.support import objects, yaml_text
from tests.support.apiserver import ApiServer
from tests.support.kubectl import Kubectl, KubectlError, QuickKubectl

CLUSTER: dict[str, Any] = {
    "apiVersion": "odradek.io/v1alpha1",
    "kind": "KafkaCluster",
    "metadata": {"name": "c"},
    "spec": {
        "zookeeper": {"connect": "zk:2181", "chroot": "/a"},
        "brokers": {"replicas": 3, "storage": {"size": "1Gi", "storageClassName": "fast"}},
    },
}
TOPIC: dict[str, Any] = {
    "apiVersion": "odradek.io/v1alpha1",
    "kind": "Topic",
    "metadata": {"name": "t"},
    "spec": {
        "clusterRef": {"name": "c"},
        "topicName": "a.b_c",
        "partitions": 6,
        "config": {"retention.ms": "1"},
    },
}
TABLE = copy.deepcopy(TOPIC)
TABLE["metadata"]["name"] = "t-with-table"
TABLE["spec"]["table"] = {
    "format": "delta",
    "path": "/data/t",
    "volume": {"size": "2Gi", "storageClassName": "fast"},
}
REASSIGNMENT: dict[str, Any] = {
    "apiVersion": "odradek.io/v1alpha1",
    "kind": "Reassignment",
    "metadata": {"name": "r"},
    "spec": {
        "clusterRef": {"name": "c"},
        "mode": "Explicit",
        "moves": [{"topic": "t", "partition": 0, "replicas": [1, 0]}],
        "cancel": True,
    },
}
GROUP: dict[str, Any] = {
    "apiVersion": "odradek.io/v1alpha1",
    "kind": "ConsumerGroup",
    "metadata": {"name": "g"},
    "spec": {
        "clusterRef": {"name": "c"},
        "group": "g",
        "topics": ["t"],
        "job": {"sink": {"console": {}}, "volume": {"size": "1Gi"}},
    },
}
BATCH = copy.deepcopy(GROUP)
BATCH["spec"]["job"]["trigger"] = "availableNow"
ICEBERG = {"sink": {"iceberg": {"path": "/data/t"}}, "volume": {"size": "1Gi"}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
FAST_DISKS = {"key": "disks", "operator": "In", "values": ["fast"]}
ANY_BROKER = {"matchExpressions": [{"key": "odradek.io/cluster", "operator": "Exists"}]}
AFFINITY = {
    "nodeAffinity": {
        REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [FAST_DISKS]}]},
        PREFERRED: [{"weight": 1, "preference": {"matchFields": [FAST_DISKS]}}],
    },
    "podAntiAffinity": {
        PREFERRED: [
            {
                "weight": 100,
                "podAffinityTerm": {
                    "topologyKey": "zone",
                    "labelSelector": ANY_BROKER,
                    "namespaceSelector": {"matchLabels": {"logs": "yes"}},
                },
            }
        ]
    },
}
REMOVE = object()


def change(body: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one field set, or taken away."""
    changed = copy.deepcopy(body)
    *parents, last = path.split("/")
    at = changed
    for name in parents:
        at = at.setdefault(name, {})
    if value is REMOVE:
        del at[last]
    else:
        at[last] = value
    return changed


@pytest.fixture(scope="module")
def kubectl(api: ApiServer) -> Kubectl:
    api.create_namespace("crds")
    space = QuickKubectl(api.kubectl, api.kubeconfig, "crds")
    space.apply(CLUSTER, TOPIC, TABLE, REASSIGNMENT, GROUP)
    return space


@pytest.mark.parametrize(
    ("body", "path", "value"),
    [
        (CLUSTER, "metadata/name", "a.b"),
        (CLUSTER, "metadata/name", "x" * 41),
        (CLUSTER, "spec/zookeeper/connect", "no-port"),
        (CLUSTER, "spec/zookeeper/connect", "zk:0"),
        (CLUSTER, "spec/zookeeper/connect", "zk:65536"),
        (CLUSTER, "spec/zookeeper/connect", "zk:2181,a..b:2181"),
        (CLUSTER, "spec/zookeeper/connect", f"{'x' * 64}:2181"),
        (CLUSTER, "spec/zookeeper/chroot", "relative"),
        (CLUSTER, "spec/zookeeper/chroot", "/ends/"),
        (CLUSTER, "spec/brokers/replicas", 0),
        (CLUSTER, "spec/brokers/replicas", "three"),
        (CLUSTER, "spec/brokers/port", 70000),
        (CLUSTER, "spec/brokers/metricsPort", 9092),
        (CLUSTER, "spec/brokers/perNode", 0),
        (CLUSTER, "spec/brokers/perNode", 11),
        # Ports of brokers beside each other, or beyond the last one; ids of two sets.
        (CLUSTER, "spec/brokers", {"replicas": 6, "perNode": 2, "port": 9403}),
        (CLUSTER, "spec/brokers", {"replicas": 6, "perNode": 2, "port": 65535}),
        (CLUSTER, "spec/brokers", {"replicas": 6, "perNode": 2, "metricsPort": 65535}),
        (CLUSTER, "spec/brokers", {"replicas": 6, "perNode": 2, "hostNetwork": False}),
        (CLUSTER, "spec/brokers", {"replicas": 201, "perNode": 2}),
        *((CLUSTER, "spec/image", image) for image in ("", "a b", " a:1", "a:1\n", "a\u00a0b")),
        (CLUSTER, "spec/image", "a" * 1025),
        (CLUSTER, "spec/rollout/requestId", ""),
        (CLUSTER, "spec/rollout/requestId", "1" * 129),
        (CLUSTER, "spec/rollout/upgrades", "Never"),
        (CLUSTER, "spec/brokers/storage/size", "lots"),
        (CLUSTER, "spec/brokers/config", {"num.partitions": 3}),
        (CLUSTER, "spec/brokers/resources", {"requests": {"cpu": "much"}}),
        (CLUSTER, "spec/brokers/affinity/nodeAffinity", {REQUIRED: {"nodeSelectorTerms": []}}),
        (CLUSTER, "spec/brokers/affinity/podAffinity", {REQUIRED: [{"topologyKey": ""}]}),
        (
            CLUSTER,
            "spec/brokers/affinity/podAntiAffinity",
            {PREFERRED: [{"weight": 101, "podAffinityTerm": {"topologyKey": "zone"}}]},
        ),
        (CLUSTER, "spec/brokers/podLabels", {"odradek.io/cluster": "other"}),
        (CLUSTER, "spec/brokers/podLabels", {"controller-revision-hash": "1"}),
        (CLUSTER, "spec/brokers/podAnnotations", {"odradek.io/template-hash": "1"}),
        # The API server would refuse the StatefulSet.
        (CLUSTER, "spec/brokers/podLabels", {"team": "the logs"}),
        (CLUSTER, "spec/brokers/podLabels", {"the team": "logs"}),
        (CLUSTER, "spec/brokers/podLabels", {"Example.com/team": "logs"}),
        (CLUSTER, "spec/brokers/podLabels", {"x" * 64: "logs"}),
        (CLUSTER, "spec/brokers/podLabels", {f"{'x' * 254}/team": "logs"}),
        (CLUSTER, "spec/brokers/podAnnotations", {"a/b/c": "1"}),
        (CLUSTER, "spec/brokers/podAnnotations", {f"{'x' * 254}/a": "1"}),
        (CLUSTER, "spec/brokers/nodeSelector", {"disk": "-ssd"}),
        (CLUSTER, "spec/brokers/env", [{"name": "..", "value": "1"}]),
        # Kubernetes before 1.32 would refuse the pods.
        (CLUSTER, "spec/brokers/env", [{"name": "a:b", "value": "1"}]),
        (GROUP, "spec/job/env", [{"name": "9a", "value": "1"}]),
        (
            CLUSTER,
            "spec/brokers/env",
            [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a b"}}}],
        ),
        (
            CLUSTER,
            "spec/brokers/env",
            [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "s", "key": ".."}}}],
        ),
        (
            GROUP,
            "spec/job/env",
            [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "..a"}}}],
        ),
        (CLUSTER, "spec/brokers/topologySpreadConstraints", [{**SPREAD, "maxSkew": 0}]),
        (CLUSTER, "spec/brokers/topologySpreadConstraints", [{**SPREAD, "minDomains": 2}]),
        (CLUSTER, "spec/brokers/topologySpreadConstraints", [SPREAD, SPREAD]),
        (CLUSTER, "spec/brokers/env", [{"name": "POD_NAME", "value": "main-broker-7"}]),
        (CLUSTER, "spec/brokers/env", [{"name": "ODRADEK_A", "value": "1"}]),
        (CLUSTER, "spec/brokers/env", [{"name": "A"}, {"name": "A"}]),
        (TOPIC, "spec/topicName", "a/b"),
        (TOPIC, "spec/topicName", ".."),
        (TOPIC, "spec/topicName", "x" * 250),
        (TOPIC, "spec/partitions", 0),
        (TOPIC, "spec/partitions", -1),
        (TOPIC, "spec/replicationFactor", 0),
        (TOPIC, "spec/config", {"retention.ms": 1}),
        (TOPIC, "spec/unmanagedConfig", ["retention.ms"]),
        (TOPIC, "spec/deletionPolicy", "Maybe"),
        (REASSIGNMENT, "spec/deletionPolicy", "Protect"),
        (GROUP, "spec/deletionPolicy", "Protect"),
        (TOPIC, "spec/adoption", "Always"),
        (TOPIC, "spec/management", "Ignored"),
        (TOPIC, "spec/replicaAssignment", {"0": [1]}),
        (
            {**TOPIC, "spec": {"clusterRef": {"name": "c"}}},
            "spec/replicaAssignment",
            {"0": [2**31]},
        ),
        (TOPIC, "spec/clusterRef", REMOVE),
        (TABLE, "metadata/name", "x" * 35),
        (TABLE, "metadata/name", "a.b"),
        (TABLE, "spec/table/format", "csv"),
        (TABLE, "spec/table", {"format": "iceberg", "path": "s3a://lake/t"}),
        (TABLE, "spec/table/path", REMOVE),
        (TABLE, "spec/table/path", "s3://lake/t"),
        (TABLE, "spec/table/path", "/elsewhere/t"),
        (TABLE, "spec/table/path", "/data/../t"),
        (TABLE, "spec/table/volume", REMOVE),
        (TABLE, "spec/table/secretRef", {"name": "s3"}),
        (TABLE, "spec/table/valueFormat", "csv"),
        (TABLE, "spec/table", {**TABLE["spec"]["table"], "valueFormat": "raw", "schema": "a int"}),
        (TABLE, "spec/table/schemaRegistry", {"url": "http://r"}),
        (TABLE, "spec/table/trigger", "availableNow"),
        (TABLE, "spec/table/startingOffsets", "group"),
        (TABLE, "spec/table/partitionBy", ["day", "day"]),
        (TABLE, "spec/table/executors", {"memory": "512Mi"}),
        (REASSIGNMENT, "spec/mode", "Shuffle"),
        (REASSIGNMENT, "spec/mode", "AddBrokers"),
        (REASSIGNMENT, "spec/brokers", [3]),
        (REASSIGNMENT, "spec/moves", []),
        (REASSIGNMENT, "spec/throttleBytesPerSec", 0),
        (REASSIGNMENT, "spec/ttlSecondsAfterFinished", 2**31),
        (REASSIGNMENT, "spec/moves", [{"topic": "t", "partition": 0, "replicas": [2**31]}]),
        (REASSIGNMENT, "spec/moves", [{"topic": "t", "partition": 0, "replicas": [1, 1]}]),
        (
            {**REASSIGNMENT, "spec": {"clusterRef": {"name": "c"}, "mode": "PreferredLeader"}},
            "spec/throttleBytesPerSec",
            5000,
        ),
        (GROUP, "metadata/name", "x" * 41),
        (GROUP, "spec/group", "a b"),
        (GROUP, "spec/topicPattern", "t.*"),
        (GROUP, "spec/topics", REMOVE),
        (GROUP, "spec/topics", ["t", ".."]),
        (GROUP, "spec/offsetStore", "File"),
        (GROUP, "spec/job/sink", {}),
        (GROUP, "spec/job/sink", {"console": {}, "topic": {"name": "t"}}),
        (GROUP, "spec/job/sink", {"topic": {"name": "."}}),
        (GROUP, "spec/job/sink", {"parquet": {}}),
        (GROUP, "spec/job/sink", {"jdbc": {"url": "http://x", "table": "t"}}),
        (
            GROUP,
            "spec/job/sink/jdbc",
            {
                "url": "jdbc:a",
                "table": "t",
                "secretRef": {"name": "db"},
                "credentialsSecret": "db",
            },
        ),
        (GROUP, "spec/job/trigger", "soon"),
        (GROUP, "spec/job/schedule", "@hourly"),
        (BATCH, "spec/job/schedule", "0 * * *"),
        (BATCH, "spec/job/schedule", "CRON_TZ=Europe/Prague 0 * * * *"),
        (BATCH, "spec/job/schedule", "@reboot"),
        (GROUP, "spec/job/startingOffsets", "yesterday"),
        (GROUP, "spec/job/format", "xml"),
        (GROUP, "spec/job/python", "no_function"),
        (GROUP, "spec/job/python", "module:function"),
        (GROUP, "spec/job/format", "avro"),
        (GROUP, "spec/job/format", "csv"),
        (GROUP, "spec/job/schemaRegistry", {"url": "http://r"}),
        (GROUP, "spec/job", {**ICEBERG, "format": "avro", "schemaRegistry": {"url": "r:8081"}}),
        (GROUP, "spec/job/driver", {"memory": "1G"}),
        (GROUP, "spec/job/driver", {"memory": "512Mi"}),
        (GROUP, "spec/job/sink", {"parquet": {"path": "s3://bucket/x"}}),
        (GROUP, "spec/job/sink", {"iceberg": {"path": "s3a://bucket/x"}}),
        (GROUP, "spec/job", {**ICEBERG, "outputMode": "update"}),
        (GROUP, "spec/job", {"checkpoint": {"url": "s3a://b/c"}, "sink": ICEBERG["sink"]}),
        (GROUP, "spec/job/executors", {"instances": 0}),
        (GROUP, "spec/job/watermark", {"column": "at"}),
        (GROUP, "spec/job/executors", {"dynamicAllocation": {"min": 1}}),
        (GROUP, "spec/job/executors", {"dynamicAllocation": {"min": 2, "max": 1}}),
        (GROUP, "spec/job/env", [{"name": "A"}, {"name": "A"}]),
        (GROUP, "spec/job/env", [{"name": "A", "value": "1", "valueFrom": {}}]),
        (GROUP, "spec/job/secretRefs", ["s3"]),
        (GROUP, "spec/job/secretRefs", [{"name": "../auth"}]),
        (GROUP, "spec/job/template", {"metadata": {"labels": {"a": 1}}}),
        (GROUP, "spec/job/template", {"metadata": {"labels": {"a": "the logs"}}}),
        (GROUP, "spec/job/template", {"metadata": {"annotations": {"a b": "1"}}}),
        (GROUP, "spec/job/podAnnotations", {"-a": "1"}),
        (GROUP, "spec/job/podAnnotations", {f"{'x' * 254}/a": "1"}),
        (GROUP, "spec/job/nodeSelector", {"a b": ""}),
        (GROUP, "spec/job/nodeSelector", {f"{'x' * 254}/a": ""}),
        (GROUP, "spec/job/env", [{"name": "..a", "value": "1"}]),
        (GROUP, "spec/reset", {"requestId": "1", "strategy": "Timestamp"}),
        (GROUP, "spec/reset", {"requestId": "1", "strategy": "Earliest", "value": "1"}),
    ],
)
def test_nonsense_is_refused_at_creation(
    kubectl: Kubectl, body: dict[str, Any], path: str, value: Any
) -> None:
    fresh = change(change(body, "metadata/name", "fresh"), path, value)
    # As kubectl does, but not with a process for each: these are many.
    with pytest.raises(objects.ApiError, match="is invalid"):
        objects.client(kubectl.kubeconfig).create(kubectl.namespace, fresh)


@pytest.mark.parametrize(
    ("body", "path", "value", "why"),
    [
        (CLUSTER, "spec/zookeeper/chroot", "/b", "chroot is immutable"),
        (CLUSTER, "spec/brokers/storage/storageClassName", "slow", "storageClassName is immutable"),
        (CLUSTER, "spec/brokers/storage/storageClassName", REMOVE, "is immutable"),
        (TOPIC, "spec/partitions", 5, "partitions may only grow"),
        (TOPIC, "spec/partitions", REMOVE, "partitions may only grow"),
        (TOPIC, "spec/topicName", "other", "topicName is immutable"),
        (TOPIC, "spec/topicName", REMOVE, "topicName is immutable"),
        (TOPIC, "spec/clusterRef/name", "other", "clusterRef is immutable"),
        (TABLE, "spec/table/volume/storageClassName", "slow", "storageClassName is immutable"),
        (REASSIGNMENT, "spec/cancel", False, "cannot be taken back"),
        (REASSIGNMENT, "spec/moves/0/partition", 1, "moves are immutable"),
        (REASSIGNMENT, "spec/excludedTopics", ["t"], "excludedTopics are immutable"),
        (GROUP, "spec/group", "other", "group is immutable"),
        (GROUP, "spec/offsetStore", "Kafka", "offsetStore is immutable"),
        (GROUP, "spec/job/volume", REMOVE, "give volume or checkpoint"),
        (GROUP, "spec/job/volume/accessMode", "ReadWriteMany", "accessMode is immutable"),
    ],
)
def test_what_cannot_change_is_refused_at_update(
    kubectl: Kubectl, body: dict[str, Any], path: str, value: Any, why: str
) -> None:
    if "/0/" in path:
        changed = copy.deepcopy(body)
        changed["spec"]["moves"][0]["partition"] = value
    else:
        changed = change(body, path, value)
    with pytest.raises(KubectlError, match=why):
        kubectl.apply(changed)


@pytest.mark.parametrize(
    ("body", "path", "value"),
    [
        (CLUSTER, "spec/brokers/affinity", AFFINITY),
        (CLUSTER, "spec/brokers/perNode", 10),
        (CLUSTER, "spec/brokers/podLabels", {"example.com/team.x": "", "A_b": "v1.0_x-y"}),
        (CLUSTER, "spec/brokers/podAnnotations", {"Example.com/a": "any: thing"}),
        (CLUSTER, "spec/brokers/podLabels", {f"{'x' * 253}/{'y' * 63}": "logs"}),
        (GROUP, "spec/job/template", {"metadata": {"labels": {"example.com/team": "logs"}}}),
        (GROUP, "spec/job/tolerations", [{"key": "spot", "operator": "Exists"}]),
        (GROUP, "spec/job/priorityClassName", "batch"),
        (GROUP, "spec/job/env", [{"name": "A", "value": "1"}]),
        (
            GROUP,
            "spec/job/env",
            [{"name": "A.b", "valueFrom": {"secretKeyRef": {"name": "s", "key": ".a..b"}}}],
        ),
        (GROUP, "spec/job/secretRefs", [{"name": "s3"}]),
        (GROUP, "spec/job/template", {"spec": {"dnsPolicy": "Default", "affinity": {}}}),
        (TOPIC, "spec/partitions", 7),
        (TABLE, "spec/table/format", "iceberg"),
        (TABLE, "spec/table/path", "s3a://lake/t"),
        (TABLE, "spec/table", REMOVE),
        (REASSIGNMENT, "spec/throttleBytesPerSec", 50_000_000),
        (GROUP, "spec/job/suspend", True),
        (GROUP, "spec/job/sink", ICEBERG["sink"]),
        (GROUP, "spec/job", {**ICEBERG, "format": "avro", "schemaRegistry": {"url": "http://r"}}),
    ],
)
def test_what_may_change_is_taken(
    kubectl: Kubectl, body: dict[str, Any], path: str, value: Any
) -> None:
    kubectl.apply(change(body, path, value))


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (CLUSTER, "spec/brokers/storage/size"),
        (GROUP, "spec/job/volume/size"),
        (TABLE, "spec/table/volume/size"),
    ],
)
def test_sizes_of_volumes_may_grow_and_go_back(
    kubectl: Kubectl, body: dict[str, Any], path: str
) -> None:
    # What a claim cannot follow is told by its condition.
    growing = change(body, "metadata/name", "growing")
    for size in ("1Gi", "9Gi", "1Gi"):
        kubectl.apply(change(growing, path, size))


def test_image_of_a_clusters_own_is_not_upgraded(kubectl: Kubectl) -> None:
    image = "registry.test:5000/odradek/Broker_1@sha256:" + "0" * 64
    wanted = change(change(CLUSTER, "metadata/name", "pinned"), "spec/image", image)
    automatic = change(wanted, "spec/rollout", {"requestId": "1", "upgrades": "Automatic"})
    with pytest.raises(KubectlError, match=r"take out image, or rollout\.upgrades"):
        kubectl.apply(automatic)
    kubectl.apply(change(wanted, "spec/rollout", {"requestId": "1", "upgrades": "OnRequest"}))
    with pytest.raises(KubectlError, match="requestId"):
        kubectl.apply(change(wanted, "spec/rollout/requestId", ""))
    kubectl.apply(change(automatic, "spec/image", REMOVE))
    kubectl("delete", "kafkacluster", "pinned")


def test_job_that_stops_by_itself_may_have_a_schedule(kubectl: Kubectl) -> None:
    scheduled = change(change(BATCH, "metadata/name", "batch"), "spec/job/schedule", "*/15 * * * *")
    kubectl.apply(scheduled)
    with pytest.raises(KubectlError, match="schedule needs trigger: availableNow"):
        kubectl.apply(change(scheduled, "spec/job/trigger", "10s"))
    kubectl.apply(change(scheduled, "spec/job/schedule", "@daily"))
    kubectl("delete", "consumergroup", "batch")


def test_spark_or_somebody_else_chooses_the_number_of_executors(kubectl: Kubectl) -> None:
    dynamic = {"instances": 2, "dynamicAllocation": {"min": 1, "max": 8}}
    wanted = change(change(GROUP, "metadata/name", "dynamic"), "spec/job/executors", dynamic)
    kubectl.apply(wanted)
    with pytest.raises(KubectlError, match="Spark chooses the number of executors"):
        kubectl("scale", "consumergroup", "dynamic", "--replicas=3")
    kubectl.apply(change(wanted, "spec/job/executors", {"instances": 3}))
    kubectl("delete", "consumergroup", "dynamic")


def test_unknown_fields_are_refused(kubectl: Kubectl) -> None:
    kubectl = Kubectl(kubectl.binary, kubectl.kubeconfig, kubectl.namespace)
    with pytest.raises(KubectlError, match=r"unknown field .*spec\.partition"):
        kubectl.apply(change(change(TOPIC, "metadata/name", "new"), "spec/partition", 3))


def test_new_resources_say_that_nobody_has_looked_at_them_yet(kubectl: Kubectl) -> None:
    for kind in ("kc", "ktop", "kre", "kcg"):
        found = [one["status"] for one in kubectl.get(kind)["items"]]
        assert found
        assert all(one == {"observedGeneration": -1} for one in found)


def test_defaults_are_those_of_the_contract(kubectl: Kubectl) -> None:
    # Other tests give it another job.
    kubectl.apply(GROUP)
    cluster = kubectl.get("kafkacluster", "c")["spec"]["brokers"]
    assert (cluster["hostNetwork"], cluster["port"], cluster["metricsPort"]) == (True, 9092, 9404)
    topic = kubectl.get("topic", "t")["spec"]
    wanted = ("Managed", "IfMatching", "Retain", False)
    assert tuple(topic[k] for k in ("management", "adoption", "deletionPolicy", "paused")) == wanted
    group = kubectl.get("consumergroup", "g")["spec"]
    assert group["offsetStore"] == "ZooKeeper"
    # Offsets stay; only who writes Retain has a deletion leave the user of its job, too.
    assert "deletionPolicy" not in group
    assert kubectl.get("reassignment", "r")["spec"]["deletionPolicy"] == "Delete"
    job = group["job"]
    assert (job["trigger"], job["format"], job["startingOffsets"]) == ("10s", "json", "earliest")
    assert job["driver"] == {"cores": 1, "memory": "1Gi"}
    assert job["executors"] == {"instances": 1, "cores": 1, "memory": "1Gi"}
    assert job["timeouts"] == {"startSeconds": 300, "batchSeconds": 3600}


def test_kubectl_scale_works_on_a_cluster(kubectl: Kubectl) -> None:
    kubectl("scale", "kafkacluster", "c", "--replicas=4")
    assert kubectl.get("kafkacluster", "c")["spec"]["brokers"]["replicas"] == 4
    kubectl("scale", "kafkacluster", "c", "--replicas=3")


def test_category_lists_all_kinds_with_a_ready_column(kubectl: Kubectl) -> None:
    text = kubectl("get", "kafka")
    headers = [line.split() for line in text.splitlines() if line.startswith("NAME")]
    assert len(headers) == 4
    assert all("READY" in header and header[-1] == "AGE" for header in headers)


def bounded(schema: dict[str, Any], path: str) -> list[str]:
    """Paths of lists, maps and strings without an upper bound."""
    found = []
    match schema.get("type"):
        case "array" if "maxItems" not in schema:
            found.append(path)
        case "string" if not {"maxLength", "enum", "format"} & set(schema):
            found.append(path)
        case "object" if "additionalProperties" in schema and "maxProperties" not in schema:
            found.append(path)
    if isinstance(schema.get("items"), dict):
        found += bounded(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        found += bounded(schema["additionalProperties"], f"{path}{{}}")
    for name, one in schema.get("properties", {}).items():
        found += bounded(one, f"{path}.{name}")
    return found


@pytest.mark.parametrize("file", sorted((REPO / "crds").glob("*.yaml")), ids=lambda f: f.stem)
def test_every_list_map_and_string_has_a_bound(file: Any) -> None:
    (version,) = yaml_text.load(file.read_text())["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    for part in ("spec", "status"):
        assert bounded(properties[part], part) == []
