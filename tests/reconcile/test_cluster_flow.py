"""KafkaClusters and ConsumerGroups through the real operator process and the real API server."""

import itertools
import json
from dataclasses import replace
from typing import Any

from odradek.values import BrokerId
from odradek.zk import consumers, znodes
from tests.reconcile.conftest import Operator, Place, register
from tests.support import zookeeper
from tests.support.kubectl import KubectlError, eventually


def become_controller(place: Place, broker_id: int) -> None:
    claim = znodes.ControllerClaim(BrokerId(broker_id), 1)
    place.client.create(
        znodes.CONTROLLER_PATH, znodes.encode_controller(claim), ephemeral=True, makepath=True
    )


def test_cluster_gets_its_objects_and_is_ready_when_all_brokers_are_registered(
    place: Place, operator: Operator
) -> None:
    place.create_cluster(2, config={"num.partitions": "5", "unheard.of": "1"}, rackTopologyKey="z")
    waiting = place.wait_for("kafkacluster", "main", "NoController")
    assert waiting["status"] == "False"
    become_controller(place, 1)
    ready = place.wait_for("kafkacluster", "main", "BrokersReady")
    assert ready["message"] == "2 of 2 brokers registered"
    status = place.kubectl.get("kafkacluster", "main")["status"]
    assert (status["replicas"], status["controllerId"]) == (2, 1)
    assert (status["underReplicatedPartitions"], status["offlinePartitions"]) == (0, 0)
    assert [one["address"] for one in status["brokers"]] == ["127.0.0.1:9092", "127.0.0.1:9093"]
    warning = place.kubectl.condition("kafkacluster", "main", "ConfigWarning")
    assert (warning["status"], "unheard.of" in warning["message"]) == ("True", True)

    workload = place.kubectl.get("statefulset", "main-broker")
    template = workload["spec"]["template"]["spec"]
    assert workload["spec"]["podManagementPolicy"] == "Parallel"
    assert (template["hostNetwork"], template["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    (claim,) = workload["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "10Gi"
    config = place.kubectl.get("configmap", "main-broker")["data"]["server.properties"]
    assert "num.partitions=5\n" in config
    assert f"/{place.namespace}\n" in config
    assert place.kubectl.get("pdb", "main-broker")["spec"]["maxUnavailable"] == 1
    assert place.kubectl.get("service", "main-brokers")["spec"]["clusterIP"] == "None"
    exporter = place.kubectl.get("deployment", "main-lag-exporter")["spec"]["template"]["spec"]
    (container,) = exporter["containers"]
    assert container["image"] == "registry.test/odradek-operator:1"
    assert container["args"][0].endswith(f"/{place.namespace}")
    # What was done is in the log, an object a line.
    whole_lines = operator.log.read_text().rpartition("\n")[0].splitlines()
    said = [json.loads(line) for line in whole_lines]
    assert "main: applied StatefulSet main-broker" in [one["message"] for one in said]
    assert all({"timestamp", "severity"} <= one.keys() for one in said)


def test_cluster_waits_while_its_ids_are_those_of_brokers_that_were_there_before(
    place: Place, zk: zookeeper.Server, operator: Operator
) -> None:
    plain = znodes.BrokerEndpoint("PLAINTEXT", "192.0.2.7", 9092)
    before = znodes.BrokerRegistration(BrokerId(1), (plain,), timestamp_ms=1)
    place.client.ensure_path(znodes.BROKER_IDS_PATH)
    with zk.client(f"/{place.namespace}") as other:
        data = znodes.encode_broker(before)
        other.create(znodes.broker_path(1), data, ephemeral=True)
        for one in (0, 7):
            # Younger than the KafkaCluster, or none of its ids.
            late = replace(before, broker_id=BrokerId(one), timestamp_ms=2**42 if one == 0 else 1)
            other.create(znodes.broker_path(one), znodes.encode_broker(late), ephemeral=True)
        place.kubectl.apply(place.cluster_body(2))
        waits = place.wait_for("kafkacluster", "main", "BrokerIdsTaken")
        assert waits["status"] == "False"
        assert "registered already: 1 at 192.0.2.7:9092; if" in waits["message"]
        assert place.kubectl.get("statefulsets")["items"] == []
        assert place.kubectl.get("secrets")["items"] == []
    place.wait_for("kafkacluster", "main", "BrokersStarting")
    assert place.kubectl.get("statefulset", "main-broker")["spec"]["replicas"] == 2


def test_cluster_gets_no_more_brokers_while_their_ids_are_those_of_others(
    place: Place, zk: zookeeper.Server, operator: Operator
) -> None:
    place.create_cluster(1)
    become_controller(place, 0)
    place.wait_for("kafkacluster", "main", "BrokersReady")
    with zk.client(f"/{place.namespace}") as other:
        register(other, 2)
        place.kubectl("scale", "kafkacluster", "main", "--replicas=3")
        waits = place.wait_for("kafkacluster", "main", "BrokerIdsTaken")
        assert waits["status"] == "False"
        assert "registered already: 2 at 127.0.0.1:9094; if" in waits["message"]
        assert "must ask for fewer brokers" in waits["message"]
        status = place.kubectl.get("kafkacluster", "main")["status"]
        assert status["replicas"] == 1
        assert place.kubectl.get("statefulset", "main-broker")["spec"]["replicas"] == 1
    place.wait_for("kafkacluster", "main", "BrokersStarting")
    assert place.kubectl.get("statefulset", "main-broker")["spec"]["replicas"] == 3


def test_what_is_taken_out_of_the_spec_goes_from_the_pods_too(
    place: Place, operator: Operator
) -> None:
    place.create_cluster(1, nodeSelector={"disks": "fast"}, tolerations=[{"operator": "Exists"}])
    become_controller(place, 0)
    place.wait_for("kafkacluster", "main", "BrokersReady")

    def pod() -> dict[str, Any]:
        template = place.kubectl.get("statefulset", "main-broker")["spec"]["template"]
        return dict(template["spec"])

    assert (pod()["nodeSelector"], len(pod()["tolerations"])) == ({"disks": "fast"}, 1)
    gone = [
        {"op": "remove", "path": f"/spec/brokers/{one}"} for one in ("nodeSelector", "tolerations")
    ]
    place.kubectl("patch", "kafkacluster", "main", "--type=json", f"--patch={json.dumps(gone)}")
    eventually(lambda: not pod().keys() & {"nodeSelector", "tolerations"}, "pods without")
    assert pod()["affinity"]


def test_pods_get_what_users_add_and_nothing_is_applied_again_for_it(
    place: Place, operator: Operator
) -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    first, second = {"name": "TZ", "value": "UTC"}, {"name": "MALLOC_ARENA_MAX", "value": "2"}
    added: dict[str, Any] = {
        "podLabels": {"team": "logs"},
        "podAnnotations": {"team": "logs", "prometheus.io/scrape": "false"},
        "topologySpreadConstraints": [spread],
    }
    place.create_cluster(1, **added, env=[first, second])
    become_controller(place, 0)
    place.wait_for("kafkacluster", "main", "BrokersReady")

    def template() -> dict[str, Any]:
        found = place.kubectl.get("statefulset", "main-broker")
        return dict(found["spec"]["template"])

    meta, pod = template()["metadata"], template()["spec"]
    assert meta["labels"].items() >= {"team": "logs", "odradek.io/cluster": "main"}.items()
    assert meta["annotations"].items() >= added["podAnnotations"].items()
    # A constraint without pods to count would spread nothing.
    brokers = {"app.kubernetes.io/component": "broker", "odradek.io/cluster": "main"}
    counted = {"labelSelector": {"matchLabels": brokers}}
    assert pod["topologySpreadConstraints"] == [{**spread, **counted}]

    def names() -> list[str]:
        (container,) = template()["spec"]["containers"]
        return [one["name"] for one in container["env"]][-2:]

    assert names() == ["TZ", "MALLOC_ARENA_MAX"]
    place.kubectl.apply(place.cluster_body(1, **added, env=[second, first]))
    eventually(lambda: names() == ["MALLOC_ARENA_MAX", "TZ"], "the other order")
    generation = place.kubectl.get("statefulset", "main-broker")["metadata"]["generation"]
    looks = operator.metric("odradek_operator_reconcile_seconds_count")
    eventually(
        lambda: operator.metric("odradek_operator_reconcile_seconds_count") > looks + 3,
        "further looks",
    )
    now = place.kubectl.get("statefulset", "main-broker")["metadata"]["generation"]
    assert now == generation


def test_steady_state_writes_nothing_and_a_deleted_child_comes_back(
    place: Place, operator: Operator
) -> None:
    place.create_cluster(1)
    become_controller(place, 0)
    place.wait_for("kafkacluster", "main", "BrokersReady")
    place.kubectl.apply(place.topic("steady", partitions=2, replicationFactor=1))
    eventually(lambda: place.client.exists(znodes.topic_path("steady")), "the topic", pause_s=0.2)
    place.elect("steady")
    place.wait_for("topic", "steady", "Synced")

    def reconciled() -> float:
        return operator.metric("odradek_operator_reconcile_seconds_count")

    numbers = itertools.count()

    def writes_of_a_round() -> float:
        """Touch what is not the spec, which makes passes; how many writes they made."""
        before, begun = operator.metric("odradek_operator_writes_total"), reconciled()
        for kind, name in (("kafkacluster", "main"), ("topic", "steady")):
            place.kubectl("annotate", kind, name, f"touched={next(numbers)}", "--overwrite")
        eventually(lambda: reconciled() >= begun + 2, "a pass for each", pause_s=0.1)
        return operator.metric("odradek_operator_writes_total") - before

    # The cluster's status may still have to tell that the topic's partitions have leaders.
    eventually(lambda: writes_of_a_round() == 0, "a steady state")
    assert [writes_of_a_round() for _ in range(3)] == [0, 0, 0]

    place.kubectl("delete", "configmap", "main-broker")
    place.kubectl("annotate", "kafkacluster", "main", "touched=again", "--overwrite")
    eventually(lambda: place.kubectl.get("configmap", "main-broker"), "the ConfigMap", pause_s=0.5)


def make_claim(place: Place, name: str, *, grows: bool) -> None:
    """Make a claim of 1Gi in a class of its own, bound as the controllers of volumes would."""
    meta = {"name": f"{place.namespace}-{name}"}
    place.kubectl.apply(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": meta,
            "provisioner": "example.com/none",
            "allowVolumeExpansion": grows,
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": meta["name"],
                "volumeName": f"volume-{name}",
            },
        },
    )
    # Only a bound claim may grow.
    give(place, name, "1Gi")


