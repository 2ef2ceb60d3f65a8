"""The job of a ConsumerGroup as the API server admitted it, read into a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from odradek_operator.shared import cron, pod_template
from odradek_operator.shared.pod_template import PodAdditions

# Defaults of spec.job.timeouts, as in the CRD and in the driver (`odradek_spark.config_loading`).
START_SECONDS: Final = 300
BATCH_SECONDS: Final = 3600


class InvalidJobError(ValueError):
    """A job that cannot be executed; the message begins with the field below spec.job."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The Spark job of a ConsumerGroup: what the operator itself reads of it; `raw` is the rest.

    `executors` is the least number with which the job runs as asked for. `instances` is the number
    that a running job follows; None if Spark chooses it, or a property fixes it. Keys of the Secret
    `storage_secret` become environment of driver and executors. `ui`: Spark's UI has a Service.
    `brokers_secret`, of no spec, has what they need to connect to brokers that want more than that,
    `zookeeper_secret` what the driver needs to connect to ZooKeeper. `authority` counts the CAs of
    the brokers: clients of a job read whom they trust only when it starts.
    """

    cores: int
    memory_mib: int
    volume_size: str | None
    volume_class: str | None
    access_mode: str
    checkpoint_url: str | None
    storage_secret: str | None
    image: str | None
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]
    priority_class: str | None
    credentials_secret: str | None
    available_now: bool
    schedule: str | None
    suspend: bool
    executors: int
    instances: int | None
    start_seconds: int
    batch_seconds: int
    ui: bool
    additions: PodAdditions
    raw: Mapping[str, Any]
    brokers_secret: str | None = None
    zookeeper_secret: str | None = None
    authority: int = 0


def parse(job: Mapping[str, Any]) -> JobSpec:
    """Read spec.job. Raises InvalidJobError."""
    driver = job.get("driver", {})
    checkpoint = job.get("checkpoint", {})
    volume = job.get("volume") or checkpoint.get("claim", {})
    places = (checkpoint, job["sink"].get("delta", {}), job.get("eventLog", {}))
    timeouts = job.get("timeouts", {})
    return JobSpec(
        cores=driver.get("cores", 1),
        memory_mib=parse_memory_mib(driver.get("memory", "1Gi")),
        volume_size=volume.get("size"),
        volume_class=volume.get("storageClassName"),
        access_mode=volume.get("accessMode", "ReadWriteOnce"),
        checkpoint_url=checkpoint.get("url"),
        storage_secret=next(
            (one["secretRef"]["name"] for one in places if "secretRef" in one), None
        ),
        image=job.get("image"),
        node_selector=job.get("nodeSelector", {}),
        tolerations=tuple(job.get("tolerations", ())),
        priority_class=job.get("priorityClassName"),
        credentials_secret=_credentials(job["sink"].get("jdbc", {})),
        available_now=job.get("trigger") == "availableNow",
        schedule=_schedule(job),
        suspend=job.get("suspend", False),
        executors=_executors(job),
        instances=_instances(job),
        start_seconds=timeouts.get("startSeconds", START_SECONDS),
        batch_seconds=timeouts.get("batchSeconds", BATCH_SECONDS),
        ui=job.get("ui", {}).get("enabled", False),
        additions=_additions(job),
        raw=job,
    )


def _credentials(jdbc: Mapping[str, Any]) -> str | None:
    found: str | None = jdbc.get("secretRef", {}).get("name", jdbc.get("credentialsSecret"))
    return found


def _schedule(job: Mapping[str, Any]) -> str | None:
    text: str | None = job.get("schedule")
    if text is not None:
        try:
            cron.check(text)
        except ValueError as error:
            raise InvalidJobError(f"schedule: {error}") from None
    return text


def _additions(job: Mapping[str, Any]) -> PodAdditions:
    try:
        return pod_template.parse(job)
    except pod_template.TemplateError as error:
        raise InvalidJobError(str(error)) from None


def _executors(job: Mapping[str, Any]) -> int:
    """Return how many executors Spark asks for; properties in sparkConf count before the spec."""
    conf, executors = job.get("sparkConf", {}), job.get("executors", {})
    name, instances = _FIXED_EXECUTORS, str(executors.get("instances", 1))
    if _is_dynamic(job):
        least = executors.get("dynamicAllocation", {}).get("min", 0)
        name, instances = "spark.dynamicAllocation.minExecutors", str(least)
    text = conf.get(name, instances).strip()
    # Spark refuses what is no number.
    return int(text) if text.isascii() and text.isdigit() else 0


_FIXED_EXECUTORS: Final = "spark.executor.instances"


def _is_dynamic(job: Mapping[str, Any]) -> bool:
    default = str("dynamicAllocation" in job.get("executors", {}))
    text = job.get("sparkConf", {}).get("spark.dynamicAllocation.enabled", default)
    return bool(text.strip().lower() == "true")


def _instances(job: Mapping[str, Any]) -> int | None:
    if _is_dynamic(job) or _FIXED_EXECUTORS in job.get("sparkConf", {}):
        return None
    return int(job.get("executors", {}).get("instances", 1))


def parse_memory_mib(text: str) -> int:
    """Read 512Mi or 2Gi."""
    number, unit = int(text[:-2]), text[-2:]
    return number * 1024 if unit == "Gi" else number
