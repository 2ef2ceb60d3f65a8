"""Makes the Services of exposed listeners, and tells what brokers advertise there.

A Service comes with the listener in the spec and goes with it at once, whatever brokers do
meanwhile. Nothing of others is touched. No broker that runs is restarted for an address before
that is known, and one whose address has changed is, in the order of any roll (`rollout`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from odradek.values import BrokerId
from odradek.zk.znodes import BrokerRegistration
from odradek_operator.cluster import (
    exposed_addresses,
    exposed_services,
    listener_objects,
    nodes,
    rollout,
)
from odradek_operator.cluster import objects as cluster_objects
from odradek_operator.cluster.exposed_addresses import Endpoint, Line, Reachable
from odradek_operator.cluster.listener_plan import ListenerPlan
from odradek_operator.cluster.own_secrets import ChangedError, NotPreparedError
from odradek_operator.cluster.rollout import BrokerPod, ClusterView
from odradek_operator.cluster.secured import OutsideHosts, PreparedListeners
from odradek_operator.shared import apply, kube, status
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.broker_sets import BrokerSets, broker_id_of
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.expose_spec import ExposeSpec
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.objects import Object, belongs_to
from odradek_operator.shared.spec import Body, ResourceMeta
from odradek_operator.shared.status import Condition

PENDING: Final = "AddressPending"
BEHIND: Final = "NotAdvertised"
# Clients need a few to begin with.
_BOOTSTRAP: Final = 16
# Reasons of Ready that say less than what clients do not reach.
_LESSER: Final = frozenset({"BrokersReady", "BrokersRolling", "BrokersStarting"})

log = logging.getLogger(__name__)

Registered = Mapping[BrokerId, BrokerRegistration]


@dataclass(frozen=True, slots=True)
class Exposed:
    """The exposed listeners of a cluster as they are.

    `exposed` are those of the spec, `served` those that brokers are given now; `former` has the
    lines that brokers had so far, `lines` those that they have, and only those.
    """

    exposed: tuple[ExposeSpec, ...] = ()
    served: tuple[ExposeSpec, ...] = ()
    reachable: Reachable = field(default_factory=Reachable)
    former: Mapping[int, Line] = field(default_factory=dict)
    lines: Mapping[int, Line] = field(default_factory=dict)

    def outside(self, registered: Registered) -> OutsideHosts:
        """Return what certificates must prove. Clients of former addresses still come to these."""
        now = {one.listener: exposed_addresses.hosts_of(one, self.reachable) for one in self.served}
        former = {}
        for one in self.served:
            lines = [line.endpoints.get(one.kafka_name) for line in self.former.values()]
            seen = [each.endpoint(one.kafka_name) for each in registered.values()]
            hosts = {each.host for each in (*lines, *seen) if each is not None}
            former[one.listener] = frozenset(hosts)
        return OutsideHosts(now, former)


def reconcile(
    context: ReconcileContext,
    body: Body,
    meta: ResourceMeta,
    wanted: ClusterSpec,
    plan: ListenerPlan,
    brokers: BrokerSets,
) -> Exposed:
    """Make the Services of the brokers, delete others, and return what is exposed.

    Raises NotPreparedError, ChangedError, or KubeError.
    """
    listed = _own(context, meta)
    desired = [
        one for each in wanted.exposed for one in exposed_services.desired(meta, each, brokers)
    ]
    names = {one["metadata"]["name"] for one in desired}
    # First, since they may have the node ports that others are to get.
    for name in sorted(listed.keys() - names):
        _still_wanted(context, body)
        context.kube.delete(listed.pop(name))
        log.info("%s: deleted Service %s", meta.name, name)
    for one in desired:
        name = one["metadata"]["name"]
        live = listed.get(name)
        if live is not None and not kube.differs(one, live):
            continue
        if live is None:
            _refuse_of_others(context, meta, name)
        _still_wanted(context, body)
        listed[name] = _apply(context, one)
        log.info("%s: applied Service %s", meta.name, name)
    return _look(context, meta, wanted, plan, brokers, listed)


def observe(
    context: ReconcileContext,
    meta: ResourceMeta,
    wanted: ClusterSpec,
    plan: ListenerPlan,
    brokers: BrokerSets,
) -> Exposed:
    """Return what is exposed, without a change."""
    return _look(context, meta, wanted, plan, brokers, _own(context, meta))


def _own(context: ReconcileContext, meta: ResourceMeta) -> dict[str, dict[str, Any]]:
    """Return the Services of exposed listeners that are this KafkaCluster's, by name."""
    selector = exposed_services.selector_text(meta.name)
    # The API leaves kind and version out of a list's items.
    kind = {"apiVersion": "v1", "kind": "Service"}
    return {
        one["metadata"]["name"]: {**one, **kind}
        for one in context.kube.select("v1", "Service", meta.namespace, selector)
        if exposed_services.LISTENER_LABEL in one["metadata"].get("labels", {})
        and belongs_to(meta.uid, one)
    }


