"""How a cluster comes to have more brokers, or fewer, on each node. Pure.

Pods that let nobody else onto their node come first: they are restarted with a template that does,
and only then the next StatefulSet gets its brokers. The way back begins with that set: it stays
until its brokers hold nothing, and only then the others are restarted with the former template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from odradek.values import BrokerId
from odradek.zk.znodes import BrokerRegistration
from odradek_operator.cluster.objects import SET_LABEL, SETS
from odradek_operator.cluster.rollout import ClusterView
from odradek_operator.shared.broker_sets import SET_SIZE, BrokerSets, broker_id_of, set_name
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.spec import InvalidSpec, ResourceMeta

# StatefulSets as they are, by number.
LiveSets = Sequence[Mapping[str, Any] | None]


def sets_so_far(first: Mapping[str, Any] | None) -> int:
    """Return how many StatefulSets a cluster has, as its first one says."""
    text = first["metadata"].get("annotations", {}).get(SETS, "") if first else ""
    return int(text) if text in {str(number) for number in range(2, 11)} else 1


def present(live_sets: LiveSets) -> BrokerSets | None:
    """Return the brokers that the StatefulSets have; None where there is none."""
    if not any(live_sets):
        return None
    counts = [one["spec"]["replicas"] if one else 0 for one in live_sets]
    while len(counts) > 1 and not counts[-1] and not _has_pods(live_sets[len(counts) - 1]):
        counts.pop()
    return BrokerSets(tuple(counts))


def _has_pods(live: Mapping[str, Any] | None) -> bool:
    """Return whether a set has pods, or may be about to have some."""
    if live is None:
        return False
    return revision(live) is None or bool(live["status"].get("replicas"))


def taken(
    meta: ResourceMeta, wanted: BrokerSets, registered: Mapping[BrokerId, BrokerRegistration]
) -> tuple[int, ...]:
    """Return the brokers of a cluster without pods that were registered before it was made.

    They are those of somebody else, or of a former KafkaCluster whose sessions have not ended yet.
    """
    made_ms = meta.created.timestamp() * 1000
    return tuple(
        one
        for one, found in sorted(registered.items())
        if one in wanted and 0 < found.timestamp_ms < made_ms
    )


def check_sets(allowed: BrokerSets, current: BrokerSets | None) -> None:
    """Raise InvalidSpec where two sets would have brokers with the same ids."""
    first = max(allowed.counts[0], current.counts[0] if current else 0)
    if allowed.share_nodes and first > SET_SIZE:
        raise InvalidSpec(
            "TooManyBrokers",
            f"with spec.brokers.perNode, brokers {SET_SIZE} and above are on nodes of others, but "
            f"{first} brokers have, or would have, nodes of their own: scale down to {SET_SIZE} "
            "brokers with perNode 1 first",
        )


def check_ports(
    meta: ResourceMeta,
    spec: ClusterSpec,
    live_sets: LiveSets,
    pods: Sequence[Mapping[str, Any]],
) -> None:
    """Raise InvalidSpec where brokers of one set would wait for ports of another on their nodes.

    They would wait until those are restarted or gone, which may itself wait for them.
    """
    started = [number for number, one in enumerate(live_sets) if _has_brokers(one)]
    wanted = {number: {one + number for one in spec.first_ports} for number in started}
    taken = {number: set(wanted[number]) for number in started}
    for number in started:
        live = live_sets[number]
        assert live is not None
        taken[number] |= _ports(live["spec"]["template"])
    for pod in pods:
        broker_id = broker_id_of(meta.name, pod["metadata"]["name"])
        if broker_id is not None and (number := broker_id // SET_SIZE) in taken:
            taken[number] |= _ports(pod)
    for one, other in permutations(started, 2):
        for port in sorted(wanted[one] & taken[other]):
            raise InvalidSpec(
                "PortsTaken",
                f"port {port}, which brokers of {set_name(meta.name, one)} are to have, is or will "
                f"be one of {set_name(meta.name, other)} on the same nodes: choose ports that none "
                f"of them has, with at least {len(started)} from one to the next",
            )


def _has_brokers(live: Mapping[str, Any] | None) -> bool:
    return live is not None and (bool(live["spec"]["replicas"]) or _has_pods(live))


def _ports(pod: Mapping[str, Any]) -> set[int]:
    """Return the ports of the containers of a pod, or of a template."""
    containers = pod["spec"].get("containers", ())
    return {port["containerPort"] for one in containers for port in one.get("ports", ())}


def next_brokers(allowed: BrokerSets, live_sets: LiveSets, view: ClusterView) -> BrokerSets:
    """Return the allowed brokers without those that others leave no room for yet.

    A set whose brokers hold replicas was there before: without it no replica of theirs is in sync,
    and none of the others may be restarted to leave room.
    """
    if live_sets[0] is None or _leave_room(live_sets, view):
        return allowed
    started = {number for number, one in enumerate(live_sets) if one and one["spec"]["replicas"]}
    if view.partitions is not None:
        started |= set(map(allowed.set_of, view.partitions.holders))
    counts = [
        count if not number or number in started else 0
        for number, count in enumerate(allowed.counts)
    ]
    return BrokerSets(tuple(counts))


def _leave_room(live_sets: LiveSets, view: ClusterView) -> bool:
    """Return whether all pods are of a template that lets brokers of other sets onto their node."""
    first = live_sets[0]
    assert first is not None
    if SET_LABEL not in first["spec"]["template"]["metadata"].get("labels", {}):
        return False
    revisions = [revision(first), *map(revision, live_sets[1:])]
    return all(
        one.revision is not None and one.revision == revisions[one.of_set]
        for one in view.own
        if one.pod is not None and one.of_set < len(revisions)
    )


def revision(live: Mapping[str, Any] | None) -> str | None:
    """Return the revision of a StatefulSet's template; None until its status is about that one."""
    if live is None:
        return None
    found = live.get("status", {})
    if found.get("observedGeneration", 0) < live["metadata"]["generation"]:
        return None
    text: str | None = found.get("updateRevision")
    return text


def later_revisions(live_sets: LiveSets, brokers: BrokerSets) -> tuple[str | None, ...]:
    """Return the revisions of the sets after the first; of one without brokers, an empty text."""
    return tuple(
        revision(live_sets[number] if number < len(live_sets) else None) if count else ""
        for number, count in enumerate(brokers.counts)
        if number
    )
