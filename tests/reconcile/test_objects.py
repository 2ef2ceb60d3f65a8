"""The Kubernetes objects and files that a resource becomes."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from odradek import config_loading, dynamic_config, topic_config
from odradek.config import RACK_AWARE_SELECTOR
from odradek.dynamic_config import DYNAMIC_KEYS
from odradek.properties import load_properties
from odradek_operator.cluster import objects as cluster_objects
from odradek_operator.cluster import settings
from odradek_operator.cluster.objects import Budget
from odradek_operator.group import driver as group_driver
from odradek_operator.group import driver_objects, group_spec, report
from odradek_operator.group.driver_objects import Addresses
from odradek_operator.group.report import fetch_report, read_report
from odradek_operator.runtime import read_settings
from odradek_operator.shared import cluster_spec, kube, spec
from odradek_operator.shared.apply import Platform
from odradek_operator.shared.job_spec import JobSpec

PLATFORM = Platform("spark:1", "IfNotPresent")
META = spec.parse_meta(
    {
        "kind": "KafkaCluster",
        "metadata": {
            "name": "main",
            "namespace": "logs",
            "uid": "u",
            "creationTimestamp": "2026-11-21T11:00:00Z",
        },
    }
)


def cluster(**brokers: Any) -> cluster_spec.ClusterSpec:
    return cluster_spec.parse_cluster(
        {
            "kind": "KafkaCluster",
            "metadata": {"name": "main"},
            "spec": {
                "zookeeper": {"connect": "zk:2181", "chroot": "/a"},
                "brokers": {"replicas": 3, **brokers},
            },
        }
    )


def group(**job: Any) -> group_spec.GroupSpec:
    return group_spec.parse_group(
        {
            "kind": "ConsumerGroup",
            "metadata": {"name": "g"},
            "spec": {
                "clusterRef": {"name": "main"},
                "topics": ["t"],
                "job": {"sink": {"console": {}}, **job},
            },
        }
    )


def test_broker_reads_back_every_value_of_server_properties() -> None:
    awkward = {"min.insync.replicas": "2", "unheard.of": r"C:\new folder = #x!", "spaced": "  two"}
    text = cluster_objects.server_properties(cluster(config=awkward))
    loaded = load_properties(text)
    assert awkward.items() <= loaded.items()
    settings, unknown = config_loading.from_values({**loaded, "broker.id": "0"})
    assert (settings.min_insync_replicas, settings.zookeeper_connect) == (2, "zk:2181/a")
    assert settings.metrics_port == 9404
    assert unknown == ["spaced", "unheard.of"]


@pytest.mark.parametrize("key", sorted(cluster_spec.OPERATOR_OWNED_KEYS))
def test_keys_of_the_operator_are_refused(key: str) -> None:
    with pytest.raises(spec.InvalidSpec) as refused:
        cluster(config={key: "1"})
    assert refused.value.reason == "InvalidConfig"


def test_security_settings_that_brokers_do_not_support_are_refused() -> None:
    # A broker with such a setting does not start: its pod would crash again and again.
    with pytest.raises(spec.InvalidSpec, match=r"remove zookeeper\.set\.acl$") as refused:
        cluster(config={"zookeeper.set.acl": "true"})
    assert refused.value.reason == "InvalidConfig"
    with pytest.raises(spec.InvalidSpec, match=r"remove delegation\.token\.secret\.key$"):
        cluster(config={"delegation.token.secret.key": "a-secret"})
    with pytest.raises(spec.InvalidSpec, match=r"do not support .* principal\.builder\.class$"):
        cluster(config={"principal.builder.class": "org.example.Builder"})
    # Nor do the listeners of a KafkaCluster have what brokers support.
    with pytest.raises(spec.InvalidSpec, match=r"remove ssl\.client\.auth$") as refused:
        cluster(config={"ssl.client.auth": "required"})
    assert refused.value.reason == "InvalidConfig"
    assert cluster(config={"security.inter.broker.protocol": "PLAINTEXT"}).unknown_keys == ()


def test_authorizer_is_a_setting_like_any_other() -> None:
    authorizer = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    assert cluster(config=authorizer).unknown_keys == ()
    with pytest.raises(spec.InvalidSpec, match=r"authorizer\.class\.name"):
        cluster(config={"authorizer.class.name": "org.example.Mine"})


def test_clusters_may_let_consumers_read_the_closest_replica() -> None:
    selector = {"replica.selector.class": RACK_AWARE_SELECTOR}
    assert cluster(config=selector).unknown_keys == ()
    with pytest.raises(spec.InvalidSpec, match=r"must be one of: org\.apache\.kafka") as refused:
        cluster(config={"replica.selector.class": "org.example.Mine"})
    assert refused.value.reason == "InvalidConfig"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("unheard.of", "1\nbroker.id=7"),
        ("unheard.of", "1\rbroker.id=7"),
        ("unheard.of", "1\u2028broker.id=7"),
        ("1\rbroker.id", "7"),
        ("log.dirs:/elsewhere", ""),
        ("log.dirs =/elsewhere", ""),
        ("#log.dirs", "/elsewhere"),
        ("unheard.of", "\0"),
    ],
)
def test_no_setting_can_smuggle_another_one(name: str, text: str) -> None:
    with pytest.raises(spec.InvalidSpec, match="would not read") as refused:
        cluster(config={name: text})
    assert refused.value.reason == "InvalidConfig"


def desired(
    kind: str,
    wanted: cluster_spec.ClusterSpec,
    live: Any = None,
    *,
    pull_secrets: tuple[str, ...] = (),
    evictable: bool = True,
) -> dict[str, Any]:
    objects = cluster_objects.desired_objects(
        META,
        wanted,
        "b:1",
        "IfNotPresent",
        pull_secrets,
        {},
        [live],
        wanted.brokers,
        Budget(1 if evictable else 0),
    )
    return next(one for one in objects if one["kind"] == kind)


def stateful_set(wanted: cluster_spec.ClusterSpec, live: Any = None) -> dict[str, Any]:
    return desired("StatefulSet", wanted, live)


def test_brokers_pull_their_image_with_the_secrets_of_the_installation() -> None:
    environment = {
        "ODRADEK_BROKER_IMAGE": "b:1",
        "ODRADEK_SPARK_IMAGE": "s:1",
    }
    assert read_settings(environment).platform.pull_secrets == ()
    named = read_settings({**environment, "ODRADEK_IMAGE_PULL_SECRETS": "one,two"})
    secrets = named.platform.pull_secrets
    pod = desired("StatefulSet", cluster(), pull_secrets=secrets)["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    # Without any the pods are as they always were, so that no broker is restarted.
    assert "imagePullSecrets" not in stateful_set(cluster())["spec"]["template"]["spec"]


@pytest.mark.parametrize(("evictable", "unavailable"), [(True, 1), (False, 0)])
def test_broker_that_serves_nobody_never_holds_up_a_drain(
    evictable: bool, unavailable: int
) -> None:
    budget = desired("PodDisruptionBudget", cluster(), evictable=evictable)["spec"]
    assert budget["maxUnavailable"] == unavailable
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_probes_ask_what_only_a_working_event_loop_answers() -> None:
    broker = stateful_set(cluster())["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "metrics", "containerPort": 9404, "protocol": "TCP"} in broker["ports"]
    ready, alive = broker["readinessProbe"], broker["livenessProbe"]
    assert ready["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert alive["httpGet"] == {"path": "/healthz", "port": "metrics"}
    # A machine that pauses for a minute is no reason to restart every broker on it.
    assert alive["periodSeconds"] * alive["failureThreshold"] >= 60


@pytest.mark.parametrize(
    ("attempts", "backoff_ms", "seconds"),
    [
        (None, None, 30),
        (3, 5000, 30),
        (0, 60_000, 30),
        (13, 10_000, 140),
        (2**31 - 1, 2**63 - 1, 24 * 3600),
    ],
)
def test_pod_has_time_for_all_attempts_of_a_controlled_shutdown(
    attempts: int | None, backoff_ms: int | None, seconds: int
) -> None:
    wanted = {
        "controlled.shutdown.max.retries": attempts,
        "controlled.shutdown.retry.backoff.ms": backoff_ms,
    }
    config = {name: str(number) for name, number in wanted.items() if number is not None}
    pod = stateful_set(cluster(config=config))["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == seconds


def test_configuration_change_changes_the_template_and_racks_do_not() -> None:
    before = stateful_set(cluster())["spec"]["template"]
    assert stateful_set(cluster(config={"num.partitions": "2"}))["spec"]["template"] != before
    # Running brokers take these from ZooKeeper.
    dynamic = cluster(config={"log.retention.ms": "5"})
    assert stateful_set(dynamic)["spec"]["template"] == before
    assert stateful_set(cluster(rackTopologyKey="zone"))["spec"]["template"] == before


def test_setting_that_is_taken_out_of_the_spec_gets_the_default_that_the_rest_gives_it() -> None:
    chosen = ["compression.type", "log.retention.ms", "min.insync.replicas"]
    wanted = cluster(config={"log.retention.hours": "2", "min.insync.replicas": "2"})
    assert settings.entries(wanted, chosen) == {
        "compression.type": "producer",
        "log.retention.ms": "7200000",
        "min.insync.replicas": "2",
    }
    everything = settings.entries(cluster(), DYNAMIC_KEYS)
    dynamic_config.check(everything)
    # A broker that falls back to its file for one would keep what the file had when it started.
    assert everything.keys() == DYNAMIC_KEYS.keys()
    assert everything["log.flush.interval.ms"] == str(topic_config.TopicConfig().flush_ms)


def test_brokers_run_where_the_user_wants_them_and_never_two_on_a_node() -> None:
    def affinity(**brokers: Any) -> Any:
        return stateful_set(cluster(**brokers))["spec"]["template"]["spec"]["affinity"]

    required = "requiredDuringSchedulingIgnoredDuringExecution"
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    alone = {"podAntiAffinity": {required: [{**_APART, "topologyKey": "kubernetes.io/hostname"}]}}
    assert affinity() == alone
    disks = {"matchExpressions": [{"key": "disks", "operator": "In", "values": ["fast"]}]}
    nodes = {required: {"nodeSelectorTerms": [disks]}}
    other = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"noisy": "yes"}}}
    zones = [{"weight": 5, "podAffinityTerm": {**_APART, "topologyKey": "zone"}}]
    wanted = {
        "nodeAffinity": nodes,
        "podAntiAffinity": {required: [other], preferred: zones},
    }
    assert affinity(affinity=wanted) == {
        "nodeAffinity": nodes,
        "podAntiAffinity": {
            required: [*alone["podAntiAffinity"][required], other],
            preferred: zones,
        },
    }
    assert affinity(affinity={"podAntiAffinity": {required: []}}) == alone


_APART = {"labelSelector": {"matchLabels": cluster_objects.selector(META)}}


@pytest.mark.parametrize(
    "extra",
    [
        {"nodeSelector": {"disks": "fast"}},
        {"tolerations": [{"operator": "Exists"}]},
        {"priorityClassName": "high"},
        {"resources": {"limits": {"memory": "1Gi"}}},
        {"affinity": {"podAffinity": {}}},
        {"podLabels": {"team": "logs"}},
        {"podAnnotations": {"team": "logs"}},
        {
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ]
        },
        {"env": [{"name": "TZ", "value": "UTC"}]},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_what_a_template_has_too_much_is_noticed(extra: dict[str, Any]) -> None:
    live = stateful_set(cluster(**extra))
    assert kube.differs(stateful_set(cluster()), live)
    assert not kube.differs(stateful_set(cluster(**extra)), live)


def test_claim_templates_of_a_live_set_are_kept_when_the_size_grows() -> None:
    live = stateful_set(cluster(storage={"size": "1Gi"}))
    grown = stateful_set(cluster(storage={"size": "2Gi"}), live)
    assert grown["spec"]["volumeClaimTemplates"] == live["spec"]["volumeClaimTemplates"]


def test_job_file_has_what_the_seam_names() -> None:
    wanted = group(volume={"size": "1Gi"}, sql="select 1")
    assert wanted.job is not None
    text = driver_objects.job_file(META, wanted, wanted.job, PLATFORM, Addresses("h:1", "zk:2/a"))
    assert json.loads(text) == {
        "group": "g",
        "bootstrap": "h:1",
        "zookeeper": "zk:2/a",
        "offsetStore": "ZooKeeper",
        "topics": ["t"],
        "topicPattern": None,
        "metricsPort": 9405,
        "uiPort": None,
        "image": "spark:1",
        "claimName": "main-data",
        "serviceAccount": "odradek-job-main",
        "name": "main",
        "authSecret": "main-auth-u",
        "limits": "claim/main-data image/spark:1 secret/main-auth-u",
        "pod": {},
        "storageSecret": None,
        # One node at a time has the claim, so executors go to the driver's.
        "sameNodeAs": {
            "app.kubernetes.io/component": "spark-driver",
            "odradek.io/group": "main",
        },
        "job": wanted.job.raw,
    }
    assert driver_objects.labels(META).items() >= json.loads(text)["sameNodeAs"].items()


def test_job_on_an_object_store_has_no_claim_and_the_keys_of_its_secret() -> None:
    wanted = group(
        checkpoint={"url": "s3a://lake/checkpoints/", "secretRef": {"name": "s3"}},
        sink={"delta": {"path": "s3a://lake/t", "secretRef": {"name": "s3"}}},
    )
    assert wanted.job is not None
    assert driver_objects.claim(META, wanted.job) is None
    text = driver_objects.job_file(META, wanted, wanted.job, PLATFORM, Addresses("h:1", "zk:2/a"))
    document = json.loads(text)
    assert document["checkpointUrl"] == f"s3a://lake/checkpoints/{META.namespace}/main"
    assert document["claimName"] is None
    assert document["storageSecret"] == "s3"
    # Admission lets executors have it.
    assert "secret/s3" in document["limits"].split()
    assert document["sameNodeAs"] == {}
    pod = driver_objects.driver_pod(META, wanted.job, PLATFORM, text)
    (container,) = pod["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert {mount["name"] for mount in container["volumeMounts"]} == {"job", "tmp", "auth"}


@pytest.mark.parametrize("named", [{"secretRef": {"name": "db"}}, {"credentialsSecret": "db"}])
def test_login_of_a_database_is_files_of_the_driver(named: dict[str, Any]) -> None:
    wanted = group(sink={"jdbc": {"url": "jdbc:postgresql://db/shop", "table": "t", **named}})
    assert wanted.job is not None
    text = driver_objects.job_file(META, wanted, wanted.job, PLATFORM, Addresses("h:1", "zk:2/a"))
    pod = driver_objects.driver_pod(META, wanted.job, PLATFORM, text)
    assert {"name": "credentials", "secret": {"secretName": "db"}} in pod["spec"]["volumes"]


def test_claim_that_many_nodes_can_have_leaves_executors_where_there_is_room() -> None:
    size = {"size": "1Gi", "storageClassName": "shared", "accessMode": "ReadWriteMany"}
    for wanted in (group(volume=size), group(checkpoint={"claim": size})):
        assert wanted.job is not None
        claim = driver_objects.claim(META, wanted.job)
        assert claim is not None
        assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
        assert claim["spec"]["storageClassName"] == "shared"
        text = driver_objects.job_file(META, wanted, wanted.job, PLATFORM, Addresses("h:1", "z:2"))
        assert json.loads(text)["sameNodeAs"] == {}
        assert json.loads(text)["claimName"] == "main-data"


def mark(wanted: group_spec.GroupSpec, bootstrap: str = "h:1") -> str:
    assert wanted.job is not None
    addresses = Addresses(bootstrap, "zk:2/a")
    text = driver_objects.job_file(META, wanted, wanted.job, PLATFORM, addresses)
    pod = driver_objects.driver_pod(META, wanted.job, PLATFORM, text)
    return str(pod["metadata"]["annotations"][group_driver.SPEC_HASH])


def test_driver_is_replaced_for_what_it_must_know_and_for_nothing_else() -> None:
    same = mark(group(volume={"size": "1Gi"}))
    assert mark(group(volume={"size": "1Gi"}), "other:9") == same
    assert mark(group(volume={"size": "2Gi"})) == same
    small, large = ({"claim": {"size": size}} for size in ("1Gi", "2Gi"))
    assert mark(group(checkpoint=small)) == mark(group(checkpoint=large))
    assert mark(group(volume={"size": "1Gi"}, suspend=False)) == same
    assert mark(group(volume={"size": "1Gi"}, schedule="@daily")) == same
    for executors in ({}, {"instances": 1}, {"instances": 7}):
        assert mark(group(volume={"size": "1Gi"}, executors=executors)) == mark(
            group(volume={"size": "1Gi"}, executors={})
        )
    for timeouts in ({}, {"startSeconds": 9}, {"startSeconds": 300, "batchSeconds": 3600}):
        assert mark(group(volume={"size": "1Gi"}, timeouts=timeouts)) == same
    assert mark(group(volume={"size": "1Gi"}, timeouts={"batchSeconds": 7200})) != same
    assert mark(group(volume={"size": "1Gi"}, sql="select 2")) != same
    assert mark(group(volume={"size": "1Gi"}, driver={"cores": 2})) != same


def test_driver_runs_where_and_as_urgently_as_the_user_wants() -> None:
    def pod(**fields: Any) -> dict[str, Any]:
        wanted = group(**fields)
        assert wanted.job is not None
        text = driver_objects.job_file(
            META, wanted, wanted.job, PLATFORM, Addresses("h:1", "zk:2/a")
        )
        return dict(driver_objects.driver_pod(META, wanted.job, PLATFORM, text)["spec"])

    spot = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
    default, chosen = pod(), pod(tolerations=[spot], priorityClassName="batch")
    assert [one["tolerationSeconds"] for one in default["tolerations"]] == [30, 30]
    assert chosen["tolerations"] == [*default["tolerations"], spot]
    assert ("priorityClassName" in default, chosen["priorityClassName"]) == (False, "batch")


TEMPLATE = {
    "metadata": {"labels": {"team": "web"}, "annotations": {"a": "template", "b": "template"}},
    "spec": {
        "dnsPolicy": "Default",
        "volumes": [{"name": "models", "configMap": {"name": "models"}}],
        "containers": [
            {
                "name": "spark",
                "env": [{"name": "A", "value": "template"}, {"name": "B", "value": "template"}],
                "volumeMounts": [{"name": "models", "mountPath": "/models"}],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }
        ],
    },
}


def test_driver_has_what_the_user_adds_and_the_operators_own_counts() -> None:
    key = {"secretKeyRef": {"name": "db", "key": "password"}}
    wanted = group(
        template=TEMPLATE,
        env=[{"name": "B", "valueFrom": key}],
        secretRefs=[{"name": "s3"}],
        podAnnotations={"b": "job", "prometheus.io/port": "1"},
    ).job
    assert wanted is not None
    pod = driver_objects.driver_pod(META, wanted, PLATFORM, job_text(wanted))
    meta, inner = pod["metadata"], pod["spec"]
    assert (meta["labels"]["team"], meta["labels"]["odradek.io/group"]) == ("web", "main")
    assert (meta["annotations"]["a"], meta["annotations"]["b"]) == ("template", "job")
    assert meta["annotations"]["prometheus.io/port"] == "9405"
    assert inner["dnsPolicy"] == "Default"
    (container,) = inner["containers"]
    assert container["env"][:2] == [
        {"name": "A", "value": "template"},
        {"name": "B", "valueFrom": key},
    ]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert mounts.items() >= {"models": "/models", "secret-0": "/etc/odradek/secrets/s3"}.items()
    assert {"name": "secret-0", "secret": {"secretName": "s3"}} in inner["volumes"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1", "memory": "1024Mi"}
    assert driver_objects.executor_limits(META, wanted, PLATFORM).split() == [
        "annotation/a",
        "annotation/b",
        "annotation/prometheus.io/port",
        "configmap/models",
        "image/spark:1",
        "label/team=web",
        "secret/db",
        "secret/main-auth-u",
        "secret/s3",
    ]


def job_text(job: JobSpec) -> str:
    return driver_objects.job_file(META, group(), job, PLATFORM, Addresses("h:1", "zk:2/a"))


def in_template(**fields: Any) -> dict[str, Any]:
    return {"template": {"spec": fields}}


def in_container(**fields: Any) -> dict[str, Any]:
    return in_template(containers=[{"name": "spark", **fields}])


CONTAINER = "template.spec.containers[0]"


@pytest.mark.parametrize(
    ("job", "named"),
    [
        (in_template(hostNetwork=True), "template.spec.hostNetwork may not be set"),
        (in_template(serviceAccountName="x"), "template.spec.serviceAccountName"),
        (in_template(securityContext={}), "template.spec.securityContext"),
        (in_template(initContainers=[]), "template.spec.initContainers"),
        (in_template(tolerations=[]), "use spec.job.tolerations"),
        (in_template(volumes=[{"name": "h", "hostPath": {}}]), "volumes[0].hostPath"),
        *(
            (in_template(volumes=[{"name": one, "emptyDir": {}}]), f"volumes[0]: the name {one}")
            for one in ("job", "tmp", "data", "credentials", "auth", "brokers", "zookeeper")
        ),
        (in_template(volumes={}), "template.spec.volumes must be a list"),
        (in_template(containers=["spark"]), f"{CONTAINER} must be an object"),
        (in_template(containers=[{"name": "sidecar"}]), f"{CONTAINER} may not be set"),
        (in_container(image="x"), f"{CONTAINER}.image may not be set"),
        (in_container(securityContext={"privileged": True}), f"{CONTAINER}.securityContext"),
        (in_container(resources={"limits": {"memory": "1Gi"}}), "resources.limits.memory"),
        (
            in_container(volumeMounts=[{"name": "a", "mountPath": "/etc/odradek/auth"}]),
            "volumeMounts[0].mountPath: /etc/odradek/auth belongs to the operator",
        ),
        (
            in_container(volumeMounts=[{"name": "a", "mountPath": "/etc/odradek-zookeeper/a"}]),
            "volumeMounts[0].mountPath: /etc/odradek-zookeeper/a belongs to the operator",
        ),
        (in_container(env=[{"name": "SPARK_USER"}]), "env[0]: SPARK_USER belongs"),
        (in_container(env=[{"value": "x"}]), f"{CONTAINER}.env[0].name is missing"),
        (in_container(env=[{"name": ["x"]}]), f"{CONTAINER}.env[0].name is missing"),
        (in_container(env=[{"name": "A", "valueFrom": "x"}]), "env[0].valueFrom must be an object"),
        (
            in_container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"key": "k"}}}]),
            "env[0].valueFrom.secretKeyRef.name is missing",
        ),
        (in_container(envFrom=[{"secretRef": {}}]), "envFrom[0].secretRef.name is missing"),
        (
            in_template(volumes=[{"name": "s", "secret": {"secret": "db"}}]),
            "volumes[0].secret.secretName is missing",
        ),
        ({"env": [{"name": "POD_IP"}]}, "spec.job.env[0]: POD_IP belongs"),
        ({"podAnnotations": {"odradek.io/executor-limits": "x"}}, "spec.job.podAnnotations"),
        (
            {"template": {"metadata": {"labels": {"odradek.io/cluster": "main"}}}},
            "template.metadata.labels: odradek.io/cluster belongs",
        ),
        ({"template": {"spec": None}}, "template.spec must be an object"),
    ],
)
def test_what_the_operator_owns_is_refused_by_its_name(job: dict[str, Any], named: str) -> None:
    with pytest.raises(spec.InvalidSpec) as refused:
        group(**job)
    assert refused.value.reason == "InvalidJob"
    assert named in refused.value.message


def test_report_of_a_driver_is_believed_only_where_the_types_are_right() -> None:
    raw = {
        "lastBatchId": 4,
        "totalLag": True,
        "keepsState": 1,
        "maxLagSeconds": 1.5,
        "state": 7,
        "waitsFor": ["x"],
        "executors": "2",
        "batchRunningSeconds": None,
    }
    assert read_report(raw) == {"lastBatchId": 4, "maxLagSeconds": 1}
    assert read_report({"waitsFor": "x" * 999}) == {"waitsFor": "x" * 512}
    placed = {"topic": "t", "partition": 0, "lag": 3}
    old = {**placed, "lagSeconds": 1.5}
    strange = [{**placed, "lag": "3"}, {**placed, "lag": True}, {**placed, "x": 1}, {"lag": 3}, 7]
    assert read_report({"worstPartitions": [placed, *strange, old]}) == {
        "worstPartitions": [placed, old]
    }
    beyond = [{**old, "lagSeconds": float("nan")}, {**placed, "lag": 2**63}]
    beyond += [{**placed, "partition": 2**31}, {**placed, "topic": "t" * 250}]
    assert read_report({"worstPartitions": beyond}) == {"worstPartitions": []}
    # As the schema of the status has them.
    assert read_report({"members": 2**31, "executors": -(2**31) - 1, "totalLag": 2**62}) == {
        "totalLag": 2**62
    }
    for state in ("", "Not ready", "Running\n", "9", "R\u00fcckstand", "x" * 65):
        assert read_report({"state": state}) == {}
    assert read_report({"state": "Running"}) == {"state": "Running"}
    for seconds in (float("nan"), float("inf"), 1e300, 10**400, -(2**64)):
        assert read_report({"maxLagSeconds": seconds, "totalLag": 2**63}) == {}
    assert read_report({"worstPartitions": [placed] * 11}) == {"worstPartitions": [placed] * 10}
    assert read_report({"worstPartitions": placed}) == {}


@contextmanager
def answering(monkeypatch: pytest.MonkeyPatch, *pieces: bytes) -> Iterator[dict[str, Any]]:
    """Yield a pod whose driver answers each request with these bytes, the last over and over."""
    over = threading.Event()

    def answer(server: socket.socket) -> None:
        with server.accept()[0] as peer, suppress(OSError):
            peer.recv(4096)
            for piece in pieces:
                peer.sendall(piece)
            while len(pieces) > 1 and not over.wait(0.01):
                peer.sendall(pieces[-1])

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(driver_objects, "METRICS_PORT", server.getsockname()[1])
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        try:
            yield {"status": {"podIP": "127.0.0.1", "phase": "Running"}}
        finally:
            over.set()
            thread.join()


def test_a_driver_that_never_ends_its_answer_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each byte comes before the time-out of the socket."""
    monkeypatch.setattr(report, "_REPORT_SECONDS", 0.3)
    for head in (b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n["):
        with answering(monkeypatch, head, b"1") as pod:
            assert fetch_report(pod) is None


@pytest.mark.parametrize(
    "body",
    [b"[" * 60_000, b'{"a":' * 12_000, b"{", b"\xff", b"[1]"],
    ids=["many lists", "many objects", "cut off", "no text", "no object"],
)
def test_a_driver_whose_answer_is_no_report_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    with answering(monkeypatch, b"HTTP/1.1 200 OK\r\n\r\n" + body) as pod:
        assert fetch_report(pod) is None


@pytest.mark.parametrize(
    ("wanted", "live", "differ"),
    [
        ({"a": 1}, {"a": 1, "defaulted": 2}, False),
        ({"a": 1}, {"a": 2}, True),
        ({"a": {}}, {}, False),
        ({"a": []}, {}, False),
        ({"a": [{"name": "x"}]}, {"a": [{"name": "x", "protocol": "TCP"}]}, False),
        ({"a": [1]}, {"a": [1, 2]}, True),
        ({"a": [1]}, {}, True),
        ({"a": False}, {}, True),
        ({"limits": {"cpu": 1}}, {"limits": {"cpu": "1"}}, False),
        ({"limits": {"cpu": "1000m"}}, {"limits": {"cpu": "1"}}, False),
        ({"requests": {"memory": "1024Mi"}}, {"requests": {"memory": "1Gi"}}, False),
        ({"requests": {"memory": "1G"}}, {"requests": {"memory": "1Gi"}}, True),
        ({"requests": {"memory": "1Gi"}}, {"requests": {}}, True),
        ({"requests": {"memory": "odd"}}, {"requests": {"memory": "1Gi"}}, True),
        ({"data": {"a": "1000m"}}, {"data": {"a": "1"}}, True),
    ],
)
def test_defaults_of_the_api_server_are_no_difference(wanted: Any, live: Any, differ: bool) -> None:
    assert kube.differs(wanted, live) is differ
