"""What the operator does with an event that is no reconciliation."""

from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from odradek_operator.loop.lease import Leases
from odradek_operator.runtime import OperatorSettings, Runtime
from odradek_operator.shared import metrics
from odradek_operator.shared.apply import Platform
from tests.reconcile.in_memory import resource
from tests.support.memory import MemoryKube


def test_only_who_acts_in_a_namespace_tells_that_data_is_retained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Another Runtime of this process would register the same series.
    monkeypatch.setattr(metrics, "REGISTRY", CollectorRegistry())
    monkeypatch.setattr(Leases, "acts_in", lambda _leases, namespace: namespace == "ours")
    kube, platform = MemoryKube(), Platform("spark:1", "IfNotPresent")
    settings = OperatorSettings("broker:1", platform, "ours", "me", health_port=0, metrics_port=0)
    runtime = Runtime(settings, cast(Any, kube))
    try:
        for namespace in ("theirs", "ours"):
            topic = resource("Topic", "t", namespace=namespace, clusterRef={"name": "c"})
            runtime.on_deleted({**topic, "status": {"incarnation": 77}})
            told = [one.reason for one in kube.told]
            assert told == (["TopicRetained"] if namespace == "ours" else [])
    finally:
        runtime.stop()
