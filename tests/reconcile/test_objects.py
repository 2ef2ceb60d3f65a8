"""The Kubernetes objects and files that a resource becomes."""

import json
from typing import Any

import pytest

from odradek import config, dynamic_config
from odradek.dynamic_config import DYNAMIC_KEYS
from odradek.properties import load_properties
from odradek_operator.cluster import objects as cluster_objects
from odradek_operator.cluster import settings
from odradek_operator.group import driver as group_driver
from odradek_operator.group import driver_objects
from odradek_operator.group.driver_objects import Addresses
from odradek_operator.group.report import read_report
from odradek_operator.runtime import read_settings
from odradek_operator.shared import kube, spec
from odradek_operator.shared.apply import Platform

PLATFORM = Platform("spark:1", "IfNotPresent", "spark")
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


def cluster(**brokers: Any) -> spec.ClusterSpec:
    return spec.parse_cluster(
        {
            "kind": "KafkaCluster",
            "metadata": {"name": "main"},
            "spec": {
                "zookeeper": {"connect": "zk:2181", "chroot": "/a"},
                "brokers": {"replicas": 3, **brokers},
            },
        }
    )


def group(**job: Any) -> spec.GroupSpec:
    return spec.parse_group(
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
    settings, unknown = config.from_values({**loaded, "broker.id": "0"})
    assert (settings.min_insync_replicas, settings.zookeeper_connect) == (2, "zk:2181/a")
    assert settings.metrics_port == 9404
    assert unknown == ["spaced", "unheard.of"]


@pytest.mark.parametrize("key", sorted(spec.OPERATOR_OWNED_KEYS))
def test_keys_of_the_operator_are_refused(key: str) -> None:
    with pytest.raises(spec.InvalidSpec) as refused:
        cluster(config={key: "1"})
    assert refused.value.reason == "InvalidConfig"


def test_security_settings_that_brokers_do_not_support_are_refused() -> None:
    # A broker with such a setting does not start: its pod would crash again and again.
    with pytest.raises(spec.InvalidSpec, match=r"remove authorizer\.class\.name, and") as refused:
        cluster(config={"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"})
    assert refused.value.reason == "InvalidConfig"
    assert cluster(config={"security.inter.broker.protocol": "PLAINTEXT"}).unknown_keys == ()


def test_line_break_cannot_smuggle_a_key() -> None:
    with pytest.raises(spec.InvalidSpec):
        cluster(config={"unheard.of": "1\nbroker.id=7"})


def desired(
    kind: str,
    wanted: spec.ClusterSpec,
    live: Any = None,
    *,
    pull_secrets: tuple[str, ...] = (),
    evictable: bool = True,
) -> dict[str, Any]:
    objects = cluster_objects.desired_objects(
        META, wanted, "b:1", "IfNotPresent", pull_secrets, {}, live, 3, evictable
    )
    return next(one for one in objects if one["kind"] == kind)


def stateful_set(wanted: spec.ClusterSpec, live: Any = None) -> dict[str, Any]:
    return desired("StatefulSet", wanted, live)


def test_brokers_pull_their_image_with_the_secrets_of_the_installation() -> None:
    environment = {
        "ODRADEK_BROKER_IMAGE": "b:1",
        "ODRADEK_SPARK_IMAGE": "s:1",
        "ODRADEK_SPARK_SERVICE_ACCOUNT": "spark",
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
    assert everything["log.flush.interval.ms"] == str(config.TopicConfig().flush_ms)


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
        "image": "spark:1",
        "claimName": "main-data",
        "serviceAccount": "spark",
        "job": wanted.job.raw,
    }


def mark(wanted: spec.GroupSpec, bootstrap: str = "h:1") -> str:
    assert wanted.job is not None
    addresses = Addresses(bootstrap, "zk:2/a")
    text = driver_objects.job_file(META, wanted, wanted.job, PLATFORM, addresses)
    pod = driver_objects.driver_pod(META, wanted.job, PLATFORM, text)
    return str(pod["metadata"]["annotations"][group_driver.SPEC_HASH])


def test_driver_is_replaced_for_what_it_must_know_and_for_nothing_else() -> None:
    same = mark(group(volume={"size": "1Gi"}))
    assert mark(group(volume={"size": "1Gi"}), "other:9") == same
    assert mark(group(volume={"size": "2Gi"})) == same
    assert mark(group(volume={"size": "1Gi"}, suspend=False)) == same
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


def test_report_of_a_driver_is_believed_only_where_the_types_are_right() -> None:
    raw = {"lastBatchId": 4, "totalLag": True, "maxLagSeconds": 1.5, "state": 7, "executors": "2"}
    assert read_report(raw) == {"lastBatchId": 4, "maxLagSeconds": 1}


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