def give(place: Place, name: str, size: str) -> None:
    """Bind a claim to a volume of this size, as Kubernetes does, or tell that it has grown."""
    bound = {"status": {"phase": "Bound", "capacity": {"storage": size}}}
    patch = ["--subresource=status", "--type=merge", "--patch", json.dumps(bound)]
    place.kubectl("patch", "pvc", name, *patch)


def make_unscheduled(place: Place, name: str, claim: str, labels: dict[str, str]) -> None:
    """Make a pod that waits for a claim, as the scheduler leaves it, and the claim."""
    place.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": "nosuch",
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "containers": [{"name": "broker", "image": "registry.test/a:1"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            },
        },
    )
    text = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims"
    unscheduled = {"type": "PodScheduled", "status": "False", "message": text}
    patch = json.dumps({"status": {"phase": "Pending", "conditions": [unscheduled]}})
    place.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "--patch", patch)


def test_broker_without_a_volume_says_which_storage_class_it_waits_for(
    place: Place, operator: Operator
) -> None:
    place.kubectl.apply(place.cluster_body(1, storage={"storageClassName": "nosuch"}))
    place.wait_for("kafkacluster", "main", "BrokersStarting")
    labels = place.kubectl.get("statefulset", "main-broker")["spec"]["template"]["metadata"]
    make_unscheduled(place, "main-broker-0", "data-main-broker-0", labels["labels"])

    def told() -> bool:
        message = place.kubectl.condition("kafkacluster", "main").get("message", "")
        claim = "claim data-main-broker-0 is Pending: it has no volume of StorageClass nosuch yet;"
        return "0/3 nodes are available" in message and claim in message

    eventually(told, "the claim and its class", pause_s=0.2)