def _refuse_of_others(context: ReconcileContext, meta: ResourceMeta, name: str) -> None:
    """Raise NotPreparedError where somebody else's Service has the name."""
    found = context.kube.get("v1", "Service", meta.namespace, name)
    if found is None:
        return
    if belongs_to(meta.uid, found):
        return
    owners = found["metadata"].get("ownerReferences", ())
    if any((one["kind"], one["name"]) == (meta.kind, meta.name) for one in owners):
        text = f"Service {name} is of a former KafkaCluster of this name, and goes with it"
        raise NotPreparedError("ServiceTerminating", text, waits=True)
    text = f"Service {name} is not of this KafkaCluster: delete it, or rename the listener"
    raise NotPreparedError("ServiceConflict", text)


def _still_wanted(context: ReconcileContext, body: Body) -> None:
    if not apply.still_wanted(context, body):
        raise ChangedError


def _apply(context: ReconcileContext, wanted: Object) -> dict[str, Any]:
    try:
        return context.kube.apply(wanted)
    except KubeError as error:
        if not apply.is_refused(error):
            raise
        # Such as a node port that somebody else has.
        raise NotPreparedError("ServiceRejected", str(error)) from None


def _look(
    context: ReconcileContext,
    meta: ResourceMeta,
    wanted: ClusterSpec,
    plan: ListenerPlan,
    brokers: BrokerSets,
    services: Mapping[str, Mapping[str, Any]],
) -> Exposed:
    if not wanted.exposed:
        return Exposed()
    by_node = any(one.by_node for one in wanted.exposed)
    placed = _placed(context, meta) if by_node else {}
    found = nodes.by_name(context) if by_node else {}
    # Brokers never talk to each other over a load balancer.
    served = tuple(
        one
        for one in wanted.exposed
        if plan.find(one.listener) is not None and one.listener not in plan.in_use
    )
    name = cluster_objects.workload_name(meta.name)
    config = context.kube.get("v1", "ConfigMap", meta.namespace, name) or {}
    former = exposed_addresses.decode(config.get("data", {}).get(listener_objects.EXPOSED, ""))
    reachable = exposed_addresses.find(
        meta.name, wanted.exposed, services, placed, found, brokers, former
    )
    return Exposed(wanted.exposed, served, reachable, former)


def _placed(context: ReconcileContext, meta: ResourceMeta) -> dict[int, str]:
    """Return the node of each broker that has one."""
    pods = context.kube.select("v1", "Pod", meta.namespace, cluster_objects.selector_text(meta))
    found = {}
    for pod in pods:
        broker_id = broker_id_of(meta.name, pod["metadata"]["name"])
        if broker_id is not None and (node := pod["spec"].get("nodeName")):
            found[broker_id] = node
    return found


