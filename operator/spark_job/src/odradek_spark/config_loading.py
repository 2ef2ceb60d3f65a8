"""Parses and validates the job file and the environment of a driver.

The operator writes one JSON file (its path is in ODRADEK_JOB) and a few environment variables.
ARCHITECTURE.md specifies both. They are read once, before a JVM or a connection exists, so that a
mistake in a ConsumerGroup costs one line on stderr and exit code 2 and changes nothing. Admission
checks the same, but tests and users on laptops write job files by hand.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from odradek import stateful_query
from odradek_spark import broker_access
from odradek_spark.broker_access import BrokerAccess, ClientConfigError
from odradek_spark.config import (
    BOTH,
    KAFKA,
    MEMORY_BESIDE_HEAP,
    MIB,
    SMALLEST_HEAP,
    ZOOKEEPER,
    ConsoleSink,
    DeltaSink,
    Environment,
    IcebergSink,
    JdbcSink,
    Job,
    JobConfigError,
    JobPod,
    ParquetSink,
    Pipeline,
    Resources,
    Sink,
    TopicSink,
    Watermark,
)
from odradek_spark.errors import JobError

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TRIGGER = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h)")
_MEMORY = re.compile(r"([1-9][0-9]*)(Mi|Gi)")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_DELAY = re.compile(r"[0-9]+ (millisecond|second|minute|hour|day)s?")
_TRIGGER_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_FORMATS = ("json", "csv", "avro", "text", "raw")
_SINKS = ("parquet", "delta", "iceberg", "jdbc", "topic", "console")
_URL = re.compile(r"(s3a|gs|abfs|abfss)://[^/\s]+(/+[^/\s]+)+/*")
_REGISTRY = re.compile(r"https?://[^/\s?#@]+(/[^\s?#]*)?")
_OUTPUT_MODES = ("append", "update", "complete")
_NAMED_STARTS = ("earliest", "latest", "group")


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
        executors_file=variables.get("ODRADEK_EXECUTORS"),
    )


def parse_job(text: str, environment: Environment) -> Job:
    """Return the job. Raises JobConfigError with one line that names the field, or JobError."""
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
    group = root.matching("group", _TOPIC)
    if group in (".", ".."):
        raise JobConfigError(f"group {group!r} is not a group's name")
    sink = _parse_sink(spec.section("sink"), environment)
    checkpoint = _parse_checkpoint(root, group, environment)
    event_log = None
    if "eventLog" in spec:
        event_log = _storage_url(spec.section("eventLog"), "path", environment)
    shared = checkpoint.startswith("/") or _is_on_claim(sink) or (event_log or "").startswith("/")
    if environment.on_kubernetes and claim is None and shared:
        raise JobConfigError(
            "job.volume is needed: the checkpoint, the sink or the event log is on it"
        )
    return Job(
        group=group,
        brokers=_parse_brokers(root),
        zookeeper=root.text("zookeeper").rstrip("/"),
        offset_store=store,
        topics=topics,
        topic_pattern=pattern,
        metrics_host=root.text("metricsHost", None) or "",
        metrics_port=root.integer("metricsPort", 9405, low=0, high=65535),
        image=root.text("image") if environment.on_kubernetes else root.text("image", None),
        claim_name=claim,
        service_account=root.text("serviceAccount", None),
        pod=_parse_pod(root) if environment.on_kubernetes else None,
        trigger_ms=parse_trigger(spec.text("trigger", "10s")),
        pipeline=_parse_pipeline(spec),
        sink=sink,
        checkpoint=checkpoint,
        storage_secret=root.text("storageSecret", None),
        same_node_as=root.string_map("sameNodeAs"),
        driver=_parse_resources(spec.section("driver", optional=True)),
        executors=_parse_resources(executors),
        executor_instances=executors.integer("instances", 1, low=1, high=1000),
        dynamic_allocation=_parse_dynamic(executors),
        batch_timeout_s=spec.section("timeouts", optional=True).integer(
            "batchSeconds", 3600, low=60, high=604_800
        ),
        spark_conf=spec.string_map("sparkConf"),
        node_selector=spec.string_map("nodeSelector"),
        tolerations=spec.objects("tolerations"),
        priority_class=spec.text("priorityClassName", None),
        ui_port=root.integer("uiPort", 0, low=0, high=65535) or None,
        event_log=event_log,
        definition=stateful_query.definition(document),
        migration=_parse_migration(spec),
        migration_id=spec.section("migration", optional=True).text("requestId", None),
        zookeeper_files=root.text("zookeeperFiles", None),
    )


def _parse_brokers(root: "_Section") -> BrokerAccess:
    bootstrap, path = root.text("bootstrap"), root.text("clientConfig", None)
    if path is None:
        return BrokerAccess(bootstrap)
    try:
        access, _ = broker_access.read(bootstrap, Path(path))
    except ClientConfigError as error:
        # The file is a Secret's, which the operator mends.
        raise JobError(f"clientConfig: {error}") from error
    return access


def _parse_migration(spec: "_Section") -> str | None:
    if "migration" not in spec:
        return None
    section = spec.section("migration")
    section.text("requestId")
    strategy: str = section.text("strategy")
    known = (stateful_query.NEW_CHECKPOINT, stateful_query.KEEP_STATE)
    if strategy not in known:
        raise JobConfigError(
            f"job.migration.strategy {strategy!r} is not one of {', '.join(known)}"
        )
    return strategy


def _parse_dynamic(executors: "_Section") -> tuple[int, int] | None:
    if "dynamicAllocation" not in executors:
        return None
    section = executors.section("dynamicAllocation")
    largest = section.integer("max", 1, low=1, high=1000)
    return section.integer("min", 0, low=0, high=largest), largest


def _parse_pod(root: "_Section") -> JobPod:
    additions = root.section("pod", optional=True)
    return JobPod(
        name=root.text("name"),
        auth_secret=root.text("authSecret"),
        limits=root.text("limits"),
        brokers_secret=root.text("brokersSecret", None),
        additions={name: additions.value(name) for name in additions},
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
    """Return an RFC 3339 timestamp in milliseconds since the epoch; it must have a time zone.

    Negative ones would mean the end of a log, or its beginning.
    """
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError as error:
        raise JobConfigError(f"job.startingOffsets: {error}") from error
    if moment.tzinfo is None:
        raise JobConfigError(f"job.startingOffsets: {text} has no time zone")
    if moment < _EPOCH:
        raise JobConfigError(f"job.startingOffsets: {text} is before 1970; write earliest")
    return int(moment.timestamp() * 1000)


def _check_pattern(pattern: str) -> None:
    # Old consumers of the group use java.util.regex, which hardly differs from Python's dialect.
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise JobConfigError(f"topicPattern {pattern!r}: {error}") from error


def _parse_pipeline(spec: "_Section") -> Pipeline:
    format_, schema = spec.text("format", "json"), spec.text("schema", None)
    if format_ not in _FORMATS:
        raise JobConfigError(f"job.format {format_!r} is not one of {', '.join(_FORMATS)}")
    if format_ in ("text", "raw") and schema is not None:
        raise JobConfigError(f"job.format {format_} has no schema: its columns are given")
    registry = _parse_registry(spec, format_)
    if format_ in ("csv", "avro") and schema is None and registry is None:
        raise JobConfigError(f"job.format {format_} needs a schema")
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
    return Pipeline(format_, schema, sql, python, mode, watermark, registry, start)


def _parse_registry(spec: "_Section", format_: str) -> str | None:
    if "schemaRegistry" not in spec:
        return None
    if format_ != "avro":
        raise JobConfigError("job.schemaRegistry goes with format avro")
    return spec.section("schemaRegistry").matching("url", _REGISTRY).rstrip("/")


def _parse_sink(section: "_Section", environment: Environment) -> Sink:
    kinds = sorted(section)
    if len(kinds) != 1 or kinds[0] not in _SINKS:
        raise JobConfigError(
            f"job.sink must be one of {', '.join(_SINKS)}, not {', '.join(kinds) or '{}'}"
        )
    inner = section.section(kinds[0])
    match kinds[0]:
        case "parquet":
            return _parse_parquet(inner, environment)
        case "delta":
            return DeltaSink(
                _storage_url(inner, "path", environment),
                inner.strings("partitionBy"),
                inner.strings("mergeKeys"),
                inner.integer("optimizeEvery", 100, low=0, high=1_000_000),
                inner.flag("mergeSchema"),
            )
        case "iceberg":
            return _parse_iceberg(inner, environment)
        case "topic":
            return TopicSink(inner.matching("name", _TOPIC), inner.text("key", None))
        case "jdbc":
            return _parse_jdbc(inner)
        case _:
            return ConsoleSink()


def _parse_parquet(section: "_Section", environment: Environment) -> ParquetSink:
    if not section.text("path").startswith("/"):
        raise JobConfigError(
            f"job.sink.parquet.path {section.text('path')} must be a path on the volume: "
            "elsewhere a batch has no rename that makes it visible as a whole; use the sink delta"
        )
    path = _path_on_claim(section, "path", environment)
    return ParquetSink(path, section.strings("partitionBy"))


def _parse_iceberg(section: "_Section", environment: Environment) -> IcebergSink:
    if not section.text("path").startswith("/"):
        raise JobConfigError(
            f"job.sink.iceberg.path {section.text('path')} must be a path on the volume: in a "
            "store nothing keeps a driver from replacing what another one has committed; use the "
            "sink delta"
        )
    return IcebergSink(
        _path_on_claim(section, "path", environment),
        section.strings("partitionBy"),
        section.integer("optimizeEvery", 100, low=0, high=1_000_000),
        section.flag("mergeSchema"),
    )


def _parse_checkpoint(root: "_Section", group: str, environment: Environment) -> str:
    if "checkpointUrl" not in root:
        return str(PurePosixPath(environment.data) / "checkpoints" / group)
    return _storage_url(root, "checkpointUrl", environment)


def _is_on_claim(sink: Sink) -> bool:
    return isinstance(sink, ParquetSink | DeltaSink | IcebergSink) and sink.path.startswith("/")


def _storage_url(section: "_Section", name: str, environment: Environment) -> str:
    """Return a URL without a slash at its end, or an absolute path on the claim."""
    text = str(section.text(name))
    if text.startswith("/"):
        return _path_on_claim(section, name, environment)
    match = _URL.fullmatch(text)
    if match is None:
        advice = "; write s3a:// for s3://" if text.startswith("s3://") else ""
        raise JobConfigError(
            f"{section.path}.{name} {text!r} is neither a path on the volume nor a URL of "
            f"s3a, gs, abfs or abfss with a bucket and a path{advice}".lstrip(".")
        )
    return text.rstrip("/")


def _path_on_claim(section: "_Section", name: str, environment: Environment) -> str:
    path = PurePosixPath(section.text(name))
    data = PurePosixPath(environment.data)
    where = f"{section.path}.{name}"
    if ".." in path.parts or data not in path.parents:
        raise JobConfigError(
            f"{where} {path} must be below {data}, which driver and executors share"
        )
    if data / "checkpoints" in (path, *path.parents):
        raise JobConfigError(f"{where} {path} is in the folder of the checkpoints")
    return str(path)


def _parse_jdbc(section: "_Section") -> JdbcSink:
    url, keys = section.text("url"), section.strings("upsertKeys")
    if not url.startswith("jdbc:"):
        raise JobConfigError(f"job.sink.jdbc.url {url!r} does not begin with jdbc:")
    if keys and not url.startswith("jdbc:postgresql:"):
        raise JobConfigError("job.sink.jdbc.upsertKeys needs PostgreSQL (jdbc:postgresql:)")
    return JdbcSink(url, section.text("table"), section.text("driver", None), keys)


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

    def value(self, name: str) -> Any:
        """Return a field as it is, for the API server to judge."""
        return self._values[name]

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

    def flag(self, name: str) -> bool:
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise JobConfigError(f"{self._at(name)} must be true or false, not {value!r}")
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
