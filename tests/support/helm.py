"""Runs helm: renders the chart, or runs a command against a cluster."""

import functools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.cluster import settings
from tests.support import yaml_text

CHART = settings.REPO / "charts" / "odradek"
# The cluster's version for `helm template`; a helm built by `go install` has no default.
KUBE_VERSION = "1.34.4"
MONITORING = ("ServiceMonitor", "PodMonitor", "PrometheusRule")

Manifest = dict[str, Any]


class HelmError(AssertionError):
    """Helm failed; the message is its stderr."""


def binary() -> Path:
    """Return the helm that `make setup` built, or the one on PATH."""
    built = settings.paths().bin / "helm"
    found = built if built.exists() else shutil.which("helm")
    if found is None:
        raise HelmError("no helm: `make setup` builds it")
    return Path(found)


def run(*arguments: str, stdin: str | None = None, timeout_s: float = 60) -> str:
    """Return the stdout of `helm ARGUMENTS`. Raises HelmError."""
    ended = subprocess.run(
        [str(binary()), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if ended.returncode:
        raise HelmError(ended.stderr.strip() or f"helm exited {ended.returncode}")
    return ended.stdout


def template(
    values: Manifest | None = None,
    *,
    files: tuple[Path, ...] = (),
    namespace: str = "logs",
    monitoring: bool = False,
    chart: Path = CHART,
) -> list[Manifest]:
    """Return all objects of the release `odradek`, with hooks and without CRDs."""
    arguments = ["template", "odradek", str(chart), "--namespace", namespace]
    arguments += ["--kube-version", KUBE_VERSION]
    for file in files:
        arguments += ["--values", str(file)]
    if monitoring:
        for kind in MONITORING:
            arguments += ["--api-versions", f"monitoring.coreos.com/v1/{kind}"]
    if values:
        # JSON is YAML, and "-" reads it from standard input.
        arguments += ["--values", "-"]
    texts = tuple(file.read_text() for file in files)
    render = _rendered_once if chart == CHART else _rendered
    rendered = render(tuple(arguments), json.dumps(values or {}), texts)
    return [found for found in yaml_text.load_all(rendered) if found]


def _rendered(arguments: tuple[str, ...], values: str, texts: tuple[str, ...]) -> str:
    """Return what helm makes of this; `texts` are those of the files that the arguments name."""
    return run(*arguments, stdin=values)


# Many tests look at the same objects, and a rendering takes a tenth of a second of a processor.
_rendered_once = functools.cache(_rendered)