def claim_size(place: Place, name: str) -> str:
    found = place.kubectl.get("pvc", name)
    return str(found["spec"]["resources"]["requests"]["storage"])


def test_volumes_grow_where_their_class_allows_it_and_otherwise_the_cluster_says_why(
    place: Place, operator: Operator
) -> None:
    for ordinal, grows in enumerate((True, False)):
        make_claim(place, f"data-main-broker-{ordinal}", grows=grows)

    def size(ordinal: int) -> str:
        return claim_size(place, f"data-main-broker-{ordinal}")

    place.create_cluster(1, storage={"size": "1Gi"})
    become_controller(place, 0)
    place.wait_for("kafkacluster", "main", "BrokersReady")
    bigger = {"spec": {"brokers": {"storage": {"size": "2Gi"}}}}
    place.kubectl("patch", "kafkacluster", "main", "--type=merge", "--patch", json.dumps(bigger))
    eventually(lambda: size(0) == "2Gi", "the first volume", pause_s=0.5)

    def is_growing() -> bool:
        condition = place.kubectl.condition("kafkacluster", "main", "StorageGrown")
        return condition.get("reason") == "Resizing" and "1Gi of 2Gi" in condition["message"]

    eventually(is_growing, "that the first volume grows", pause_s=0.5)
    place.kubectl("scale", "kafkacluster", "main", "--replicas=2")

    def refused() -> bool:
        condition = place.kubectl.condition("kafkacluster", "main", "StorageGrown")
        return condition.get("reason") == "ResizeRejected" and "resize" in condition["message"]

    eventually(refused, "why the second volume stays as it is", pause_s=0.5)
    assert (size(0), size(1)) == ("2Gi", "1Gi")
    told = place.kubectl.condition("kafkacluster", "main", "StorageGrown")["message"]
    rigid = f"{place.namespace}-data-main-broker-1"
    advice = f"set allowVolumeExpansion: true in its StorageClass {rigid}, if the driver"
    assert f"; claim data-main-broker-1 keeps 1Gi: {advice}" in told
    # Somebody has made the other one larger than the spec says.
    give(place, "data-main-broker-0", "3Gi")
    larger = json.dumps({"spec": {"resources": {"requests": {"storage": "3Gi"}}}})
    place.kubectl("patch", "pvc", "data-main-broker-0", "--type=merge", "--patch", larger)

    def does_not_shrink() -> bool:
        condition = place.kubectl.condition("kafkacluster", "main", "StorageGrown")
        text = "claim data-main-broker-0 has 3Gi, and no volume shrinks: raise the size to that"
        return text in condition["message"]

    eventually(does_not_shrink, "that a volume does not shrink", pause_s=0.5)


