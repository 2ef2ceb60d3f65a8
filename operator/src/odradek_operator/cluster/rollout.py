"""Health of a KafkaCluster, and the order in which its brokers are restarted.

Pure: `view_brokers` joins pods and registrations, `judge` turns them into conditions,
`safe_brokers` refuses a scale-down that would lose data, and `next_to_roll` names the one pod to
delete next, so that it comes back with the current template. The controller goes last, since each
of its restarts costs an election. Brokers that share a node go together, if no partition has two
replicas there: that is no worse than one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Final

from odradek import config_loading
from odradek_operator.cluster import listener_objects, listener_plan, zookeeper_plan
from odradek_operator.cluster import objects as cluster_objects
from odradek_operator.cluster.listener_plan import ListenerPlan, ListenerStep
from odradek_operator.cluster.objects import Budget
from odradek_operator.shared import status
from odradek_operator.shared.broker_sets import SET_SIZE, BrokerSets, broker_id_of
from odradek_operator.shared.cluster_spec import (
    DEFAULT_OFFSETS_FACTOR,
    DEFAULT_TRANSACTIONS_FACTOR,
    OFFSETS_FACTOR,
    TRANSACTIONS_FACTOR,
    TRANSACTIONS_MIN_ISR,
    ClusterSpec,
)
from odradek_operator.shared.pods import image_of, is_ready, pending_reason
from odradek_operator.shared.spec import ResourceMeta
from odradek_operator.shared.status import Condition
from odradek_operator.shared.views import Partitions

# What the schema of status.brokers takes.
LONGEST_ADDRESS: Final = 512


@dataclass(frozen=True, slots=True)
class BrokerPod:
    """The observed state of a broker: its pod and its registration.

    `trouble` is why the pod does not run, in Kubernetes' words. One that is not `own` is no pod of
    this cluster's: a Kafka broker in the same znodes, or one that was just scaled away. `listeners`
    stands for those that it was started with (`listener_objects.HASH`), `zookeeper` for whom
    ZooKeeper takes it (`zookeeper_plan.MARK`). One that `moved` advertises other addresses on
    exposed listeners than it would after a restart. `last_node` is where it ran before, if that is
    known and it has no node. `of_set` is the number of its StatefulSet, `image` that of its pod.
    The data of one that is `unclaimed` goes when its pod ends: somebody deleted its volume claim.
    The node of one that is `shut_out` takes no new pod, and its volume may be there. That
    of one that is `lost` is not ready.
    """

    broker_id: int
    pod: str | None
    node: str | None
    address: str | None
    revision: str | None
    ready: bool
    registered: bool
    terminating: bool = False
    trouble: str | None = None
    own: bool = True
    listeners: str | None = None
    zookeeper: str | None = None
    moved: bool = False
    last_node: str | None = None
    of_set: int = 0
    image: str | None = None
    unclaimed: bool = False
    shut_out: bool = False
    lost: bool = False

    @property
    def healthy(self) -> bool:
        """Return whether it serves."""
        return self.ready and self.registered and not self.terminating

    @property
    def held(self) -> bool:
        """Return whether only the user may end its pod: it would not come back as it is."""
        return self.unclaimed or (self.shut_out and self.healthy)

    @property
    def place(self) -> str | None:
        """The node where it runs, or ran."""
        return self.node or self.last_node

    @property
    def lack(self) -> str | None:
        """What it lacks to serve, as a sentence; None if it serves."""
        if self.pod is None:
            return None if self.registered else f"broker {self.broker_id} has no pod"
        if self.trouble:
            return f"{self.pod}: {self.trouble}"
        pod = f"{self.pod} on {self.node}" if self.node else self.pod
        lost = ""
        if self.lost:
            # The kubelet of a lost node ends no pod.
            lost = " (its node is not ready: mend that, or remove it from Kubernetes)"
        if self.terminating:
            return f"{pod} has not ended yet{lost}"
        if not self.ready:
            return f"{pod} is not ready{lost}"
        return None if self.registered else f"{pod} is not registered"


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The observed state of a cluster. `partitions` is None if ZooKeeper did not answer.

    `away` says why, if more is known than that. `update_revision` is the revision of the first
    set's template, `later_revisions` has those of the sets after it, which there are where brokers
    share nodes. None: not known yet. Empty: the set is to have no brokers.

    `unreadable` says of the brokers whose registrations cannot be read what is wrong with these.
    """

    brokers: tuple[BrokerPod, ...]
    controller_id: int | None
    partitions: Partitions | None
    update_revision: str | None
    away: str = ""
    later_revisions: tuple[str | None, ...] = ()
    unreadable: Mapping[int, str] = field(default_factory=dict)

    @property
    def own(self) -> tuple[BrokerPod, ...]:
        """The brokers of this KafkaCluster."""
        return tuple(one for one in self.brokers if one.own)

    @property
    def own_unreadable(self) -> list[str]:
        """What is wrong with registrations of theirs: they may serve."""
        own = {one.broker_id for one in self.own}
        return [text for one, text in sorted(self.unreadable.items()) if one in own]

    @property
    def registered(self) -> int:
        """How many of them are registered."""
        return sum(one.registered for one in self.own)

    @property
    def templates_known(self) -> bool:
        """Return whether the revisions are those of the templates of now."""
        return None not in (self.update_revision, *self.later_revisions)

    def is_outdated(self, broker: BrokerPod) -> bool:
        """Return whether a pod is of a former template."""
        revisions = (self.update_revision, *self.later_revisions)
        return broker.of_set >= len(revisions) or broker.revision != revisions[broker.of_set]

    @property
    def staying(self) -> tuple[BrokerPod, ...]:
        """The brokers that have a pod, without those of sets that are to have none."""
        going = {number for number, one in enumerate(self.later_revisions, 1) if one == ""}
        return tuple(one for one in self.brokers if one.pod is not None and one.of_set not in going)


