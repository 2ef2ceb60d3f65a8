"""A ConsumerGroup as the API server admitted it, read into a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from odradek_operator.shared import job_spec
from odradek_operator.shared.job_spec import JobSpec
from odradek_operator.shared.spec import Body, InvalidSpec, shown
from odradek_operator.shared.topic_patterns import compile_pattern

# Reason of a job that cannot run as it is written.
INVALID_JOB: Final = "InvalidJob"


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A ConsumerGroup as wanted. `cluster` is the name, with the namespace if that is another.

    `deletion_policy` None: offsets stay, as with Retain, but the user of a job must be removed.
    """

    cluster: str
    group: str
    topics: tuple[str, ...]
    topic_pattern: str | None
    offset_store: str
    job: JobSpec | None
    max_lag: int | None
    max_lag_seconds: int | None
    deletion_policy: str | None
    reset: Mapping[str, Any] | None


def parse_group(body: Body) -> GroupSpec:
    """Read a ConsumerGroup, raising InvalidSpec for a bad pattern or job."""
    spec = body["spec"]
    pattern = spec.get("topicPattern")
    if pattern is not None:
        compile_pattern(pattern)
        if "job" in spec and "," in pattern:
            # Members find it in the znode of the driver, and a comma means "or" there.
            raise InvalidSpec(
                "InvalidTopicPattern",
                "topicPattern of a job cannot hold a comma: write a|b for either of two names, "
                "and x(x|xx)? for x{1,3}",
            )
    slo = spec.get("slo", {})
    return GroupSpec(
        cluster=shown(body["metadata"].get("namespace", ""), body["spec"]["clusterRef"]),
        group=spec.get("group", body["metadata"]["name"]),
        topics=tuple(spec.get("topics", ())),
        topic_pattern=pattern,
        offset_store=spec.get("offsetStore", "ZooKeeper"),
        job=_parse_job(spec["job"]) if "job" in spec else None,
        max_lag=slo.get("maxLag"),
        max_lag_seconds=slo.get("maxLagSeconds"),
        deletion_policy=spec.get("deletionPolicy"),
        reset=dict(spec["reset"]) if "reset" in spec else None,
    )


def _parse_job(job: Mapping[str, Any]) -> JobSpec:
    try:
        return job_spec.parse(job)
    except job_spec.InvalidJobError as error:
        raise InvalidSpec(INVALID_JOB, f"spec.job.{error}") from None
