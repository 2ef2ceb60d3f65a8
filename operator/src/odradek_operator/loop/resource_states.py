"""What resources' conditions say, for /metrics.

The values come from the known statuses at scrape time: statuses outlive this process, and deleted
resources have no series. Only the operator that acts in a namespace exports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from odradek_operator.shared import spec, status
from odradek_operator.shared.spec import Body
from odradek_operator.shared.store import KIND_ORDER, ResourceStore


class ResourceStates(Collector):
    """Series of the resources in a store, in the namespaces that this process `acts_in`."""

    def __init__(self, store: ResourceStore, acts_in: Callable[[str], bool]) -> None:
        self._store = store
        self._acts_in = acts_in

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the series as they are now."""
        ready = GaugeMetricFamily(
            "odradek_resource_ready",
            "1 if the resource is ready, 0 if not; absent while it is paused or reassigning.",
            labels=["kind", "namespace", "name"],
        )
        stalled = GaugeMetricFamily(
            "odradek_resource_stalled",
            "1 if the resource is stalled, 0 if not; absent while it is paused or reassigning.",
            labels=["kind", "namespace", "name"],
        )
        place = ["namespace", "cluster"]
        resting = GaugeMetricFamily(
            "odradek_consumergroup_resting",
            "1 for a group whose job does not run on purpose: it is suspended, waits for its "
            "schedule, or has run once. Others have no series.",
            labels=[*place, "consumergroup"],
        )
        wanted = GaugeMetricFamily(
            "odradek_cluster_brokers_wanted", "Desired brokers per cluster.", labels=place
        )
        registered = GaugeMetricFamily(
            "odradek_cluster_brokers_registered",
            "Registered brokers per cluster; absent while ZooKeeper does not answer.",
            labels=place,
        )
        ends = GaugeMetricFamily(
            "odradek_cluster_authority_not_after_timestamp_seconds",
            "When the newest CA of a cluster ends, in seconds since 1970.",
            labels=[*place, "authority"],
        )
        bodies = [body for kind in KIND_ORDER for body in self._store.select(kind)]
        acting = {one: self._acts_in(one) for one in {_namespace(body) for body in bodies}}
        for body in bodies:
            namespace, name = _namespace(body), body["metadata"]["name"]
            if not acting[namespace]:
                continue
            if not _is_at_rest(body):
                for family, condition in ((ready, "Ready"), (stalled, "Stalled")):
                    family.add_metric([body["kind"], namespace, name], _holds(body, condition))
            if body["kind"] == "ConsumerGroup" and _rests_on_purpose(body):
                group = body["spec"].get("group", name)
                resting.add_metric([*spec.cluster_of(body), group], 1)
            if body["kind"] == "KafkaCluster":
                wanted.add_metric([namespace, name], body["spec"]["brokers"]["replicas"])
                count = body.get("status", {}).get("replicas")
                if count is not None:
                    registered.add_metric([namespace, name], count)
                for one in body.get("status", {}).get("authorities") or ():
                    when = spec.parse_time(one["notAfter"]).timestamp()
                    ends.add_metric([namespace, name, one["name"]], when)
        return ready, stalled, resting, wanted, registered, ends


def _namespace(body: Body) -> str:
    return str(body["metadata"]["namespace"])


def _is_at_rest(body: Body) -> bool:
    """Return whether a resource is paused, or waits for a move of data or for an approval.

    Moves take as long as they take. Whether they end well is told at their end.
    """
    if body["kind"] == "Reassignment":
        return _holds(body, "Reconciling")
    ready = status.condition_of(body.get("status", {}), "Ready")
    moving = ready is not None and ready["reason"] == "Reassigning"
    return moving or _holds(body, "Paused")


def _rests_on_purpose(body: Body) -> bool:
    # Not the spec: another resource may own the group.
    ready = status.condition_of(body.get("status", {}), "Ready")
    return ready is not None and ready["reason"] in ("Suspended", "Scheduled", "Completed")


def _holds(body: Body, kind: str) -> bool:
    condition = status.condition_of(body.get("status", {}), kind)
    return condition is not None and condition["status"] == "True"
