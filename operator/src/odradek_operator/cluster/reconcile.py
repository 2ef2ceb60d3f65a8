"""One KafkaCluster: its owned objects, its rolling restart, its status."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Final

from odradek.values import BrokerId
from odradek.zk.operations import TransactionFailedError
from odradek.zk.payload import ZnodeError
from odradek_operator.cluster import (
    authority_secrets,
    broker_steps,
    claims,
    console,
    exporter,
    expose,
    listener_objects,
    listener_plan,
    nodes,
    objects_step,
    racks,
    rollout,
    secured,
    settings,
    upgrades,
    zookeeper_step,
)
from odradek_operator.cluster import objects as cluster_objects
from odradek_operator.cluster.broker_steps import LiveSets
from odradek_operator.cluster.expose import Registered
from odradek_operator.cluster.listener_plan import ListenerStep, LostPlanError
from odradek_operator.cluster.own_secrets import ChangedError, NotPreparedError
from odradek_operator.cluster.rollout import ClusterView
from odradek_operator.cluster.upgrades import WaitingUpgrade
from odradek_operator.cluster.zookeeper_plan import CONDITION as ZOOKEEPER_SECURED
from odradek_operator.shared import (
    apply,
    broker_sets,
    cluster_spec,
    observe,
    spec,
    status,
    status_update,
    user_znodes,
    zookeeper_login,
)
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.broker_sets import BrokerSets
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.objects import metadata
from odradek_operator.shared.spec import Body, ResourceMeta
from odradek_operator.shared.status import Condition, Event
from odradek_operator.shared.views import Partitions
from odradek_operator.shared.zookeeper import RefusedError, UnreachableError
from odradek_operator.shared.zookeeper_login import CredentialsError

STEADY_SECONDS: Final = 20.0
BUSY_SECONDS: Final = 2.0
# Fields that stay in the status of a refused cluster; autoscalers read the first two.
_SHOWN: Final = (
    "replicas",
    "selector",
    "brokers",
    "controllerId",
    "listeners",
    settings.REMEMBERED,
    zookeeper_login.REMEMBERED,
    "authorities",
)

_AWAY: Final = "ZooKeeperUnreachable"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Znodes:
    """What ZooKeeper holds; empty if it did not answer. `away` says more of why.

    `unreadable` are the registrations that cannot be read.
    """

    registered: Registered
    addresses: Mapping[int, str]
    controller_id: int | None
    partitions: Partitions | None
    away: str = ""
    unreadable: Mapping[BrokerId, ZnodeError] = field(default_factory=dict)


def reconcile(context: ReconcileContext, body: Body, conflict: str | None) -> float:
    """Bring one cluster nearer to its spec. `conflict` names an older one on the same znodes."""
    try:
        return _reconcile(context, body, conflict)
    except ZnodeError as error:
        unreadable = status.stalled("ZnodeUnreadable", str(error))
        status_update.write_status(context, body, unreadable, _unseen(body))
        return STEADY_SECONDS
    except apply.NotOwnError as error:
        foreign = status.stalled("ApplyRejected", str(error))
        status_update.write_status(context, body, foreign, _unseen(body))
        return STEADY_SECONDS
    except CredentialsError as error:
        refused = NotPreparedError(error.reason, str(error))
        return _hold(context, body, refused, (), ZOOKEEPER_SECURED, _unseen(body))


def _reconcile(context: ReconcileContext, body: Body, conflict: str | None) -> float:
    meta = spec.parse_meta(body)
    if meta.deleting:
        # Children go by their owner references, claims by the StatefulSet's retention policy. The
        # resource is there meanwhile if its deletion waits for them, or for a finalizer of others.
        ending = status.progressing("Deleting", "brokers and what else it has go with it")
        status_update.write_status(context, body, ending, _unseen(body))
        return STEADY_SECONDS
    try:
        wanted = cluster_spec.parse_cluster(body)
    except spec.InvalidSpec as error:
        return _refuse(context, body, meta, error)
    if conflict is not None:
        text = f"KafkaCluster {conflict} is older and uses the same znodes"
        conflicted = status.stalled("ResourceConflict", text)
        status_update.write_status(context, body, conflicted, _unseen(body))
        return STEADY_SECONDS
    live_sets = _live_sets(context, meta, wanted)
    live_set = live_sets[0]
    current = broker_steps.present(live_sets)
    znodes = _read_znodes(context, body, wanted, fresh=False)
    if current is not None and set(current) != set(
        rollout.safe_brokers(wanted.brokers, current, znodes.partitions)
    ):
        # Read again, without the cache, whether brokers are empty before they are removed, and
        # whether ids are free before there are more.
        znodes = _read_znodes(context, body, wanted, fresh=True)
    if current is None:
        if znodes.partitions is None and not wanted.paused:
            return _hold_unknown_ids(context, body, wanted, znodes)
        if unknown := [error for one, error in znodes.unreadable.items() if one in wanted.brokers]:
            # Whoever has the id: an empty broker must not take its place.
            raise unknown[0]
        before = set(broker_steps.taken(meta, wanted.brokers, znodes.registered))
        if taken := _others(context, meta, before, znodes):
            held = rollout.ids_taken({one: znodes.addresses[one] for one in taken})
            status_update.write_status(context, body, held, _unseen(body))
            return BUSY_SECONDS
    allowed = rollout.safe_brokers(wanted.brokers, current, znodes.partitions)
    if current is not None and not _are_free(context, meta, set(allowed) - set(current), znodes):
        allowed = rollout.without_added(allowed, current)
    try:
        if set(allowed) == set(wanted.brokers):
            # As long as a scale-down is blocked, users must see that first.
            own = {*wanted.brokers, *(current or ())}
            cluster_spec.check_fits(wanted, sum(one not in own for one in znodes.addresses))
        broker_steps.check_sets(allowed, current)
        if allowed.share_nodes and wanted.host_network:
            selector = cluster_objects.selector_text(meta)
            pods = context.kube.select("v1", "Pod", meta.namespace, selector)
            broker_steps.check_ports(meta, wanted, live_sets, pods)
    except spec.InvalidSpec as error:
        return _refuse(context, body, meta, error)
    sharing = None
    if allowed.share_nodes:
        sharing = _view(context, body, meta, znodes, live_sets, allowed)
        allowed = broker_steps.next_brokers(allowed, live_sets, sharing)
    zookeeper = zookeeper_step.look(
        context,
        body,
        wanted,
        live_set,
        lambda: _view(context, body, meta, znodes, live_sets, allowed),
    )
    if live_set is None and not wanted.paused:
        # Before anything is written, here or for another resource: that is secured, too.
        body = status_update.write_status(context, body, (), zookeeper.remembered())
        if not zookeeper.is_remembered(body):
            return 0.0
    events: list[Event] = []
    told: tuple[Condition, ...] = ()
    waits: WaitingUpgrade | None = None
    warnings: tuple[Condition, ...] = ()
    refused_settings: str | None = None
    signing = body.get("status", {}).get("authorities")
    claimed = claims.read(context, meta, allowed)
    unclaimed = claims.deleted(claimed)
    if not wanted.paused:
        try:
            configured = settings.reconcile(context, body, wanted)
        except RefusedError as error:
            configured, refused_settings = (body, ()), str(error)
        if configured is None:
            return apply.SOON_SECONDS
        body, changed = configured
        events += changed
        asked = ZOOKEEPER_SECURED
        try:
            to_zookeeper = zookeeper_step.prepare(context, body, meta, zookeeper)
            asked = "Secured"
            step = _listener_step(context, body, meta, wanted, znodes, live_sets, allowed)
            try:
                exposed = expose.reconcile(context, body, meta, wanted, step.plan, allowed)
            except NotPreparedError:
                # Certificates are renewed however long a Service is refused.
                exposed = expose.observe(context, meta, wanted, step.plan, allowed)
                outside = exposed.outside(znodes.registered)
                with contextlib.suppress(NotPreparedError):
                    _prepare(context, body, meta, wanted, step, outside)
                raise
            outside = exposed.outside(znodes.registered)
            prepared = _prepare(context, body, meta, wanted, step, outside)
            events += prepared.events if prepared else ()
            exposed, prepared = expose.complete(exposed, prepared, znodes.registered, allowed)
            budget = rollout.budget(znodes.partitions, sharing, unclaimed)
            setup = prepared.setup if prepared else None
            setups = (setup, to_zookeeper)
            of_nodes = racks.read(context, meta, wanted)
            waits = objects_step.apply_objects(
                context,
                body,
                meta,
                wanted,
                live_sets,
                allowed,
                budget,
                of_nodes.by_node,
                *setups,
            )
            if waits is None:
                return 0.0
        except ChangedError:
            return 0.0
        except NotPreparedError as error:
            # Brokers come and go meanwhile.
            view = _view(context, body, meta, znodes, live_sets, allowed)
            seen = rollout.status_fields(meta, wanted, view, allowed)
            return _hold(context, body, error, events, asked, seen)
        except KubeError as error:
            if not apply.is_refused(error):
                raise
            refused = status.stalled("ApplyRejected", str(error))
            view = _view(context, body, meta, znodes, live_sets, allowed)
            fields = {
                **status_update.remembered(body, _SHOWN),
                **rollout.status_fields(meta, wanted, view, allowed),
            }
            status_update.write_status(context, body, refused, fields, events)
            return STEADY_SECONDS
        live_sets = _live_sets(context, meta, wanted)
        live_set = live_sets[0]
        signing = (authority_secrets.report(prepared.authorities) if prepared else []) or None
        told = (
            *_certificate_warnings(prepared),
            *authority_secrets.conditions(prepared.authorities if prepared else (), context.now()),
            *claims.grow(context, claimed.values(), wanted.storage.size),
            *exporter.reconcile(context, body, meta, wanted),
            *console.reconcile(context, body, meta, wanted),
        )
    view = _view(context, body, meta, znodes, live_sets, allowed)
    view = rollout.mark_unclaimed(view, unclaimed)
    if any(one.node and (one.terminating or not one.ready) for one in view.own):
        view = rollout.mark_lost(view, nodes.not_ready(context))
    if wanted.paused:
        told = (Condition("Paused", True, "Paused", "spec.paused is true"),)
        step = _present_step(wanted, live_set)
        exposed = expose.observe(context, meta, wanted, step.plan, allowed)
    else:
        assert waits is not None
        warnings = racks.warnings(wanted.rack_key, of_nodes, view, znodes.registered)
        view = expose.mark_moved(view, exposed, znodes.registered)
        told = (*upgrades.judge(wanted, view, waits), *told)
        view, rolled = _roll(context, body, meta, wanted, view)
        events += rolled
    judged = rollout.judge(wanted, view, allowed, warnings)
    if step.refused and judged[0].status:
        judged = (*status.stalled("UnsafeListenerChange", step.refused), *judged[3:])
    elif refused_settings is not None and judged[0].status:
        judged = (*status.stalled("ZooKeeperRefuses", refused_settings), *judged[3:])
    secure = rollout.judge_listeners(
        listener_plan.wanted_plan(wanted), step, _given(live_set), view
    )
    judged, secure = expose.judge(
        judged, secure, exposed, znodes.registered, rollout.why_held(view)
    )
    conditions = (*judged, secure, *zookeeper.condition(view, meta, wanted.zookeeper), *told)
    status_update.write_status(
        context,
        body,
        conditions,
        {
            **rollout.status_fields(meta, wanted, view, allowed),
            **expose.status_fields(exposed),
            **_settings(body, wanted),
            **zookeeper.remembered(),
            "authorities": signing,
        },
        events,
    )
    steady = conditions[0].status and (not conditions[1].status or rollout.only_held_left(view))
    steady = steady or expose.awaits_user(conditions[0], view)
    return STEADY_SECONDS if steady else BUSY_SECONDS


def _others(
    context: ReconcileContext, meta: ResourceMeta, added: AbstractSet[int], znodes: _Znodes
) -> set[int]:
    """Return which of these brokers are registered without a pod of this cluster's."""
    found = added & znodes.addresses.keys()
    if not found:
        return found
    pods = context.kube.select("v1", "Pod", meta.namespace, cluster_objects.selector_text(meta))
    return found - {broker_sets.broker_id_of(meta.name, one["metadata"]["name"]) for one in pods}