def next_to_roll(view: ClusterView) -> BrokerPod | None:
    """Return the broker pod to delete now so that it comes back with the current template.

    A broker that is down anyway goes first. A healthy one goes only while all others are healthy
    and every partition has all its replicas in sync, so that none falls under min.insync.replicas
    which has more replicas than that. One whose data would go with its pod, or whose node would not
    take the next one, is left to the user. None: nothing is outdated, or it is not safe.
    """
    pods = [one for one in view.brokers if one.pod is not None]
    outdated = [
        one for one in view.staying if (view.is_outdated(one) or one.moved) and not one.held
    ]
    if not outdated or not view.templates_known or view.own_unreadable:
        return None
    down = _of_node_that_is_down(view)
    # One that does not come back with the present template takes nobody with it.
    failed = any(one.trouble and one.node and not view.is_outdated(one) for one in down)
    beside = {one.broker_id for one in down if one.healthy and not failed}
    if together := [one for one in outdated if one.broker_id in beside]:
        return together[-1]
    if any(one.terminating for one in pods):
        return None
    # One that never ran with its template (no image, no node) serves nobody, whoever else is down.
    if stuck := [one for one in outdated if one.trouble and not one.registered]:
        return stuck[0]
    unhealthy = [one for one in view.own if not one.healthy]
    if unhealthy:
        broken = [one for one in outdated if not one.healthy]
        return broken[0] if len(broken) == len(unhealthy) else None
    if view.partitions is None or not view.partitions.all_in_sync:
        return None
    controllers = [one.node for one in pods if one.broker_id == view.controller_id]
    others = [one for one in outdated if one.broker_id != view.controller_id]
    elsewhere = [one for one in others if one.node not in controllers]
    return max(elsewhere or others or outdated, key=lambda one: one.broker_id)


def _of_node_that_is_down(view: ClusterView) -> tuple[BrokerPod, ...]:
    """Return the brokers of the only node of which any is down, if all of them may be.

    They may if no partition has replicas on two of them, and no broker elsewhere lags behind.
    """
    if not view.later_revisions or view.own_unreadable:
        return ()
    if view.partitions is None or view.partitions.unreadable:
        return ()
    nodes = {one.place for one in view.own if not one.healthy}
    if len(nodes) != 1 or None in nodes:
        return ()
    there = tuple(one for one in view.own if one.place in nodes)
    ids = {one.broker_id for one in there}
    if not view.partitions.lagging <= ids:
        return ()
    return () if any(ids >= pair for pair in view.partitions.sharing) else there


def safe_brokers(
    wanted: BrokerSets, current: BrokerSets | None, partitions: Partitions | None
) -> BrokerSets:
    """Return the allowed brokers: fewer only if the removed ones hold no replicas.

    Sets that are to have none stay as long as they have any.
    """
    if current is None:
        return wanted
    counts = [
        _safe_count(number * SET_SIZE, fewer, have, partitions)
        for number, (fewer, have) in enumerate(
            zip_longest(wanted.counts, current.counts, fillvalue=0)
        )
    ]
    return BrokerSets(tuple(counts))