def test_stateful_set_of_others_is_left_alone_and_said_to_be_in_the_way(
    place: Place, operator: Operator
) -> None:
    labels = {"app": "their"}
    port = {"name": "kafka", "containerPort": 9092}
    theirs = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "main-broker"},
        "spec": {
            "replicas": 5,
            "serviceName": "their",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [
                        {"name": "broker", "image": "registry.test/a:1", "ports": [port]}
                    ]
                },
            },
        },
    }
    place.kubectl.apply(theirs)
    place.create_cluster(1)
    told = place.wait_for("kafkacluster", "main", "ApplyRejected")
    expected = "StatefulSet main-broker exists and is not of KafkaCluster main: delete or rename it"
    assert told["message"] == expected
    assert place.kubectl.get("statefulset", "main-broker")["metadata"]["generation"] == 1
    assert operator.metric("odradek_operator_reconcile_errors_total") == 0
    place.kubectl("delete", "statefulset", "main-broker")
    place.wait_for("kafkacluster", "main", "NoController")


def test_invalid_broker_configuration_makes_nothing(place: Place, operator: Operator) -> None:
    place.create_cluster(1, config={"log.retention.ms": "a week"})
    refused = place.wait_for("kafkacluster", "main", "InvalidConfig")
    assert "log.retention.ms" in refused["message"]
    assert place.kubectl.condition("kafkacluster", "main", "Stalled")["status"] == "True"
    assert place.kubectl.get("statefulset")["items"] == []