def complete(
    found: Exposed, prepared: PreparedListeners | None, registered: Registered, brokers: BrokerSets
) -> tuple[Exposed, PreparedListeners | None]:
    """Return both with the lines of brokers.

    Raises NotPreparedError if a broker that runs would not come back with them.
    """
    if prepared is None or not found.served:
        return found, prepared
    lines = exposed_addresses.lines(
        found.served, found.reachable, found.former, brokers, prepared.proven
    )
    needed = {one.kafka_name for one in found.served}
    done = {number for number, line in lines.items() if needed <= line.endpoints.keys()}
    if held := [one for one in sorted(registered) if one in brokers and one not in done]:
        whom = ", ".join(map(str, held))
        why = "; ".join(found.reachable.pending) or "certificates do not prove their addresses yet"
        text = f"{why}; brokers {whom} are not restarted before that"
        raise NotPreparedError(PENDING, text, waits=True)
    names = frozenset(one.listener for one in found.served)
    setup = replace(prepared.setup, exposed=names, exposed_lines=exposed_addresses.encode(lines))
    return replace(found, lines=lines), replace(prepared, setup=setup)


# --- brokers and their status ---------------------------------------------------------------------


def mark_moved(view: ClusterView, found: Exposed, registered: Registered) -> ClusterView:
    """Return the view with those brokers marked that a restart gives another address.

    What is registered of one that is not healthy may be left of its former life.
    """

    def moved(broker: BrokerPod) -> bool:
        line, one = found.lines.get(broker.broker_id), registered.get(BrokerId(broker.broker_id))
        if line is None or one is None or not broker.healthy or not line.is_for(broker.node):
            return False
        return any(_advertised(one, name) != endpoint for name, endpoint in line.endpoints.items())

    return replace(view, brokers=tuple(replace(one, moved=moved(one)) for one in view.brokers))


def _advertised(registration: BrokerRegistration, name: str) -> Endpoint | None:
    found = registration.endpoint(name)
    return None if found is None else Endpoint(found.host, found.port)


def judge(
    judged: Sequence[Condition],
    secure: Condition,
    found: Exposed,
    registered: Registered,
    held: Sequence[str] = (),
) -> tuple[tuple[Condition, ...], Condition]:
    """Return Ready and the others, and Secured, with what clients do not reach.

    `judged` begins with Ready, Reconciling and Stalled. `held` says which brokers nobody restarts
    but the user.
    """
    lacking = _lacking(found, registered, held)
    if lacking is None:
        return tuple(judged), secure
    reason, text = lacking
    told = replace(secure, status=False, reason=reason, message=text) if secure.status else secure
    if judged[0].reason not in _LESSER:
        return tuple(judged), told
    if not judged[0].status:
        text = f"{text}; {judged[0].message}"
    return (*status.progressing(reason, text), *judged[3:]), told


def _lacking(found: Exposed, registered: Registered, held: Sequence[str]) -> tuple[str, str] | None:
    """Return reason and message of what clients do not reach."""
    if found.reachable.pending:
        return PENDING, "; ".join(found.reachable.pending)
    texts = []
    for one in found.exposed:
        behind = [
            broker_id
            for (name, broker_id), endpoint in sorted(found.reachable.brokers.items())
            if name == one.listener
            and (known := registered.get(BrokerId(broker_id))) is not None
            and _advertised(known, one.kafka_name) != endpoint
        ]
        if behind:
            whom = ", ".join(map(str, behind))
            texts.append(
                f"brokers {whom} do not advertise their addresses on listener {one.listener} yet"
            )
    if not texts:
        return None
    texts.append("they do so when they are restarted, in turn")
    return BEHIND, "; ".join([*texts, *held])


def awaits_user(ready: Condition, view: ClusterView) -> bool:
    """Return whether brokers advertise former addresses, and only the user may restart these."""
    held = any(one.moved and one.held for one in view.own)
    return ready.reason == BEHIND and held and rollout.only_held_left(view)


def status_fields(found: Exposed) -> dict[str, Any]:
    """Return status.listeners: where clients begin."""
    listed = [
        {"name": one.listener, "bootstrapServers": ",".join(map(str, endpoints[:_BOOTSTRAP]))}
        for one in found.exposed
        if (endpoints := found.reachable.bootstrap.get(one.listener))
    ]
    return {"listeners": listed or None}