def without_added(brokers: BrokerSets, current: BrokerSets) -> BrokerSets:
    """Return the brokers without those that there are none of yet."""
    pairs = zip_longest(brokers.counts, current.counts, fillvalue=0)
    return BrokerSets(tuple(map(min, pairs)))


def _safe_count(first: int, wanted: int, current: int, partitions: Partitions | None) -> int:
    if wanted >= current:
        return wanted
    if partitions is None or partitions.unreadable:
        return current
    holders = (one - first for one in partitions.holders)
    return max(wanted, max((one for one in holders if 0 <= one < current), default=-1) + 1)


def budget(
    partitions: Partitions | None,
    view: ClusterView | None,
    unclaimed: Collection[int] = frozenset(),
) -> Budget:
    """Return who may be evicted: one broker while all replicas are known to be in sync.

    Where brokers share nodes (else `view` is None), of a node that lost one the others may go too,
    and nobody else. None while there are `unclaimed` brokers, whose data would go.
    """
    if unclaimed:
        return Budget(0)
    if view is not None and (there := _of_node_that_is_down(view)):
        return Budget(0, tuple(one.pod for one in there if one.pod is not None))
    return Budget(1 if partitions is not None and partitions.all_in_sync else 0)


def mark_unclaimed(view: ClusterView, unclaimed: Collection[int]) -> ClusterView:
    """Return the view with those brokers marked whose volume claims somebody deleted."""
    brokers = (replace(one, unclaimed=one.broker_id in unclaimed) for one in view.brokers)
    return replace(view, brokers=tuple(brokers))


def mark_closed(view: ClusterView, nodes: Collection[str]) -> ClusterView:
    """Return the view with those brokers marked whose nodes take no new pods."""
    return replace(
        view, brokers=tuple(replace(one, shut_out=one.node in nodes) for one in view.brokers)
    )


def mark_lost(view: ClusterView, nodes: Collection[str]) -> ClusterView:
    """Return the view with those brokers marked whose nodes are not ready."""
    return replace(
        view, brokers=tuple(replace(one, lost=one.node in nodes) for one in view.brokers)
    )


def only_held_left(view: ClusterView) -> bool:
    """Return whether a roll has restarted all brokers that it may, and the rest is the user's."""
    outdated = [one for one in view.staying if view.is_outdated(one) or one.moved]
    return (
        view.templates_known
        and all(one.held for one in outdated)
        and all(one.healthy for one in view.own)
    )


def is_settled(view: ClusterView) -> bool:
    """Return whether all brokers run with the current template, and no replica lags behind."""
    return (
        view.templates_known
        and all(one.healthy and not view.is_outdated(one) for one in view.own)
        and view.partitions is not None
        and view.partitions.all_in_sync
    )


def judge_listeners(
    wanted: ListenerPlan, step: ListenerStep, given: str | None, view: ClusterView
) -> Condition:
    """Return the condition Secured: whether all that runs asks everybody who he is, over TLS.

    `step` is what pods get now, `given` stands for it in their annotations.
    """
    if (found := listener_plan.why_not_secured(wanted)) is not None:
        return found
    if strangers := [str(one.broker_id) for one in view.brokers if not one.own]:
        text = f"brokers {', '.join(strangers)} are none of this KafkaCluster's"
        return Condition("Secured", False, "OtherBrokers", text)
    if step.refused:
        return Condition("Secured", False, "UnsafeListenerChange", step.refused)
    behind = [one for one in view.own if one.listeners != given or one.listeners is None]
    if behind or not step.plan.means(wanted):
        done = len(view.own) - len(behind)
        text = f"{done} of {len(view.own)} brokers run with the listeners that they get now"
        waits = f"; next, {step.waits}" if step.waits else ""
        return Condition("Secured", False, "Rolling", text + waits)
    if view.partitions is None:
        text = "whether brokers of others are registered is not known"
        return Condition("Secured", None, "ZooKeeperUnreachable", text)
    return Condition(
        "Secured", True, "Secured", "TLS, authentication and ACLs on all listeners of all brokers"
    )


def judge(
    spec: ClusterSpec, view: ClusterView, allowed: BrokerSets, warnings: Sequence[Condition] = ()
) -> tuple[Condition, ...]:
    """Return the conditions of a cluster; `allowed` are the brokers that it has at present.

    `warnings` are further ones, which ConfigWarning says, too.
    """
    return _verdict(spec, view, allowed) + _warnings(spec, view, warnings)


