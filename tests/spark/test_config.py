from __future__ import annotations

import json
from typing import Any

import pytest

from odradek_spark import cluster_conf, config, config_loading

POD = {"POD_NAME": "g-driver", "POD_NAMESPACE": "logs", "POD_IP": "10.0.0.9", "POD_UID": "u"}
ENVIRONMENT = config_loading.parse_environment(POD, uid=10001, gid=10001)


def job_file(**changes: Any) -> str:
    """Return a valid job file; `a__b` in `changes` is field b of a, None removes a field."""
    document: dict[str, Any] = {
        "group": "g",
        "bootstrap": "b1:9092,b2:9092",
        "zookeeper": "zk:2181/chroot",
        "offsetStore": "ZooKeeper",
        "topics": ["t"],
        "topicPattern": None,
        "metricsPort": 9405,
        "image": "image:1",
        "claimName": "claim",
        "serviceAccount": "odradek-job-g",
        "name": "g",
        "authSecret": "g-auth",
        "limits": "claim/claim image/image:1 secret/g-auth",
        "job": {
            "startingOffsets": "earliest",
            "trigger": "10s",
            "format": "json",
            "schema": "at timestamp",
            "sql": "select 1",
            "sink": {"parquet": {"path": "/data/out"}},
            "driver": {"cores": 1, "memory": "1Gi"},
            "executors": {"instances": 2, "cores": 3, "memory": "2Gi"},
            "volume": {"size": "1Gi"},
            "suspend": False,
        },
    }
    for name, value in changes.items():
        *parents, last = name.split("__")
        place = document
        for parent in parents:
            place = place[parent]
        place[last] = value
    return json.dumps(document)


def parse(**changes: Any) -> config.Job:
    return config_loading.parse_job(job_file(**changes), ENVIRONMENT)


def test_job_file_of_the_operator_is_read() -> None:
    job = parse()
    assert (job.group, job.topics, job.topic_pattern) == ("g", ("t",), None)
    assert job.zookeeper == "zk:2181/chroot"
    assert job.trigger_ms == 10_000
    assert job.sink == config.ParquetSink("/data/out")
    assert (job.executor_instances, job.executors.cores) == (2, 3)
    assert job.pipeline.output_mode is None


