"""Parses and validates the job file and the environment of a driver.

The operator writes one JSON file (its path is in ODRADEK_JOB) and a few environment variables.
ARCHITECTURE.md specifies both. They are read once, before a JVM or a connection exists, so that a
mistake in a ConsumerGroup costs one line on stderr and exit code 2 and changes nothing. Admission
checks the same, but tests and users on laptops write job files by hand.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

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

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TRIGGER = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h)")
_MEMORY = re.compile(r"([1-9][0-9]*)(Mi|Gi)")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_DELAY = re.compile(r"[0-9]+ (millisecond|second|minute|hour|day)s?")
_TRIGGER_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_OUTPUT_MODES = ("append", "update", "complete")
ZOOKEEPER, KAFKA, BOTH = "ZooKeeper", "Kafka", "Both"
_NAMED_STARTS = ("earliest", "latest", "group")


class JobConfigError(ValueError):
    """The job is invalid; the message is one line for the user."""


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
    """Rows go to `table` of the database at `url`."""

    url: str
    table: str
    driver: str | None = None


Sink = ParquetSink | ConsoleSink | TopicSink | JdbcSink


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
    """How records are parsed and transformed between topic and sink."""

    format: str = "json"
    schema: str | None = None
    sql: str | None = None
    python: str | None = None
    output_mode: str | None = None
    watermark: Watermark | None = None
    starting_offsets: str = "earliest"


@dataclass(frozen=True, slots=True)
class Job:
    """One consumer group's job. `trigger_ms` None means availableNow."""

    group: str
    bootstrap: str
    zookeeper: str
    offset_store: str
    topics: tuple[str, ...]
    topic_pattern: str | None
    metrics_port: int
    image: str | None
    claim_name: str | None
    service_account: str | None
    trigger_ms: int | None
    pipeline: Pipeline
    sink: Sink
    driver: Resources = field(default_factory=Resources)
    executors: Resources = field(default_factory=Resources)
    executor_instances: int = 1
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    priority_class: str | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """The pod or process in which the driver runs.

    `data` is the folder that driver and executors share. `master` overrides the Kubernetes master
    (local[N] on a laptop). `session_timeout_ms` is the requested ZooKeeper session timeout.
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

    @property
    def on_kubernetes(self) -> bool:
        """Whether executors are pods."""
        return self.master is None or self.master.startswith("k8s://")


def parse_environment(variables: Mapping[str, str], uid: int, gid: int) -> Environment:
    """Return the environment; the pod's identity is optional only without Kubernetes."""
    master = variables.get("ODRADEK_SPARK_MASTER") or None
    names = ("POD_NAME", "POD_NAMESPACE", "POD_IP", "POD_UID")
    missing = [name for name in names if not variables.get(name)]
    if missing and (master is None or master.startswith("k8s://")):
        raise JobConfigError(f"environment variables are missing: {', '.join(missing)}")
    timeout = variables.get("ODRADEK_SESSION_TIMEOUT_MS", "10000")
    if not timeout.isascii() or not timeout.isdigit() or not 1000 <= int(timeout) <= 300_000:
        raise JobConfigError(f"ODRADEK_SESSION_TIMEOUT_MS must be 1000 to 300000, not {timeout!r}")
    return Environment(
        pod_name=variables.get("POD_NAME", "driver"),
        pod_namespace=variables.get("POD_NAMESPACE", "default"),
        pod_ip=variables.get("POD_IP", "127.0.0.1"),
        pod_uid=variables.get("POD_UID", ""),
        uid=uid,
        gid=gid,
        master=master,
        data=variables.get("ODRADEK_DATA", "/data"),
        session_timeout_ms=int(timeout),
    )