def _verdict(spec: ClusterSpec, view: ClusterView, allowed: BrokerSets) -> tuple[Condition, ...]:
    if view.partitions is None:
        return status.progressing(
            "ZooKeeperUnreachable", view.away or f"ZooKeeper {spec.zookeeper} does not answer"
        )
    # One that was just removed may be registered for as long as its pod has not ended.
    registered = sum(one.registered for one in view.own if one.broker_id in allowed)
    count = f"{registered} of {len(allowed)} brokers registered"
    if view.partitions.unreadable:
        return status.stalled("ZnodeUnreadable", _unreadable(count, view.partitions.unreadable))
    if unreadable := [text for one, text in sorted(view.unreadable.items()) if one in spec.brokers]:
        held = "no broker is restarted or added before they are mended"
        text = f"{count}; registrations cannot be read, and {held}: {_first(unreadable)}"
        return status.stalled("ZnodeUnreadable", text)
    if _going(spec, allowed):
        return status.stalled("ScaleDownBlocked", _why_blocked(spec, view.partitions, allowed))
    if coming := sorted(set(spec.brokers) - set(allowed)):
        if taken := {
            one.broker_id: one.address or ""
            for one in view.brokers
            if not one.own and one.registered and one.broker_id in coming
        }:
            return ids_taken(taken, _IF_SCALED_AWAY)
        text = f"brokers {coming} come once all others run with pods that may share their nodes"
        return status.progressing("BrokersRolling", f"{count}; {text}")
    if registered < len(allowed):
        return status.progressing("BrokersStarting", "; ".join([count, *_lacks(view)]))
    if view.controller_id is None:
        return status.progressing("NoController", f"{count}; no controller is elected")
    if view.partitions.offline:
        return status.progressing(
            "PartitionsOffline", f"{view.partitions.offline} partitions have no leader"
        )
    if any(map(view.is_outdated, view.staying)):
        return (
            Condition("Ready", True, "BrokersRolling", count),
            Condition("Reconciling", True, "BrokersRolling", _how_it_rolls(view, view.partitions)),
            Condition("Stalled", False, "BrokersRolling"),
        )
    return status.ready("BrokersReady", count)


_IF_FORMER: Final = (
    "if they are of a former KafkaCluster, that ends with their sessions, else choose another "
    "spec.zookeeper.chroot"
)
_IF_SCALED_AWAY: Final = (
    "if they were scaled away just now, that ends with their sessions, else they are of others, "
    "and spec.brokers must ask for fewer brokers"
)


def ids_taken(addresses: Mapping[int, str], advice: str = _IF_FORMER) -> tuple[Condition, ...]:
    """Return the conditions of a cluster that waits for the ids of its brokers.

    An empty broker would take the place of theirs as soon as one of them restarts.
    """
    shown = ", ".join(f"{one} at {address}" for one, address in sorted(addresses.items())[:3])
    more = ", ..." if len(addresses) > 3 else ""
    text = f"brokers with these ids are registered already: {shown}{more}; {advice}"
    return status.progressing("BrokerIdsTaken", text)


def _unreadable(count: str, problems: Sequence[str]) -> str:
    held = "no broker is restarted or removed while its replicas are unknown"
    return f"{count}; {len(problems)} topics cannot be read, and {held}: {_first(problems)}"


def _first(texts: Sequence[str]) -> str:
    return "; ".join(texts[:3]) + ("; ..." if len(texts) > 3 else "")


def _lacks(view: ClusterView) -> list[str]:
    """Return what brokers lack to serve; first of those that Kubernetes says more about."""
    found = sorted(view.own, key=lambda one: not one.trouble)
    lacks = [one.lack for one in found if one.lack is not None]
    return lacks[:3] + ["..."] * (len(lacks) > 3)


def _how_it_rolls(view: ClusterView, partitions: Partitions) -> str:
    text = "brokers are restarted one at a time with the new pod template"
    if view.later_revisions:
        text = "brokers are restarted node by node with the new pod template"
    if partitions.under_replicated:
        text += "; the next one waits until all replicas of all partitions are in sync"
    elif partitions.copying:
        text += "; the next one waits until the replicas that are being added are in sync"
    return "; ".join([text, *why_held(view), *_lacks(view)])