def test_zookeeper_at_the_root_needs_no_chroot() -> None:
    assert parse(zookeeper="zk:2181/").zookeeper == "zk:2181"


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("500ms", 500), ("10s", 10_000), ("2m", 120_000), ("1h", 3_600_000), ("availableNow", None)],
)
def test_trigger_is_a_time_or_available_now(text: str, milliseconds: int | None) -> None:
    assert config_loading.parse_trigger(text) == milliseconds


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"group": "no/slash"}, "group"),
        ({"group": None}, "group"),
        ({"group": ".."}, "group '..' is not a group's name"),
        ({"bootstrap": ""}, "bootstrap is missing"),
        ({"topics": [], "topicPattern": None}, "topics and topicPattern"),
        ({"topicPattern": "a.*"}, "topics and topicPattern"),
        ({"topics": ["bad name"]}, "'bad name' is not a topic name"),
        ({"topics": None, "topicPattern": "("}, "topicPattern"),
        ({"topics": None, "topicPattern": "a{4294967296}"}, "topicPattern"),
        ({"offsetStore": "File"}, "offsetStore 'File' is not one of ZooKeeper, Kafka, Both"),
        ({"claimName": None}, "job.volume is needed"),
        ({"metricsPort": 70000}, "metricsPort"),
        ({"metricsPort": True}, "metricsPort"),
        ({"job": []}, "job must be an object"),
        ({"job__trigger": "10"}, "job.trigger"),
        ({"job__trigger": "0s"}, "job.trigger"),
        ({"job__format": "avro", "job__schema": None}, "job.format avro needs a schema"),
        ({"job__format": "raw"}, "raw has no schema"),
        ({"job__format": "xml"}, "job.format 'xml'"),
        ({"job__format": "text"}, "text has no schema"),
        ({"job__format": "csv", "job__schema": None}, "csv needs a schema"),
        ({"job__python": "m:f"}, "sql or python"),
        ({"job__sql": None, "job__python": "no function"}, "not module:function"),
        ({"job__outputMode": "all"}, "job.outputMode 'all'"),
        ({"job__startingOffsets": "yesterday"}, "job.startingOffsets"),
        ({"job__startingOffsets": "2026-11-21T09:00:00"}, "no time zone"),
        ({"job__startingOffsets": "1969-12-31T23:59:59.999Z"}, "before 1970"),
        ({"job__watermark": {"column": "at", "delay": "soon"}}, "job.watermark.delay"),
        ({"job__watermark": {"delay": "1 minute"}}, "job.watermark.column is missing"),
        ({"job__sink": {}}, "job.sink must be one of"),
        ({"job__sink": {"console": {}, "topic": {"name": "t"}}}, "job.sink must be one of"),
        ({"job__sink": {"parquet": {"path": "/elsewhere"}}}, "must be below /data"),
        ({"job__sink": {"parquet": {"path": "/data/../etc"}}}, "must be below /data"),
        ({"job__sink": {"parquet": {"path": "/data"}}}, "must be below /data"),
        (
            {"job__sink": {"parquet": {"path": "/data/checkpoints/x"}}},
            "in the folder of the checkpoints",
        ),
        ({"job__sink": {"jdbc": {"url": "http://x", "table": "t"}}}, "does not begin with jdbc:"),
        ({"job__sink": {"parquet": {"path": "s3a://lake/out"}}}, "use the sink delta"),
        ({"job__sink": {"delta": {"path": "/elsewhere"}}}, "must be below /data"),
        ({"job__sink": {"delta": {"path": "s3://lake/out"}}}, "write s3a:// for s3://"),
        ({"job__sink": {"delta": {"path": "s3a://lake"}}}, "with a bucket and a path"),
        ({"job__sink": {"delta": {"path": "hdfs://x/y"}}}, "nor a URL of s3a, gs, abfs or abfss"),
        ({"job__sink": {"delta": {"path": "/data/t", "optimizeEvery": -1}}}, "optimizeEvery"),
        ({"checkpointUrl": "ftp://x/y"}, "checkpointUrl 'ftp://x/y' is neither"),
        ({"claimName": None, "checkpointUrl": "s3a://lake/c"}, "job.volume is needed"),
        (
            {"job__sink": {"jdbc": {"url": "jdbc:mysql:x", "table": "t", "upsertKeys": ["a"]}}},
            "upsertKeys needs PostgreSQL",
        ),
        ({"job__sink": {"topic": {"name": "a b"}}}, "job.sink.topic.name"),
        ({"job__driver": {"memory": "512Mi"}}, "job.driver.memory 512Mi is below"),
        ({"job__executors": {"memory": "1G"}}, "job.executors.memory"),
        ({"job__executors": {"instances": 0}}, "job.executors.instances"),
        ({"job__sparkConf": {"a": 1}}, "job.sparkConf must map"),
    ],
)
def test_nonsense_is_refused_with_one_line_that_names_it(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(config.JobConfigError) as refusal:
        parse(**changes)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_file_that_is_no_job_is_refused(text: str) -> None:
    with pytest.raises(config.JobConfigError):
        config_loading.parse_job(text, ENVIRONMENT)


def test_pod_without_its_identity_is_refused_unless_spark_is_local() -> None:
    with pytest.raises(config.JobConfigError, match="POD_IP"):
        config_loading.parse_environment({**POD, "POD_IP": ""}, 1, 1)
    local = config_loading.parse_environment({"ODRADEK_SPARK_MASTER": "local[2]"}, 1, 1)
    assert not local.on_kubernetes


def test_time_stamp_may_have_any_zone() -> None:
    assert config_loading.parse_timestamp_ms("2026-11-21T10:00:00.5+01:00") == 1795251600500
    assert config_loading.parse_timestamp_ms("2026-11-21t09:00:00.500z") == 1795251600500


def test_executors_share_the_drivers_volume_and_find_the_driver() -> None:
    conf = cluster_conf.spark_conf(parse(), ENVIRONMENT, "/tmp/pod.yaml")
    claim = "spark.kubernetes.executor.volumes.persistentVolumeClaim.data"
    assert conf["spark.master"] == "k8s://https://kubernetes.default.svc"
    assert conf["spark.submit.deployMode"] == "client"
    assert conf["spark.driver.host"] == "10.0.0.9"
    assert conf["spark.kubernetes.driver.pod.name"] == "g-driver"
    assert conf["spark.kubernetes.namespace"] == "logs"
    assert conf["spark.kubernetes.container.image"] == "image:1"
    assert conf["spark.executor.instances"] == "2"
    assert conf["spark.executor.cores"] == "3"
    assert conf[f"{claim}.mount.path"] == "/data"
    assert conf[f"{claim}.options.claimName"] == "claim"
    assert conf["spark.kubernetes.executor.podTemplateFile"] == "/tmp/pod.yaml"


def test_a_job_starts_while_its_executors_do() -> None:
    # Spark's own 0.8 blocks the start, which then hears no signal and judges no query.
    conf = cluster_conf.spark_conf(parse(), ENVIRONMENT, None)
    assert conf["spark.scheduler.minRegisteredResourcesRatio"] == "0"


def test_spark_neither_looks_for_claims_nor_deletes_any() -> None:
    # The account of the job has no right to claims: see the chart's role.
    conf = cluster_conf.spark_conf(parse(), ENVIRONMENT, None)
    assert conf["spark.kubernetes.driver.ownPersistentVolumeClaim"] == "false"


def test_avro_takes_no_memory_for_what_a_record_only_claims_to_have() -> None:
    own = {"spark.executor.extraJavaOptions": "-Dx=y"}
    conf = cluster_conf.spark_conf(parse(job__sparkConf=own), ENVIRONMENT, None)
    for of in ("driver", "executor"):
        assert "avro.limits.string.maxLength=33554432" in conf[f"spark.{of}.defaultJavaOptions"]
    assert conf["spark.executor.extraJavaOptions"] == "-Dx=y"


def test_pods_memory_is_heap_and_what_lies_beside_it() -> None:
    conf = cluster_conf.spark_conf(parse(), ENVIRONMENT, None)
    heap = int(conf["spark.executor.memory"].removesuffix("m"))
    beside = int(conf["spark.executor.memoryOverhead"].removesuffix("m"))
    assert heap + beside == 2048
    assert conf["spark.driver.memory"] == "640m"


def test_users_settings_and_node_labels_reach_spark() -> None:
    job = parse(
        job__sparkConf={"spark.sql.shuffle.partitions": "7"}, job__nodeSelector={"disk": "ssd"}
    )
    conf = cluster_conf.spark_conf(job, ENVIRONMENT, None)
    assert conf["spark.sql.shuffle.partitions"] == "7"
    assert conf["spark.kubernetes.node.selector.disk"] == "ssd"


@pytest.mark.parametrize(
    "key",
    [
        "spark.master",
        "spark.kubernetes.namespace",
        "spark.kubernetes.driver.ownPersistentVolumeClaim",
        "spark.submit.deployMode",
        "spark.hadoop.fs.s3a.audit.execution.interceptors",
    ],
)
def test_settings_that_hold_the_job_together_cannot_be_changed(key: str) -> None:
    with pytest.raises(config.JobConfigError, match=key):
        cluster_conf.spark_conf(parse(job__sparkConf={key: "x"}), ENVIRONMENT, None)


def test_executor_runs_as_the_drivers_user_under_the_restricted_standard() -> None:
    pod = json.loads(cluster_conf.executor_pod_text(parse(), ENVIRONMENT))
    security = pod["spec"]["securityContext"]
    assert (security["runAsUser"], security["fsGroup"]) == (10001, 10001)
    assert security["runAsNonRoot"] is True
    container = pod["spec"]["containers"][0]["securityContext"]
    assert container == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_executor_runs_where_and_as_urgently_as_the_user_wants() -> None:
    tolerations = [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}]
    job = parse(job__tolerations=tolerations, job__priorityClassName="batch")
    wanted = json.loads(cluster_conf.executor_pod_text(job, ENVIRONMENT))["spec"]
    assert (wanted["tolerations"], wanted["priorityClassName"]) == (tolerations, "batch")
    default = json.loads(cluster_conf.executor_pod_text(parse(), ENVIRONMENT))["spec"]
    assert not {"tolerations", "priorityClassName"} & default.keys()
    with pytest.raises(config.JobConfigError, match="tolerations"):
        parse(job__tolerations=["spot"])


