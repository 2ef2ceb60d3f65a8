"""A changed query whose state is another's: refused before the driver of the former one stops.

The job's ConfigMap has what its last driver was started with, and the status whether there is
state. While a change is refused, the job is what it was: its driver runs on, and is started again
if it fails. Only what the former query does not depend on counts at once: `suspend`, and the number
of executors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from odradek import stateful_query
from odradek_operator.group.group_spec import GroupSpec
from odradek_operator.shared import job_spec
from odradek_operator.shared.job_spec import InvalidJobError, JobSpec
from odradek_operator.shared.objects import Object

_JOB_FILE = "job.json"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job cannot become what its spec says, and what it stays."""

    message: str
    wanted: GroupSpec
    task: JobSpec


def judge(config_map: Object | None, text: str, wanted: GroupSpec, task: JobSpec) -> Refusal | None:
    """Return whether a job with state must not become the job file `text`; None: it may.

    `config_map` is that of its last driver, `wanted` and `task` are what the job file was made of.
    """
    before = _document(config_map)
    if before is None or (told := stateful_query.refusal(before, json.loads(text))) is None:
        return None
    try:
        former = job_spec.parse(_former(before["job"], task))
    except InvalidJobError:
        # An earlier operator took what this one does not. The driver decides.
        return None
    topics, pattern = tuple(before.get("topics") or ()), before.get("topicPattern")
    group = replace(wanted, topics=topics, topic_pattern=pattern, job=former)
    return Refusal(f"{told}; until then the job stays as it was", group, former)


def _document(config_map: Object | None) -> dict[str, Any] | None:
    text = (config_map or {}).get("data", {}).get(_JOB_FILE)
    return None if text is None else dict(json.loads(text))


def _former(before: Mapping[str, Any], task: JobSpec) -> dict[str, Any]:
    former = {**before, "suspend": task.suspend}
    if task.instances is not None and "executors" in former:
        former["executors"] = {**former["executors"], "instances": task.instances}
    return former