def why_held(view: ClusterView) -> list[str]:
    """Return which brokers a restart leaves to the user, and what to do."""
    held = [one for one in view.staying if one.held and (view.is_outdated(one) or one.moved)]
    texts = []
    if unclaimed := [one.broker_id for one in held if one.unclaimed]:
        texts.append(f"brokers {unclaimed} wait for you, as ConfigWarning says")
    if waiting := [one for one in held if not one.unclaimed]:
        shown = ", ".join(f"{one.pod} on {one.node}" for one in waiting[:3])
        more = ", ..." if waiting[3:] else ""
        texts.append(
            "nodes are cordoned, tainted or not ready, and would not take the next pods: "
            f"{shown}{more}; uncordon them, remove the taints or mend the nodes, or delete these "
            "pods yourself"
        )
    return texts


def _why_blocked(spec: ClusterSpec, partitions: Partitions, allowed: BrokerSets) -> str:
    """Return what to do before the brokers can be removed, in this order, or how to keep them."""
    going = _going(spec, allowed)
    steps = []
    replicas, topic = partitions.widest
    most = spec.fewest_nodes
    if replicas > most:
        steps.append(f"lower the replication factor of topics to {most} ({topic} has {replicas})")
    if too_large := spec.larger_than(most):
        steps.append(f"set {' and '.join(too_large)} to {most} or less")
    steps.append(f"apply a Reassignment with mode RemoveBrokers, brokers {going}")
    text = f"brokers {going} hold replicas; {'; '.join(steps)}"
    if (enough := allowed.replicas_with(spec.per_node)) is None:
        return text
    return f"{text}; or keep them: with perNode {spec.per_node}, that needs replicas {enough}"


def _going(spec: ClusterSpec, allowed: BrokerSets) -> list[int]:
    """Return the brokers that the spec has no more, and that hold replicas."""
    return sorted(set(allowed) - set(spec.brokers))


def _warnings(
    spec: ClusterSpec, view: ClusterView, further: Sequence[Condition]
) -> tuple[Condition, ...]:
    found: list[Condition] = []

    def warn(reason: str, text: str) -> None:
        found.append(Condition("ConfigWarning", True, reason, text))

    # The condition has the reason of the first: this one costs data.
    if unclaimed := [one.pod for one in view.own if one.unclaimed and one.pod is not None]:
        warn("ClaimDeleted", _why_unclaimed(unclaimed))
    if strange := [
        text for one, text in sorted(view.unreadable.items()) if one not in spec.brokers
    ]:
        warn("ZnodeUnreadable", f"registrations of other brokers cannot be read: {_first(strange)}")
    unsupported = [one for one in spec.unknown_keys if config_loading.is_unsupported(one)]
    if unknown := [one for one in spec.unknown_keys if one not in unsupported]:
        warn("UnknownKeys", f"unknown broker settings: {', '.join(unknown)}")
    if unsupported:
        warn("UnknownKeys", f"broker settings that are not supported: {', '.join(unsupported)}")
    if spec.lacks_coordinators:
        text = (
            "groups cannot keep offsets in Kafka: unless __consumer_offsets exists already, that "
            f"needs {_places(spec, DEFAULT_OFFSETS_FACTOR)}, or a smaller {OFFSETS_FACTOR} in "
            "spec.brokers.config"
        )
        warn("TooFewBrokers", text)
    if spec.lacks_transactions:
        text = (
            "producers cannot have transactions: unless __transaction_state exists already, that "
            f"needs {_places(spec, DEFAULT_TRANSACTIONS_FACTOR)}, or a smaller "
            f"{TRANSACTIONS_FACTOR}, and a {TRANSACTIONS_MIN_ISR} that is no larger, in "
            "spec.brokers.config"
        )
        warn("TooFewBrokers", text)
    if pairs := _pairs_on_one_node(view):
        shown = ", ".join(f"{one} and {other}" for one, other in pairs[:3])
        more = ", ..." if len(pairs) > 3 else ""
        text = f"partitions have two replicas on one node, by brokers {shown}{more}"
        warn("ReplicasShareNode", text)
    found += further
    if found:
        return (replace(found[0], message="; ".join(one.message for one in found)),)
    return (Condition("ConfigWarning", False, "NoWarnings"),)


def _places(spec: ClusterSpec, factor: int) -> str:
    """Return what so many replicas of a partition need."""
    if not spec.brokers.share_nodes:
        return f"{factor} brokers"
    fewest = spec.per_node * (factor - 1) + 1
    return f"brokers on {factor} nodes, as {fewest} are with perNode {spec.per_node}"