def test_executors_come_and_go_within_their_limits() -> None:
    executors = {"instances": 9, "dynamicAllocation": {"min": 1, "max": 4}}
    conf = cluster_conf.spark_conf(parse(job__executors=executors), ENVIRONMENT, None)
    prefix = "spark.dynamicAllocation."
    found = {key.removeprefix(prefix): conf[key] for key in conf if key.startswith(prefix)}
    assert found == {
        "enabled": "true",
        "minExecutors": "1",
        "maxExecutors": "4",
        "initialExecutors": "4",
        "shuffleTracking.enabled": "true",
    }
    assert "spark.executor.instances" not in conf
    limits = {"dynamicAllocation": {"min": 3, "max": 2}}
    with pytest.raises(config.JobConfigError, match=r"dynamicAllocation\.min"):
        parse(job__executors=limits)


ON_S3: dict[str, Any] = {
    "claimName": None,
    "checkpointUrl": "s3a://lake/checkpoints/logs/g/",
    "storageSecret": "s3",
    "job__sink": {"delta": {"path": "s3a://lake/t", "mergeKeys": ["k"]}},
}


def test_job_on_s3_has_no_claim_and_lets_nobody_replace_commits() -> None:
    job = parse(**ON_S3)
    assert job.checkpoint == "s3a://lake/checkpoints/logs/g"
    assert job.sink == config.DeltaSink("s3a://lake/t", merge_keys=("k",))
    conf = cluster_conf.spark_conf(job, ENVIRONMENT, None)
    assert not [key for key in conf if "persistentVolumeClaim" in key]
    assert conf["spark.hadoop.fs.s3a.audit.execution.interceptors"] == "io.odradek.s3.PutIfAbsent"
    assert "Abortable" in conf["spark.sql.streaming.checkpointFileManagerClass"]
    assert conf["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"
    # Local files know no upload that can be given up.
    mixed = parse(job__sink=ON_S3["job__sink"])
    assert mixed.checkpoint == "/data/checkpoints/g"
    there = cluster_conf.spark_conf(mixed, ENVIRONMENT, None)
    assert "spark.sql.streaming.checkpointFileManagerClass" not in there
    assert "spark.hadoop.fs.s3a.audit.execution.interceptors" in there
    plain = cluster_conf.spark_conf(parse(), ENVIRONMENT, None)
    assert not [key for key in plain if "s3a" in key or "delta" in key]


def test_executors_have_the_secret_of_the_storage_and_go_where_the_claim_is() -> None:
    pod = json.loads(cluster_conf.executor_pod_text(parse(**ON_S3), ENVIRONMENT))["spec"]
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert "affinity" not in pod
    driver = {"odradek.io/group": "g"}
    tied = json.loads(cluster_conf.executor_pod_text(parse(sameNodeAs=driver), ENVIRONMENT))["spec"]
    (place,) = tied["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert place["topologyKey"] == "kubernetes.io/hostname"
    assert place["labelSelector"] == {"matchLabels": driver}


def test_executors_keep_the_affinity_and_environment_of_the_template_beside_our_own() -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    mine = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}
    affinity = {"nodeAffinity": {"x": []}, "podAffinity": {required: [mine]}}
    source = {"configMapRef": {"name": "mine"}}
    job = parse(
        sameNodeAs={"odradek.io/group": "g"},
        storageSecret="s3",
        pod={"spec": {"affinity": affinity}, "container": {"envFrom": [source]}},
    )
    spec = json.loads(cluster_conf.executor_pod_text(job, ENVIRONMENT))["spec"]
    assert spec["affinity"]["nodeAffinity"] == {"x": []}
    assert spec["affinity"]["podAffinity"][required][0] == mine
    assert len(spec["affinity"]["podAffinity"][required]) == 2
    assert spec["containers"][0]["envFrom"] == [source, {"secretRef": {"name": "s3"}}]


def test_ui_is_off_unless_it_has_a_port_and_never_lets_anybody_kill() -> None:
    off = cluster_conf.spark_conf(parse(), ENVIRONMENT, None)
    on = cluster_conf.spark_conf(parse(uiPort=4040), ENVIRONMENT, None)
    names = ("spark.ui.enabled", "spark.ui.port", "spark.ui.killEnabled")
    assert [off[name] for name in names] == ["false", "0", "false"]
    assert [on[name] for name in names] == ["true", "4040", "false"]
    for name in names[1:]:
        job = json.loads(job_file())["job"] | {"sparkConf": {name: "true"}}
        with pytest.raises(config.JobConfigError, match=name):
            cluster_conf.spark_conf(parse(job=job), ENVIRONMENT, None)


@pytest.mark.parametrize(
    ("path", "folder"),
    [("/data/events", "file:///data/events"), ("s3a://b/events/", "s3a://b/events")],
)
def test_event_logs_roll(path: str, folder: str) -> None:
    job = json.loads(job_file())["job"] | {"eventLog": {"path": path}}
    conf = cluster_conf.spark_conf(parse(job=job), ENVIRONMENT, None)
    assert conf["spark.eventLog.dir"] == folder
    assert conf["spark.eventLog.rolling.enabled"] == "true"
    with pytest.raises(config.JobConfigError, match=r"job\.eventLog\.path"):
        parse(job={**job, "eventLog": {"path": "/etc/events"}})


@pytest.mark.parametrize(
    ("migration", "field"),
    [({"strategy": "KeepState"}, "requestId"), ({"requestId": "a", "strategy": "New"}, "strategy")],
)
def test_migration_names_a_request_and_a_strategy(migration: dict[str, str], field: str) -> None:
    job = json.loads(job_file())["job"] | {"migration": migration}
    with pytest.raises(config.JobConfigError, match=rf"job\.migration\.{field}"):
        parse(job=job)


def test_local_spark_needs_no_cluster_settings() -> None:
    local = config_loading.parse_environment({"ODRADEK_SPARK_MASTER": "local[2]"}, 1, 1)
    job = config_loading.parse_job(job_file(claimName=None, image=None), local)
    conf = cluster_conf.spark_conf(job, local, None)
    assert conf["spark.master"] == "local[2]"
    assert not [key for key in conf if "kubernetes" in key]
