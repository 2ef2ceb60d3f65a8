"""A job as the driver has it once its file is read."""

from __future__ import annotations

import json
from typing import Any

from odradek_spark import config

ENVIRONMENT = config.parse_environment({"ODRADEK_SPARK_MASTER": "local[2]"}, uid=1, gid=1)


def local_job(**job: Any) -> config.Job:
    """Return a job that reads topic `t` without Kubernetes."""
    document = {
        "group": "g",
        "bootstrap": "b:1",
        "zookeeper": "z:1",
        "topics": ["t"],
        "job": {"sql": "select 1", "sink": {"parquet": {"path": "/data/out"}}, **job},
    }
    return config.parse_job(json.dumps(document), ENVIRONMENT)