def _why_unclaimed(pods: Sequence[str]) -> str:
    first, more = pods[:3], ", ..." if pods[3:] else ""
    shown = ", ".join(map(cluster_objects.claim_name, first)) + more
    text = f"""
        somebody deleted the volume claims {shown}, whose data goes when their pods end: no drain
        and no rolling restart ends these; once all their partitions have replicas in sync on other
        brokers, delete the pods one by one, and they come back empty: {", ".join(first)}{more}
    """
    return " ".join(text.split())


def _pairs_on_one_node(view: ClusterView) -> list[list[int]]:
    """Return the brokers on one node that have replicas of one partition: a pod has moved.

    Not those of which one is just taking over the other's replicas.
    """
    if not view.later_revisions or view.partitions is None:
        return []
    nodes = {one.broker_id: one.node for one in view.own if one.node is not None}
    return sorted(
        sorted(pair)
        for pair in view.partitions.sharing - view.partitions.replacing
        if pair <= nodes.keys() and len(pair) == 2 and len({nodes[one] for one in pair}) == 1
    )


def proposal(spec: ClusterSpec, allowed: BrokerSets) -> dict[str, Any] | None:
    """Return the spec of the Reassignment that a scale-down needs first."""
    going = _going(spec, allowed)
    return {"mode": "RemoveBrokers", "brokers": going} if going else None


def status_fields(
    meta: ResourceMeta, spec: ClusterSpec, view: ClusterView, allowed: BrokerSets
) -> dict[str, Any]:
    """Return the part of the status that is not conditions."""
    known = view.partitions is not None
    return {
        "replicas": view.registered if known else None,
        "selector": cluster_objects.selector_text(meta),
        "brokers": [
            _broker_status(one, known=known and one.broker_id not in view.unreadable)
            for one in view.brokers
        ],
        "controllerId": view.controller_id,
        "underReplicatedPartitions": view.partitions.under_replicated if view.partitions else None,
        "offlinePartitions": view.partitions.offline if view.partitions else None,
        "proposedReassignment": proposal(spec, allowed) if known else None,
    }


def _broker_status(broker: BrokerPod, *, known: bool) -> dict[str, Any]:
    fields = {
        "id": broker.broker_id,
        "pod": broker.pod,
        "node": broker.node,
        "lastNode": broker.last_node,
        # As much as the schema takes: whoever registers may write more.
        "address": broker.address and broker.address[:LONGEST_ADDRESS],
        "image": broker.image,
        "registered": broker.registered if known else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def view_brokers(
    meta: ResourceMeta,
    pods: Sequence[Mapping[str, Any]],
    addresses: Mapping[int, str],
    brokers: BrokerSets,
) -> tuple[BrokerPod, ...]:
    """Join pods and registrations (broker id to host:port) by broker id, over all wanted ids.

    Registrations of others are shown too.
    """
    by_id = {
        broker_id: pod
        for pod in pods
        if (broker_id := broker_id_of(meta.name, name := pod["metadata"]["name"])) is not None
        # Not that of a set which nobody knows of any more.
        and name == brokers.pod(meta.name, broker_id)
    }
    own = {*brokers, *by_id}
    return tuple(
        replace(
            _view_broker(one, by_id.get(one), addresses.get(one)),
            own=one in own,
            of_set=brokers.set_of(one),
        )
        for one in sorted(own | set(addresses))
    )


def remember_nodes(
    brokers: Sequence[BrokerPod], listed: Sequence[Mapping[str, Any]]
) -> tuple[BrokerPod, ...]:
    """Return the brokers with the last nodes of those without one, by a former status."""
    known = {one["id"]: one.get("node", one.get("lastNode")) for one in listed}
    return tuple(
        one if one.node else replace(one, last_node=known.get(one.broker_id)) for one in brokers
    )


def _view_broker(broker_id: int, pod: Mapping[str, Any] | None, address: str | None) -> BrokerPod:
    if pod is None:
        return BrokerPod(broker_id, None, None, address, None, False, address is not None)
    return BrokerPod(
        broker_id=broker_id,
        pod=pod["metadata"]["name"],
        node=pod["spec"].get("nodeName"),
        address=address,
        revision=pod["metadata"].get("labels", {}).get("controller-revision-hash"),
        ready=is_ready(pod),
        registered=address is not None,
        terminating="deletionTimestamp" in pod["metadata"],
        trouble=pending_reason(pod),
        listeners=pod["metadata"].get("annotations", {}).get(listener_objects.HASH),
        zookeeper=pod["metadata"].get("annotations", {}).get(zookeeper_plan.MARK),
        image=image_of(pod),
    )
