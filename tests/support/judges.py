"""Asks GitOps tools for the health of a resource: Argo CD (engine and our Lua), Flux (kstatus).

Both are programs built from the tools' own Go modules (`tests/cluster/tools`).
"""

import json
import subprocess
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.cluster.settings import REPO
from tests.support import yaml_text
from tests.support.apiserver import require_programs


class Verdicts(NamedTuple):
    """The health of one resource by both tools, and Argo CD's message."""

    argo: str
    kstatus: str
    message: str


def judge(resources: Iterable[dict[str, Any]]) -> list[Verdicts]:
    """Return the verdicts on the resources; runs each tool's program once."""
    objects = list(resources)
    config = yaml_text.load((REPO / "examples/argocd/argocd-cm.yaml").read_text())["data"]
    argo = _run("argohealth", {"config": config, "objects": objects})
    flux = _run("kstatus", objects)
    return [
        Verdicts(one.get("status", ""), other["status"], one.get("message", ""))
        for one, other in zip(argo, flux, strict=True)
    ]


def _run(program: str, question: object) -> list[dict[str, str]]:
    binary = require_programs(program) / program
    ended = subprocess.run(
        [binary], input=json.dumps(question), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    answers: list[dict[str, str]] = json.loads(ended.stdout)
    return answers