def parse_job(text: str, environment: Environment) -> Job:
    """Return the job. Raises JobConfigError with one line that names the field."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JobConfigError(f"the job file is not JSON: {error}") from error
    root = _Section("", document)
    spec = root.section("job")
    executors = spec.section("executors", optional=True)
    topics = root.strings("topics")
    pattern = root.text("topicPattern", None)
    if bool(topics) == bool(pattern):
        raise JobConfigError("exactly one of topics and topicPattern must be given")
    for topic in topics:
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise JobConfigError(f"topics: {topic!r} is not a topic name")
    if pattern is not None:
        _check_pattern(pattern)
    store = root.text("offsetStore", ZOOKEEPER)
    if store not in (ZOOKEEPER, KAFKA, BOTH):
        raise JobConfigError(f"offsetStore {store!r} is not one of {ZOOKEEPER}, {KAFKA}, {BOTH}")
    claim = root.text("claimName", None)
    if environment.on_kubernetes and claim is None:
        raise JobConfigError(
            "job.volume is needed: driver and executors share the checkpoint on it"
        )
    return Job(
        group=root.matching("group", _TOPIC),
        bootstrap=root.text("bootstrap"),
        zookeeper=root.text("zookeeper").rstrip("/"),
        offset_store=store,
        topics=topics,
        topic_pattern=pattern,
        metrics_port=root.integer("metricsPort", 9405, low=0, high=65535),
        image=root.text("image") if environment.on_kubernetes else root.text("image", None),
        claim_name=claim,
        service_account=root.text("serviceAccount", None),
        trigger_ms=parse_trigger(spec.text("trigger", "10s")),
        pipeline=_parse_pipeline(spec),
        sink=_parse_sink(spec.section("sink"), environment),
        driver=_parse_resources(spec.section("driver", optional=True)),
        executors=_parse_resources(executors),
        executor_instances=executors.integer("instances", 1, low=1, high=1000),
        spark_conf=spec.string_map("sparkConf"),
        node_selector=spec.string_map("nodeSelector"),
        tolerations=spec.objects("tolerations"),
        priority_class=spec.text("priorityClassName", None),
    )


def parse_trigger(text: str) -> int | None:
    """Return the milliseconds between batches, or None for availableNow."""
    if text == "availableNow":
        return None
    match = _TRIGGER.fullmatch(text)
    if match is None:
        raise JobConfigError(
            f"job.trigger {text!r} is neither availableNow nor a duration such as 10s"
        )
    return int(match[1]) * _TRIGGER_UNIT_MS[match[2]]


def parse_timestamp_ms(text: str) -> int:
    """Return an RFC 3339 timestamp in milliseconds since the epoch; it must have a time zone."""
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError as error:
        raise JobConfigError(f"job.startingOffsets: {error}") from error
    if moment.tzinfo is None:
        raise JobConfigError(f"job.startingOffsets: {text} has no time zone")
    return int(moment.timestamp() * 1000)


def _check_pattern(pattern: str) -> None:
    # Old consumers of the group use java.util.regex, which hardly differs from Python's dialect.
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise JobConfigError(f"topicPattern {pattern!r}: {error}") from error


def _parse_pipeline(spec: "_Section") -> Pipeline:
    format_, schema = spec.text("format", "json"), spec.text("schema", None)
    if format_ == "avro":
        raise JobConfigError(
            "job.format avro needs spark-avro, which the Spark image does not hold"
        )
    if format_ not in ("json", "csv", "text"):
        raise JobConfigError(f"job.format {format_!r} is not one of json, csv, text")
    if format_ == "text" and schema is not None:
        raise JobConfigError("job.format text has no schema: its one column is value")
    if format_ == "csv" and schema is None:
        raise JobConfigError("job.format csv needs a schema")
    sql, python = spec.text("sql", None), spec.text("python", None)
    if sql is not None and python is not None:
        raise JobConfigError("job: give sql or python, not both")
    if python is not None and not _FUNCTION.fullmatch(python):
        raise JobConfigError(f"job.python {python!r} is not module:function")
    mode = spec.text("outputMode", None)
    if mode is not None and mode not in _OUTPUT_MODES:
        raise JobConfigError(f"job.outputMode {mode!r} is not one of {', '.join(_OUTPUT_MODES)}")
    start = spec.text("startingOffsets", "earliest")
    if start not in _NAMED_STARTS:
        parse_timestamp_ms(start)
    watermark = None
    if "watermark" in spec:
        section = spec.section("watermark")
        watermark = Watermark(section.text("column"), section.matching("delay", _DELAY))
    return Pipeline(format_, schema, sql, python, mode, watermark, start)


def _parse_sink(section: "_Section", environment: Environment) -> Sink:
    kinds = sorted(section)
    if len(kinds) != 1 or kinds[0] not in ("parquet", "console", "topic", "jdbc"):
        raise JobConfigError(
            f"job.sink must be one of parquet, console, topic, jdbc, not {', '.join(kinds) or '{}'}"
        )
    inner = section.section(kinds[0])
    match kinds[0]:
        case "parquet":
            return _parse_parquet(inner, environment)
        case "topic":
            return TopicSink(inner.matching("name", _TOPIC), inner.text("key", None))
        case "jdbc":
            url = inner.text("url")
            if not url.startswith("jdbc:"):
                raise JobConfigError(f"job.sink.jdbc.url {url!r} does not begin with jdbc:")
            return JdbcSink(url, inner.text("table"), inner.text("driver", None))
        case _:
            return ConsoleSink()


def _parse_parquet(section: "_Section", environment: Environment) -> ParquetSink:
    path = PurePosixPath(section.text("path"))
    data = PurePosixPath(environment.data)
    if ".." in path.parts or data not in path.parents:
        raise JobConfigError(
            f"job.sink.parquet.path {path} must be below {data}, which driver and executors share"
        )
    if data / "checkpoints" in (path, *path.parents):
        raise JobConfigError(f"job.sink.parquet.path {path} is in the folder of the checkpoints")
    return ParquetSink(str(path), section.strings("partitionBy"))


def _parse_resources(section: "_Section") -> Resources:
    memory = section.matching("memory", _MEMORY, "1Gi")
    number, unit = int(memory[:-2]), memory[-2:]
    size = number * MIB * (1024 if unit == "Gi" else 1)
    least = SMALLEST_HEAP + MEMORY_BESIDE_HEAP
    if size < least:
        raise JobConfigError(f"{section.path}.memory {memory} is below {least // MIB}Mi")
    return Resources(section.integer("cores", 1, low=1, high=256), size)


class _Section:
    """One JSON object, read field by field; an invalid field raises JobConfigError."""

    __slots__ = ("_values", "path")

    def __init__(self, path: str, values: object) -> None:
        if not isinstance(values, dict):
            raise JobConfigError(f"{path or 'the job file'} must be an object")
        self.path = path
        self._values: dict[str, Any] = {k: v for k, v in values.items() if v is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Any:
        return iter(self._values)

    def _at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def section(self, name: str, *, optional: bool = False) -> "_Section":
        if name not in self._values and not optional:
            raise JobConfigError(f"{self._at(name)} is missing")
        return _Section(self._at(name), self._values.get(name, {}))

    def text(self, name: str, default: str | None = "") -> Any:
        value = self._values.get(name, default)
        if value is None:
            return None
        if not isinstance(value, str):
            raise JobConfigError(f"{self._at(name)} must be a string, not {value!r}")
        if not value.strip():
            raise JobConfigError(f"{self._at(name)} is missing")
        return value

    def matching(self, name: str, pattern: re.Pattern[str], default: str = "") -> str:
        value = str(self.text(name, default))
        if not pattern.fullmatch(value):
            raise JobConfigError(f"{self._at(name)} {value!r} does not match {pattern.pattern}")
        return value

    def integer(self, name: str, default: int, *, low: int, high: int) -> int:
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise JobConfigError(
                f"{self._at(name)} must be an integer {low} to {high}, not {value!r}"
            )
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        value = self._values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise JobConfigError(f"{self._at(name)} must be a list of strings")
        return tuple(dict.fromkeys(value))

    def objects(self, name: str) -> tuple[dict[str, Any], ...]:
        value = self._values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise JobConfigError(f"{self._at(name)} must be a list of objects")
        return tuple(value)

    def string_map(self, name: str) -> dict[str, str]:
        value = self._values.get(name, {})
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise JobConfigError(f"{self._at(name)} must map strings to strings")
        return dict(value)
