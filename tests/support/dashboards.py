"""The dashboards of the chart, and the queries of their panels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.support import helm

# What Grafana puts in place of its variables.
_VARIABLE = re.compile(r"\$(\w+)")
_INTERVALS = {"__rate_interval": "30s"}
# The dashboards' own variables, each for any value.
_ANY = ("namespace", "cluster", "topic", "group", "zookeeper")


def dashboards() -> dict[str, dict[str, Any]]:
    """Return the dashboards by name, as the chart renders them."""
    found = {}
    for one in helm.template():
        if one["kind"] == "ConfigMap" and "grafana_dashboard" in one["metadata"]["labels"]:
            ((name, text),) = one["data"].items()
            found[name.removeprefix("odradek-").removesuffix(".json")] = json.loads(text)
    return found


def queries(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (panel, expression)."""
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def concrete(expression: str) -> str:
    """Return an expression with values in place of its variables."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        assert name in _INTERVALS or name in _ANY, f"unknown variable ${name} in {expression}"
        return _INTERVALS.get(name, ".*")

    return _VARIABLE.sub(value, expression)