def group(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "main"}, **spec},
    }


def test_driver_that_fails_or_vanishes_is_started_again_and_a_change_replaces_it(
    place: Place, operator: Operator
) -> None:
    place.create_cluster(1)
    sink = {"parquet": {"path": "/data/out"}}
    job = {"sink": sink, "volume": {"size": "1Gi"}, "sql": "select 1"}
    place.kubectl.apply(group("counts", topics=["t"], job=job))

    def driver(other_than: str = "") -> dict[str, Any]:
        pod = place.kubectl.get("pod", "counts-driver")
        assert pod["metadata"]["uid"] != other_than
        return pod

    def restarted(other_than: dict[str, Any]) -> dict[str, Any]:
        old = other_than["metadata"]["uid"]
        return eventually(lambda: driver(old), "another driver", pause_s=0.5)

    first = eventually(driver, "a driver", pause_s=0.2)
    assert first["spec"]["containers"][0]["image"] == "registry.test/odradek-spark:1"
    assert place.kubectl.get("pvc", "counts-data")["metadata"].get("ownerReferences") is None
    text = place.kubectl.get("configmap", "counts-job")["data"]["job.json"]
    assert '"bootstrap": "127.0.0.1:9092"' in text

    def become(phase: str, state: dict[str, object]) -> None:
        container = {"name": "driver", "image": "i", "imageID": "i", "ready": False}
        status = {"phase": phase, "containerStatuses": [{**container, "restartCount": 0, **state}]}
        merge = ("--subresource=status", "--type=merge", "--patch", json.dumps({"status": status}))
        place.kubectl("patch", "pod", "counts-driver", *merge)

    ended = {"exitCode": 1, "reason": "Error", "message": "no such table"}
    become("Failed", {"state": {"terminated": ended}})
    second = restarted(first)

    def counted(phase: str, application: int, infrastructure: int) -> bool:
        found = place.kubectl.get("consumergroup", "counts")["status"]["job"]
        wanted = {"application": application, "infrastructure": infrastructure}
        assert (found["phase"], found["restarts"]) == (phase, wanted), found
        return True

    eventually(lambda: counted("Pending", 1, 0), "one application restart", pause_s=0.5)
    # A driver that goes before the operator has seen it was not lost.
    become("Running", {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}})
    eventually(lambda: counted("Starting", 1, 0), "it is seen", pause_s=0.5)
    place.kubectl("delete", "pod", "counts-driver", "--grace-period=0", "--force")
    third = restarted(second)
    eventually(lambda: counted("Pending", 1, 1), "one restart for a lost pod", pause_s=0.5)

    place.kubectl.apply(group("counts", topics=["t"], job={**job, "sql": "select 2"}))
    fourth = restarted(third)
    place.kubectl.apply(group("counts", topics=["t"], job={**job, "suspend": True}))
    place.wait_for("consumergroup", "counts", "Suspended")
    assert fourth["metadata"]["name"] not in place.kubectl("get", "pods", "-o", "name")
    assert place.kubectl.get("pvc", "counts-data")


