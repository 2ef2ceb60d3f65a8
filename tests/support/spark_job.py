"""A job file, and the job that the driver parses from it."""

from __future__ import annotations

import json
from typing import Any

from odradek_spark import config, config_loading

ENVIRONMENT = config_loading.parse_environment({"ODRADEK_SPARK_MASTER": "local[2]"}, uid=1, gid=1)


def job_text(**job: Any) -> str:
    """Return the text of a job file that reads topic `t`."""
    document = {
        "group": "g",
        "bootstrap": "b:1",
        "zookeeper": "z:1",
        "topics": ["t"],
        "job": {"sql": "select 1", "sink": {"parquet": {"path": "/data/out"}}, **job},
    }
    return json.dumps(document)


def local_job(**job: Any) -> config.Job:
    """Return that job, without Kubernetes."""
    return config_loading.parse_job(job_text(**job), ENVIRONMENT)
