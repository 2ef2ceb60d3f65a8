"""A job and the environment of its driver, as checked values; `config_loading` makes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from odradek_spark.broker_access import BrokerAccess

MIB = 1024 * 1024

# Spark needs 1.5 times its reserved 300 MiB as heap (UnifiedMemoryManager). Python, the JVM's own
# memory and Arrow need memory beside the heap, within the same pod limit.
MEMORY_BESIDE_HEAP = 384 * MIB
SMALLEST_HEAP = 460 * MIB

# Time limits in seconds. A commit survives a ZooKeeper outage of a minute (row 8).
COMMIT_DEADLINE_S = 180.0
REFRESH_INTERVAL_S = 5.0
STOP_GRACE_S = 15.0
INFERENCE_SAMPLE_RECORDS = 1000

ZOOKEEPER, KAFKA, BOTH = "ZooKeeper", "Kafka", "Both"


class JobConfigError(ValueError):
    """The job cannot run as it is written; the message is one line for the user.

    Raised for nothing that time may mend: the operator starts no such job again before its spec
    changes.
    """


@dataclass(frozen=True, slots=True)
class ParquetSink:
    """Rows go to Parquet files under `path`, in folders by the columns `partition_by`."""

    path: str
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsoleSink:
    """Rows go to the driver's log."""


@dataclass(frozen=True, slots=True)
class TopicSink:
    """Rows go as JSON to topic `name`, keyed by column `key` if it is given."""

    name: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class JdbcSink:
    """Rows go to `table` of the database at `url`.

    With `upsert_keys` a row replaces the one that has the same values in these columns.
    """

    url: str
    table: str
    driver: str | None = None
    upsert_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """Rows go to the Delta table at `path`, a URL.

    With `merge_keys` a row replaces the one with the same values in these columns. After every
    `optimize_every` batches small files are merged; 0 means never. With `merge_schema` columns that
    the table lacks are added.
    """

    path: str
    partition_by: tuple[str, ...] = ()
    merge_keys: tuple[str, ...] = ()
    optimize_every: int = 100
    merge_schema: bool = False


@dataclass(frozen=True, slots=True)
class IcebergSink:
    """Rows go to the Iceberg table in folder `path` of the volume; the rest as in a DeltaSink."""

    path: str
    partition_by: tuple[str, ...] = ()
    optimize_every: int = 100
    merge_schema: bool = False


Sink = ParquetSink | ConsoleSink | TopicSink | JdbcSink | DeltaSink | IcebergSink


@dataclass(frozen=True, slots=True)
class Watermark:
    """Records with a `column` more than `delay` behind the maximum seen are late."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one pod; `memory_bytes` is its limit and includes the heap."""

    cores: int = 1
    memory_bytes: int = 1024 * MIB

    @property
    def heap_mib(self) -> int:
        """Heap of the JVM in MiB."""
        return (self.memory_bytes - MEMORY_BESIDE_HEAP) // MIB


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How records are parsed and transformed between topic and sink.

    `registry` is the URL of the schema registry that Avro records refer to.
    """

    format: str = "json"
    schema: str | None = None
    sql: str | None = None
    python: str | None = None
    output_mode: str | None = None
    watermark: Watermark | None = None
    registry: str | None = None
    starting_offsets: str = "earliest"


@dataclass(frozen=True, slots=True)
class JobPod:
    """What the operator says of the executors' pods.

    `name` is the ConsumerGroup's. `auth_secret` is the Secret with the key by which driver and
    executors know each other. `limits` is the text without which admission refuses an executor.
    `additions` are the user's: labels, annotations, spec, volumes, container.
    """

    name: str
    auth_secret: str
    limits: str
    additions: Mapping[str, Any] = field(default_factory=dict)
    brokers_secret: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One consumer group's job. `trigger_ms` None means availableNow.

    `dynamic_allocation` is the least and the largest number of executors. `checkpoint` is a URL, or
    a path on the claim that driver and executors share. `brokers` is how both reach the brokers,
    and `storage_secret` has the environment with which they reach URLs. Executors go to the node of
    a pod with the labels `same_node_as`, if there are any. Spark's UI is at `ui_port`, if there is
    one. `event_log` is a URL, or a path on the claim. `definition` is what the query's state
    depends on (`odradek.stateful_query`), and `migration` the strategy that the request
    `migration_id` asks for.
    """

    group: str
    brokers: BrokerAccess
    zookeeper: str
    offset_store: str
    topics: tuple[str, ...]
    topic_pattern: str | None
    metrics_host: str
    metrics_port: int
    image: str | None
    claim_name: str | None
    service_account: str | None
    pod: "JobPod | None"
    trigger_ms: int | None
    pipeline: Pipeline
    sink: Sink
    checkpoint: str
    storage_secret: str | None = None
    same_node_as: Mapping[str, str] = field(default_factory=dict)
    driver: Resources = field(default_factory=Resources)
    executors: Resources = field(default_factory=Resources)
    executor_instances: int = 1
    dynamic_allocation: tuple[int, int] | None = None
    batch_timeout_s: int = 3600
    definition: Mapping[str, Any] = field(default_factory=dict)
    ui_port: int | None = None
    event_log: str | None = None
    migration: str | None = None
    migration_id: str | None = None
    zookeeper_files: str | None = None
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    priority_class: str | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """The pod or process in which the driver runs.

    `data` is the folder that driver and executors share. `master` overrides the Kubernetes master
    (local[N] on a laptop). `executors_file` has the number of executors that a running job follows,
    and need not exist. `session_timeout_ms` is the requested ZooKeeper session timeout.
    """

    pod_name: str
    pod_namespace: str
    pod_ip: str
    pod_uid: str
    uid: int
    gid: int
    master: str | None = None
    data: str = "/data"
    session_timeout_ms: int = 10_000
    executors_file: str | None = None

    @property
    def on_kubernetes(self) -> bool:
        """Whether executors are pods."""
        return self.master is None or self.master.startswith("k8s://")
