"""Every Prometheus series of the operator, declared once."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY: Final = CollectorRegistry()

RECONCILE_SECONDS: Final = Histogram(
    "odradek_operator_reconcile_seconds",
    "Time of one reconciliation of one resource.",
    ["kind"],
    registry=REGISTRY,
    buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0),
)
ERRORS: Final = Counter(
    "odradek_operator_reconcile_errors",
    "Reconciliations that ended in an error and are tried again.",
    ["kind"],
    registry=REGISTRY,
)
LAST_SUCCESS: Final = Gauge(
    "odradek_operator_last_success_timestamp_seconds",
    "When a resource of this kind was last reconciled without an error.",
    ["kind"],
    registry=REGISTRY,
)
WRITES: Final = Counter(
    "odradek_operator_writes",
    "Write calls.",
    ["target"],
    registry=REGISTRY,
)
QUEUED: Final = Gauge(
    "odradek_operator_queued_resources",
    "Resources that are due and wait for their turn.",
    ["namespace", "cluster"],
    registry=REGISTRY,
)
SESSION_AGE: Final = Gauge(
    "odradek_operator_zookeeper_session_age_seconds",
    "Age of the ZooKeeper session; 0 without one.",
    ["connect"],
    registry=REGISTRY,
)
LEADER: Final = Gauge(
    "odradek_operator_leader",
    "1 while this process holds the Lease and acts.",
    registry=REGISTRY,
)