def test_volume_of_a_job_grows_while_its_driver_stays_and_otherwise_the_group_says_why(
    place: Place, operator: Operator
) -> None:
    make_claim(place, "elastic-data", grows=True)
    make_claim(place, "rigid-data", grows=False)
    place.create_cluster(1)

    def apply(size: str) -> None:
        job = {"sink": {"console": {}}, "volume": {"size": size}}
        place.kubectl.apply(*(group(one, topics=["t"], job=job) for one in ("elastic", "rigid")))

    def grown(name: str) -> dict[str, Any]:
        return place.kubectl.condition("consumergroup", name, "StorageGrown")

    def drivers() -> list[str]:
        pods = [place.kubectl.get("pod", f"{one}-driver") for one in ("elastic", "rigid")]
        return [pod["metadata"]["uid"] for pod in pods]

    apply("1Gi")
    first = eventually(drivers, "the drivers", pause_s=0.5)
    eventually(lambda: grown("rigid").get("status") == "True", "what is as wanted", pause_s=0.5)
    apply("2Gi")
    eventually(lambda: claim_size(place, "elastic-data") == "2Gi", "the growth", pause_s=0.5)
    eventually(lambda: "resize" in grown("rigid").get("message", ""), "why it stays", pause_s=0.5)
    assert grown("rigid")["reason"] == "ResizeRejected"
    eventually(lambda: grown("elastic").get("reason") == "Resizing", "that it grows", pause_s=0.5)
    assert grown("elastic")["status"] == "False"
    give(place, "elastic-data", "2Gi")
    eventually(lambda: grown("elastic").get("status") == "True", "that it has grown", pause_s=0.5)
    assert claim_size(place, "rigid-data") == "1Gi"
    assert drivers() == first
    # What the claim has may be asked for again, and then nothing is amiss.
    apply("1Gi")
    eventually(lambda: grown("rigid").get("status") == "True", "what it has", pause_s=0.5)
    text = "claim elastic-data has 2Gi, and no volume shrinks: raise the size to that"
    eventually(lambda: text in grown("elastic").get("message", ""), "what is lost", pause_s=0.5)


def test_driver_that_the_api_server_refuses_is_explained(place: Place, operator: Operator) -> None:
    place.create_cluster(1)
    place.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none"},
            "spec": {"hard": {"pods": "0"}},
        }
    )
    # A quota counts only once its use is known, which a controller would write.
    place.kubectl(
        "patch",
        "resourcequota",
        "none",
        "--subresource=status",
        "--type=merge",
        '--patch={"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}}',
    )

    def counts() -> bool:
        """Whether the API server has taken the quota into account, a moment after it was made."""
        try:
            place.kubectl("run", "probe", "--image=i", "--dry-run=server")
        except KubectlError as refused:
            return "exceeded quota" in str(refused)
        return False

    eventually(counts, "the quota to count", pause_s=0.2)
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    place.kubectl.apply(group("refused", topics=["t"], job=task))
    refused = place.wait_for("consumergroup", "refused", "DriverRejected")
    assert "exceeded quota" in refused["message"]


def test_group_without_a_job_is_observed_and_deletes_its_offsets_when_asked(
    place: Place, operator: Operator
) -> None:
    place.create_cluster(1)
    place.client.create(consumers.offset_path("g", "t", 0), b"7", makepath=True)
    place.kubectl.apply(group("g", deletionPolicy="Delete"))
    place.wait_for("consumergroup", "g", "Observed")
    status = place.kubectl.get("consumergroup", "g")["status"]
    assert (status["state"], status["members"]) == ("Empty", 0)
    place.kubectl("delete", "consumergroup", "g", "--timeout=120s")
    assert place.client.exists(consumers.group_path("g")) is None