def _are_free(
    context: ReconcileContext, meta: ResourceMeta, added: AbstractSet[int], znodes: _Znodes
) -> bool:
    """Return whether nobody else is registered with these ids; False while that is not known."""
    if not added:
        return True
    if not added.isdisjoint(znodes.unreadable):
        return False
    return znodes.partitions is not None and not _others(context, meta, added, znodes)


def _hold_unknown_ids(
    context: ReconcileContext, body: Body, wanted: ClusterSpec, znodes: _Znodes
) -> float:
    """Make no brokers of a new cluster while nobody knows whether their ids are taken."""
    away = znodes.away or f"ZooKeeper {wanted.zookeeper} does not answer"
    text = f"{away}; brokers are made once it shows that their ids are free"
    waits = NotPreparedError(_AWAY, text, waits=True)
    return _hold(context, body, waits, (), "Secured", _unseen(body))


def _refuse(
    context: ReconcileContext, body: Body, meta: ResourceMeta, error: spec.InvalidSpec
) -> float:
    """Report why the spec is invalid, and what is seen of brokers, which go on meanwhile."""
    fields = {**status_update.remembered(body, _SHOWN), **_seen_without(context, body, meta)}
    told = status.stalled(error.reason, error.message)
    status_update.write_status(context, body, told, fields)
    return STEADY_SECONDS


