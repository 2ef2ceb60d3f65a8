"""The reference of metrics: each series that a program declares, with type, labels and help."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.docs.literals import Scope, functions, texts
from tests.docs.markdown import cell, code, table
from tests.layout.sources import ROOT

PROGRAMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "Broker": (
        "9404",
        tuple(
            f"broker_image/src/odradek/metrics/{module}.py"
            for module in (
                "broker_metrics",
                "counters",
                "replica_series",
                "coordinator_series",
                "connection_series",
            )
        ),
    ),
    "Lag exporter": ("9308", ("operator/src/odradek_operator/exporter/page.py",)),
    "Operator": (
        "9406",
        (
            "operator/src/odradek_operator/shared/metrics.py",
            "operator/src/odradek_operator/loop/resource_states.py",
        ),
    ),
    "Spark driver": ("9405", ("operator/spark_job/src/odradek_spark/endpoint.py",)),
}
_TYPES = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram"}


@dataclass(frozen=True, slots=True)
class Series:
    """One declared metric; `name` is what Prometheus shows, without suffixes of histograms."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def declared(program: str) -> dict[str, Series]:
    """Return the series of a program by name, in order of declaration."""
    _, files = PROGRAMS[program]
    found = (one for file in files for one in _of_file(ROOT / file))
    return {one.name: one for one in found}


def page() -> str:
    """Return the page."""
    parts = [
        "# Metrics\n\nEvery series that the programs declare. [Monitoring](../monitoring.md) says "
        "how to scrape them, and [lag](../lag.md) what lag means. A counter that is 0 since the "
        "start may be absent. This page is made from the declarations.\n"
    ]
    for program, (port, _) in PROGRAMS.items():
        rows = [
            (code(one.name), one.kind, ", ".join(map(code, one.labels)), cell(one.text))
            for one in declared(program).values()
        ]
        parts.append(f"## {program}\n\nPort {port}.\n")
        parts.append(table(("series", "type", "labels", "help"), rows))
    return "\n".join(parts)


def _of_file(path: Path) -> Iterator[Series]:
    for function, scope in functions(path):
        lists = _rows_of_loops(function, scope)
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                yield from _of_call(node, scope, lists)


def _of_call(
    call: ast.Call, scope: Scope, loops: Mapping[str, list[ast.Tuple]]
) -> Iterator[Series]:
    made = ast.unparse(call.func).removesuffix("MetricFamily")
    if made == "_head":
        yield from _of_page(call, scope, loops)
    if made not in _TYPES or len(call.args) < 2:
        return
    for name, text, row in _names(call, scope, loops):
        labels = next((one.value for one in call.keywords if one.arg in ("labels",)), None)
        if labels is None and len(call.args) > 2:
            labels = call.args[2]
        shown = f"{name}_total" if made == "Counter" else name
        yield Series(shown, _TYPES[made], _labels(labels, scope, row), text)


def _names(
    call: ast.Call, scope: Scope, loops: Mapping[str, list[ast.Tuple]]
) -> Iterator[tuple[str, str, ast.Tuple | None]]:
    """Yield (name, help, row of the loop) of each metric that a call makes."""
    first, second = call.args[:2]
    if isinstance(first, ast.Name) and first.id in loops:
        for row in loops[first.id]:
            name, text = (texts(one, scope)[0] for one in row.elts[:2])
            yield name, text, row
    else:
        for name in texts(first, scope):
            yield name, (texts(second, scope) or [""])[0], None


def _rows_of_loops(function: ast.AST, scope: Scope) -> dict[str, list[ast.Tuple]]:
    """Return, by the first name of each loop over tuples, these tuples."""
    found: dict[str, list[ast.Tuple]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple):
            over = [node.iter]
            if isinstance(node.iter, ast.Name):
                over = scope.get(node.iter.id, [])
            rows = [row for one in over if isinstance(one, ast.Tuple) for row in one.elts]
            first = node.target.elts[0]
            texted = [row for row in rows if isinstance(row, ast.Tuple) and texts(row.elts[0], {})]
            if isinstance(first, ast.Name) and texted:
                found.setdefault(first.id, []).extend(texted)
    return found


def _labels(node: ast.expr | None, scope: Scope, row: ast.Tuple | None) -> tuple[str, ...]:
    match node:
        case None:
            return ()
        case ast.Name(id="labels" | "place" | "of_group" as name):
            return next((_labels(one, scope, row) for one in scope[name] if _is_list(one)), ())
        case ast.Starred(value=inner):
            return _labels(inner, scope, row)
        case ast.List(elts=parts):
            return tuple(label for part in parts for label in _label(part, scope, row))
    # Identity of the broker: what `server` tells.
    return ("broker_id", "cluster_id", "version") if ast.unparse(node) == "list(self._info)" else ()


def _label(node: ast.expr, scope: Scope, row: ast.Tuple | None) -> tuple[str, ...]:
    if isinstance(node, ast.Name) and row is not None:
        return tuple(texts(row.elts[2], scope))
    return _labels(node, scope, row) or tuple(texts(node, scope))


def _is_list(node: ast.expr) -> bool:
    return isinstance(node, ast.List)


# The exporter writes its page as text: the labels of a series are what follows its name.
_EXPORTED_LABELS: Mapping[str, tuple[str, ...]] = {
    "kafka_consumergroup_members": ("consumergroup",),
    "odradek_consumergroup_verdict": ("consumergroup", "verdict"),
    "odradek_consumergroup_lag_read_timestamp_seconds": ("consumergroup",),
    "kafka_topic_partitions": ("topic",),
    "kafka_topic_partition_current_offset": ("topic", "partition"),
    "kafka_topic_partition_oldest_offset": ("topic", "partition"),
    "kafka_consumergroup_lag_sum": ("consumergroup", "topic"),
    "kafka_consumergroup_current_offset_sum": ("consumergroup", "topic"),
    "odradek_consumergroup_partitions_without_commit": ("consumergroup", "topic"),
    "odradek_exporter_groups": (),
    "odradek_exporter_round_seconds": (),
    "odradek_exporter_round_failures_total": ("kind",),
}
_OF_PARTITIONS = ("consumergroup", "topic", "partition")


def _of_page(
    call: ast.Call, scope: Scope, loops: Mapping[str, list[ast.Tuple]]
) -> Iterator[Series]:
    kind = (texts(call.args[2], scope) or ["gauge"])[0] if len(call.args) > 2 else "gauge"
    for name, text, _ in _names(call, scope, loops):
        yield Series(name, kind, _EXPORTED_LABELS.get(name, _OF_PARTITIONS), text)