def _seen_without(context: ReconcileContext, body: Body, meta: ResourceMeta) -> dict[str, Any]:
    """Return what is seen of the brokers of a cluster whose spec is invalid."""
    wanted = cluster_spec.read_without_faults(body)
    if wanted is None:
        return _unseen(body)
    live_sets = _live_sets(context, meta, wanted)
    try:
        znodes = _read_znodes(context, body, wanted, fresh=False)
    except (UnreachableError, ZnodeError) as error:
        log.info("%s", error)
        return _unseen(body)
    if znodes.unreadable and not znodes.registered:
        return _unseen(body)
    brokers = broker_steps.present(live_sets) or wanted.brokers
    view = _view(context, body, meta, znodes, live_sets, brokers)
    seen = rollout.status_fields(meta, wanted, view, brokers)
    return {**seen, "proposedReassignment": None}


def _unseen(body: Body) -> dict[str, Any]:
    """Return the fields that stay in the status while nobody knows which brokers are registered."""
    kept = status_update.remembered(body, _SHOWN)
    brokers = [
        {name: value for name, value in one.items() if name not in ("registered", "address")}
        for one in kept["brokers"] or ()
    ]
    return {**kept, "replicas": None, "controllerId": None, "brokers": brokers or None}


def _present_step(wanted: ClusterSpec, live_set: Mapping[str, Any] | None) -> ListenerStep:
    """Return the listeners that brokers have, for a cluster in which nothing may change."""
    target = listener_plan.wanted_plan(wanted)
    try:
        return ListenerStep(listener_plan.applied_plan(live_set) or target)
    except LostPlanError as error:
        return ListenerStep(target, refused=str(error))


def _listener_step(
    context: ReconcileContext,
    body: Body,
    meta: ResourceMeta,
    wanted: ClusterSpec,
    znodes: _Znodes,
    live_sets: LiveSets,
    allowed: BrokerSets,
) -> ListenerStep:
    """Return the listeners that pods get now, on the way to those of the spec."""
    target = listener_plan.wanted_plan(wanted)
    try:
        applied = listener_plan.applied_plan(live_sets[0])
    except LostPlanError as error:
        raise NotPreparedError("ListenersUnknown", str(error)) from None
    if applied is None or (applied.means(target) and applied == applied.settled()):
        return listener_plan.next_step(applied, target, settled=False)
    view = _view(context, body, meta, znodes, live_sets, allowed)
    return listener_plan.next_step(
        applied, target, settled=rollout.is_settled(view), per_node=len(allowed.counts)
    )


def _prepare(
    context: ReconcileContext,
    body: Body,
    meta: ResourceMeta,
    wanted: ClusterSpec,
    step: ListenerStep,
    outside: secured.OutsideHosts,
) -> secured.PreparedListeners | None:
    """Make Secrets and users of the listeners; None: there is one, in plain text.

    Raises NotPreparedError, ChangedError, or KubeError.
    """
    if step.plan.legacy:
        return None
    pods = context.kube.select("v1", "Pod", meta.namespace, cluster_objects.selector_text(meta))
    try:
        return secured.prepare(context, body, meta, wanted, step.plan, pods, outside)
    except RefusedError as error:
        raise NotPreparedError("ZooKeeperRefuses", str(error)) from None
    except UnreachableError as error:
        log.info("%s", error)
        text = f"ZooKeeper {wanted.zookeeper} does not answer; it has the users of brokers"
        raise NotPreparedError(_AWAY, text, waits=True) from None
    except (user_znodes.OvertakenError, TransactionFailedError) as error:
        raise NotPreparedError("UsersNotWritten", str(error), waits=True) from None
    except user_znodes.FullZnodeError as error:
        raise NotPreparedError("UsersTooLarge", str(error)) from None


def _hold(
    context: ReconcileContext,
    body: Body,
    error: NotPreparedError,
    events: Sequence[Event],
    kind: str,
    seen: Mapping[str, Any],
) -> float:
    """Report what listeners, or connections to ZooKeeper, lack, and what is `seen` of brokers.

    Brokers that run go on with what they have.
    """
    judge = status.progressing if error.waits else status.stalled
    conditions = (
        *judge(error.reason, str(error)),
        # What pods have is not known to be less than what they should.
        Condition(kind, None if error.reason == _AWAY else False, error.reason, str(error)),
    )
    fields = {**status_update.remembered(body, _SHOWN), **seen}
    status_update.write_status(context, body, conditions, fields, events)
    return BUSY_SECONDS if error.waits else STEADY_SECONDS


def _certificate_warnings(prepared: secured.PreparedListeners | None) -> tuple[Condition, ...]:
    if prepared is None or not prepared.warnings:
        return ()
    return (Condition("Certificates", False, "HostsNotProven", "; ".join(prepared.warnings)),)


def _given(live_set: Mapping[str, Any] | None) -> str | None:
    """Return what stands for the listeners in the annotations of new pods."""
    if live_set is None:
        return None
    template: Mapping[str, Any] = live_set["spec"]["template"]["metadata"]
    found: str | None = template.get("annotations", {}).get(listener_objects.HASH)
    return found


def _read_znodes(
    context: ReconcileContext, body: Body, wanted: ClusterSpec, *, fresh: bool
) -> _Znodes:
    """Read the znodes, through the cache unless `fresh`. Raises CredentialsError."""
    try:
        zookeeper = zookeeper_login.connected(context, body, wanted)
        reader = zookeeper if fresh else zookeeper.cached
        registered, unreadable = observe.registrations(reader)
        return _Znodes(
            registered,
            observe.addresses(registered),
            observe.controller(reader),
            observe.partitions(reader),
            unreadable=unreadable,
        )
    except CredentialsError:
        raise
    except UnreachableError as error:
        log.info("%s", error)
        # With a login there is more than one reason, which the user must know.
        away = str(error) if wanted.zookeeper_authentication is not None else ""
        return _Znodes({}, {}, None, None, away)


def _settings(body: Body, wanted: ClusterSpec) -> dict[str, Any]:
    name = settings.REMEMBERED
    if wanted.paused:
        return {name: body.get("status", {}).get(name)}
    return {name: settings.names(body, wanted) or None}


def _live_sets(context: ReconcileContext, meta: ResourceMeta, wanted: ClusterSpec) -> LiveSets:
    """Return the StatefulSets as they are, None where there is none; the first is always listed.

    Raises NotOwnError: what somebody else's has says nothing of this cluster's brokers.
    """

    def read(number: int) -> dict[str, Any] | None:
        name = broker_sets.set_name(meta.name, number)
        live = context.kube.get("apps/v1", "StatefulSet", meta.namespace, name)
        own = metadata(meta, name, cluster_objects.labels(meta))
        apply.require_own({"kind": "StatefulSet", "metadata": own}, live)
        return live

    first = read(0)
    many = max(wanted.per_node, broker_steps.sets_so_far(first))
    return [first, *map(read, range(1, many))]


def _view(
    context: ReconcileContext,
    body: Body,
    meta: ResourceMeta,
    znodes: _Znodes,
    live_sets: LiveSets,
    allowed: BrokerSets,
) -> ClusterView:
    pods = context.kube.select("v1", "Pod", meta.namespace, cluster_objects.selector_text(meta))
    brokers = rollout.view_brokers(meta, pods, znodes.addresses, allowed)
    unbound = {
        one["metadata"]["name"]: text for one in pods if (text := apply.why_unbound(context, one))
    }
    brokers = tuple(
        replace(one, trouble=f"{one.trouble}; {unbound[one.pod]}") if one.pod in unbound else one
        for one in brokers
    )
    later: tuple[str | None, ...] = ()
    if allowed.share_nodes:
        brokers = rollout.remember_nodes(brokers, body.get("status", {}).get("brokers", ()))
        later = broker_steps.later_revisions(live_sets, allowed)
    return ClusterView(
        brokers=brokers,
        controller_id=znodes.controller_id,
        partitions=znodes.partitions,
        update_revision=broker_steps.revision(live_sets[0]),
        away=znodes.away,
        later_revisions=later,
        unreadable={one: str(error) for one, error in znodes.unreadable.items()},
    )


def _roll(
    context: ReconcileContext,
    body: Body,
    meta: ResourceMeta,
    wanted: ClusterSpec,
    view: ClusterView,
) -> tuple[ClusterView, list[Event]]:
    """End the next pod that a roll may; return the view with what holds up others, and Events."""
    if rollout.next_to_roll(view) is None:
        return view, []
    pods = context.kube.select("v1", "Pod", meta.namespace, cluster_objects.selector_text(meta))
    view = rollout.mark_closed(view, nodes.closed(context, wanted.tolerations, pods))
    if rollout.next_to_roll(view) is None:
        return view, []
    # Read again without the cache, since a replica may just have left the in-sync set.
    znodes = _read_znodes(context, body, wanted, fresh=True)
    now = replace(view, controller_id=znodes.controller_id, partitions=znodes.partitions)
    broker = rollout.next_to_roll(now)
    if broker is None or broker.pod is None:
        return view, []
    pod = context.kube.get("v1", "Pod", meta.namespace, broker.pod)
    if pod is None or "deletionTimestamp" in pod["metadata"]:
        return view, []
    if claims.is_deleted(context, meta, broker.pod):
        return view, []
    if not apply.still_wanted(context, body):
        return view, []
    try:
        context.kube.delete(pod)
    except KubeError as error:
        if not apply.is_refused(error):
            raise
        why = f"the API server does not let it be restarted: {error}"
        brokers = (
            replace(one, trouble=why) if one.broker_id == broker.broker_id else one
            for one in view.brokers
        )
        return replace(view, brokers=tuple(brokers)), []
    text = f"broker {broker.broker_id} ({broker.pod}) is restarted with the new pod template"
    return view, [Event("BrokerRolled", text)]
