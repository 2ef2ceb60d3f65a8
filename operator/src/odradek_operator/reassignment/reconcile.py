"""One Reassignment: plan, wait for approval, run batch by batch, clean up.

Each reconciliation does at most one thing that cannot be undone, after the status says that it may
have been done. So after a crash at any point the operator resumes from the status and the znodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from odradek.zk import admin, operations, znodes
from odradek.zk.payload import ZnodeError
from odradek_operator.reassignment import reassignment_spec, requests, throttle
from odradek_operator.reassignment import status as reassignment_status
from odradek_operator.reassignment.decide import (
    ReassignmentDecision,
    ReassignmentPlan,
    ReassignmentView,
    arrival,
    arriving,
    decide_moves,
    decide_preferred,
    is_stale,
    look,
    make_plan,
    percent,
)
from odradek_operator.reassignment.placement import Layout, PlanError
from odradek_operator.reassignment.reassignment_spec import ReassignmentSpec
from odradek_operator.reassignment.status import Flags, ReassignmentState, ThrottleProgress
from odradek_operator.reassignment.znodes import broker_configs, read_request
from odradek_operator.shared import apply, kube, observe, spec, status, status_update
from odradek_operator.shared.apply import ReconcileContext, namespace_terminating
from odradek_operator.shared.broker_security import OperatorSecurity
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.spec import TERMINATING_TIMEOUT, Body, ResourceMeta
from odradek_operator.shared.status import Event
from odradek_operator.shared.views import FINISHED_PHASES, ClusterState, Owner, TopicView
from odradek_operator.shared.zookeeper import RefusedError, ZooKeeper

RUNNING_SECONDS: Final = 3.0
WAIT_SECONDS: Final = 10.0
STEADY_SECONDS: Final = 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReassignmentContext:
    """What a Reassignment needs of its cluster. `endpoints` are host and port per broker,
    `security` is what connections to them need.

    `other_running` names another Reassignment that runs, looked up when it matters.
    """

    cluster: ClusterState
    zookeeper: ZooKeeper | None
    endpoints: Mapping[int, tuple[str, int]]
    other_running: Callable[[], str | None]
    security: OperatorSecurity | None = None


def reconcile(context: ReconcileContext, body: Body, around: ReassignmentContext) -> float:
    """Reconcile one Reassignment."""
    run = _Pass(context, body, around)
    try:
        return run.run()
    except RefusedError as error:
        return run.wait("ZooKeeperRefuses", str(error))
    except ZnodeError as error:
        return run.wait("ZnodeUnreadable", f"{error}; {_way_out(error.path)}", stalled=True)


_OR_RETAIN: Final = (
    "to let the resource go, and leave moves and throttle as they are, set spec.deletionPolicy to "
    "Retain"
)


def _way_out(path: str) -> str:
    if path != znodes.REASSIGN_PARTITIONS_PATH:
        return "mend it"
    return "delete it: the controller takes nothing from it, and no request while it is there"


class _Pass:
    def __init__(self, context: ReconcileContext, body: Body, around: ReassignmentContext) -> None:
        self.context = context
        self.body = body
        self.around = around
        self.meta: ResourceMeta = spec.parse_meta(body)
        self.wanted: ReassignmentSpec = reassignment_spec.parse_reassignment(body)
        self.memory: ReassignmentState = reassignment_status.remember(body)
        self.flags = Flags(
            planned=self.memory.plan_hash is not None,
            approved=self.memory.phase == "Running",
            throttle=ThrottleProgress.APPLYING
            if self.memory.throttled
            else ThrottleProgress.ABSENT,
            rolling_back=self.memory.rolling_back,
        )

    def run(self) -> float:
        if self.memory.phase in FINISHED_PHASES:
            return self._after_the_end()
        if self.meta.deleting and not self.meta.has_finalizer:
            return STEADY_SECONDS
        if self.meta.deleting and self.memory.phase != "Running":
            # Nothing was started.
            apply.set_finalizer(self.context, self.body, False)
            return STEADY_SECONDS
        owner = self.around.cluster.owner
        stays = self.wanted.retains or owner is not Owner.PRESENT
        if self.meta.deleting and (stays or self._too_late()):
            text = "abandoned before completion; throttles may remain set"
            self.context.kube.post_event(self.body, Event("Abandoned", text, warning=True))
            apply.set_finalizer(self.context, self.body, False)
            return STEADY_SECONDS
        if owner is not Owner.PRESENT:
            return self.wait(owner.reason, f"KafkaCluster {self.wanted.cluster} is {owner.value}")
        zookeeper = self.around.zookeeper
        if zookeeper is None:
            return self.wait("ZooKeeperUnreachable", self.around.cluster.away)
        if self.around.cluster.paused:
            self.flags = replace(self.flags, paused=True)
            return self.wait("Paused", "the KafkaCluster is paused")
        match self.memory.phase:
            case "Running":
                return self._go_on(zookeeper)
            case "Planned" | "AwaitingApproval":
                return self._wait_for_approval(zookeeper)
            case _:
                return self._plan(zookeeper)

    def _too_late(self) -> bool:
        assert self.meta.deleted is not None
        ending = namespace_terminating(self.context, self.meta.namespace)
        return ending and self.context.now() - self.meta.deleted > TERMINATING_TIMEOUT

    def wait(self, reason: str, message: str, *, stalled: bool = False) -> float:
        """Report why it does not go on; return the seconds until the next look.

        With `stalled` somebody has to do something first.
        """
        fields: dict[str, Any] = {}
        self.flags = replace(self.flags, stalled=stalled)
        if self.memory.phase == "Running":
            # Whatever moves may go on, and nobody sees how far it is.
            self.flags = replace(self.flags, unseen=(reason, message))
            fields["eta"] = None
        if self.meta.deleting:
            message = f"{message}; {_OR_RETAIN}"
        self._report(self.memory.phase or "Pending", reason, message, **fields)
        return WAIT_SECONDS

    def _report(self, phase: str, reason: str, message: str, **fields: Any) -> None:
        """Write the status; fields that are not given stay as they were."""
        before = self.body.get("status", {})
        kept = {name: value for name, value in before.items() if name not in _BUILT}
        conditions = reassignment_status.conditions(phase, reason, message, self.flags)
        self.body = status_update.write_status(
            self.context,
            self.body,
            conditions,
            {
                **kept,
                **fields,
                "phase": phase if phase != "Refused" else "Pending",
                "history": reassignment_status.history(
                    self.body, phase if phase != "Refused" else "Pending", self.context.now()
                ),
            },
        )

    # --- before it runs ---------------------------------------------------------------------

    def _plan(self, zookeeper: ZooKeeper) -> float:
        if self.wanted.cancel:
            return self._end("Cancelled", "cancelled before anything was moved")
        cluster = self.around.cluster
        others = frozenset({*self.around.endpoints, *cluster.wanted})
        # From the cache, since many may wait: before the start, what is to be moved is looked at
        # again without it. So is everything before a refusal, and if nothing is to be moved.
        for reader in (zookeeper.cached, zookeeper):
            topics = observe.topics(reader, observe.topic_names(reader))
            if coming := arriving(self.wanted, topics):
                shown = ", ".join(map(str, coming[:3])) + (", ..." if coming[3:] else "")
                text = f"another reassignment moves {shown} to brokers {list(self.wanted.brokers)}"
                self.flags = replace(self.flags, blocked=text)
                return self.wait("Blocked", f"waiting until that has ended: {text}")
            try:
                plan = make_plan(self.wanted, topics, cluster.brokers, cluster.nodes, others)
            except PlanError as error:
                if error.reason == "BrokerUnavailable":
                    self._report("Pending", error.reason, error.message)
                    return WAIT_SECONDS
                if reader is zookeeper:
                    self._report("Refused", error.reason, error.message)
                    return STEADY_SECONDS
                continue
            if plan.targets:
                break
        else:
            self.flags = replace(self.flags, planned=True, unknown=plan.unknown)
            nothing = {"partitions": {"total": 0, "done": 0, "failed": 0}, "percent": 100}
            text = reassignment_status.nothing_to_move(plan.unknown)
            return self._end("Completed", text, **nothing)
        if self.wanted.mode != "PreferredLeader":
            plan = replace(
                plan, sizes=requests.sizes(self.around.endpoints, plan, self.around.security)
            )
        made = reassignment_status.plan_object(self.meta, plan)
        try:
            self.context.kube.create(made)
        except KubeError as error:
            if error.code in (413, 422):
                self._report("Refused", "PlanTooLarge", f"plan fewer partitions at once: {error}")
                return STEADY_SECONDS
            if apply.is_refused(error):
                # A quota, for instance.
                self._report("Refused", "ApplyRejected", str(error))
                return STEADY_SECONDS
            if error.code != 409:
                raise
        name = made["metadata"]["name"]
        self.flags = replace(self.flags, planned=True)
        approved = not self.wanted.manual or self.wanted.approved == plan.hash
        phase = "Planned" if approved else "AwaitingApproval"
        self._report(
            phase,
            phase,
            self._call_for_approval(plan) if not approved else f"{len(plan.targets)} partitions",
            planHash=plan.hash,
            planRef={"name": name, "key": reassignment_status.PLAN_KEY},
            rollbackRef={"name": name, "key": reassignment_status.ROLLBACK_KEY},
            partitions={"total": len(plan.targets), "done": 0, "failed": 0},
            bytes={"total": plan.total_bytes, "moved": 0} if plan.sizes else None,
            percent=0,
        )
        return 0.0 if approved else STEADY_SECONDS

    def _call_for_approval(self, plan: ReassignmentPlan) -> str:
        text = f"set spec.approvedPlanHash to {plan.hash} to move {len(plan.targets)} partitions"
        if self.wanted.approved:
            text = f"{text}; {self.wanted.approved} is another plan's hash"
        return text

    def _load_plan(self) -> ReassignmentPlan | None:
        if self.memory.plan_name is None:
            return None
        name = self.memory.plan_name
        found = self.context.kube.get("v1", "ConfigMap", self.meta.namespace, name)
        return reassignment_status.read_plan(found, self.memory.plan_hash)

    def _wait_for_approval(self, zookeeper: ZooKeeper) -> float:
        if self.wanted.cancel:
            return self._end("Cancelled", "cancelled before anything was moved")
        plan = self._load_plan()
        if plan is None:
            return self._plan(zookeeper)
        topics, view = self._look(zookeeper, plan)
        # The partitions changed meanwhile, so the approval is for another plan.
        if self.wanted.mode != "PreferredLeader" and is_stale(plan, view):
            if _being_moved(topics):
                self.flags = replace(self.flags, blocked="its partitions are being moved")
                return self.wait(
                    "Blocked", "waiting for another reassignment of its partitions to complete"
                )
            return self._plan(zookeeper)
        if self.wanted.manual and self.wanted.approved != plan.hash:
            self._report("AwaitingApproval", "AwaitingApproval", self._call_for_approval(plan))
            return STEADY_SECONDS
        other = self.around.other_running()
        if other is not None:
            self.flags = replace(self.flags, blocked=f"Reassignment {other} is running")
            return self.wait("Blocked", f"waiting for Reassignment {other} to complete")
        if not self.meta.has_finalizer:
            apply.set_finalizer(self.context, self.body, True)
            return 0.0
        if not apply.still_wanted(self.context, self.body):
            return 0.0
        rate = self.wanted.throttle if self.wanted.mode != "PreferredLeader" else None
        throttled = ThrottleProgress.APPLYING if rate is not None else ThrottleProgress.ABSENT
        self.flags = replace(self.flags, approved=True, throttle=throttled)
        started = reassignment_status.stamp(self.context.now())
        rates = self._rates(zookeeper, plan) if rate is not None else None
        text = "about to submit the first batch"
        self._report("Running", "Running", text, startedAt=started, ratesBefore=rates)
        return 0.0

    # --- while it runs ----------------------------------------------------------------------

    def _look(
        self, zookeeper: ZooKeeper, plan: ReassignmentPlan
    ) -> tuple[dict[str, TopicView], ReassignmentView]:
        # Read the request first: what it asked for and is gone by then shows in the topics.
        requested = read_request(zookeeper, self._request_path)
        topics = observe.topics(zookeeper, sorted({one.topic for one in plan.targets}))
        brokers = frozenset[int](self.around.endpoints)
        return topics, look(plan, topics, brokers, requested)

    @property
    def _request_path(self) -> str:
        preferred = self.wanted.mode == "PreferredLeader"
        return znodes.PREFERRED_ELECTION_PATH if preferred else znodes.REASSIGN_PARTITIONS_PATH

    def _go_on(self, zookeeper: ZooKeeper) -> float:
        plan = self._load_plan()
        if plan is None:
            return self._give_up(zookeeper)
        if not self.meta.has_finalizer and not self.meta.deleting:
            apply.set_finalizer(self.context, self.body, True)
            return 0.0
        topics, view = self._look(zookeeper, plan)
        if unreadable := [one.unreadable for one in topics.values() if one.unreadable is not None]:
            # Its partitions are not gone, and may be moving.
            return self.wait("ZnodeUnreadable", f"{unreadable[0]}; mend it", stalled=True)
        decision = self._decide(plan, view)
        self.flags = replace(
            self.flags,
            blocked=decision.foreign,
            rolling_back=decision.rolling_back,
            missing=f"brokers {sorted(decision.missing)} are not registered"
            if decision.missing
            else None,
            offline=_without_leader(decision) if decision.offline else None,
        )
        if decision.rolling_back != self.memory.rolling_back:
            # Written before it is acted upon: a destination that returns changes nothing any more.
            self._report_progress(plan, decision)
            return 0.0
        rate = self.wanted.throttle if self.wanted.mode != "PreferredLeader" else None
        if decision.ended is not None:
            rate = None
        if rate is not None and not self.memory.throttled:
            self.flags = replace(self.flags, throttle=ThrottleProgress.APPLYING)
            self._report_progress(plan, decision, ratesBefore=self._rates(zookeeper, plan))
            return 0.0
        if self.memory.throttled:
            changes = self._throttle_changes(zookeeper, plan, topics, rate)
            if changes and self.memory.throttle_applied:
                # Written before the changes: any of them may fail.
                self._report_incomplete_throttle(plan, decision, rate)
                return 0.0
            if not all(self._commit(zookeeper, one) for one in changes):
                return apply.SOON_SECONDS
        throttled = ThrottleProgress.PRESENT if rate is not None else ThrottleProgress.ABSENT
        self.flags = replace(self.flags, throttle=throttled)
        if decision.ended is not None:
            return self._finish(plan, decision)
        if decision.submit:
            if not self._submit(zookeeper, topics, decision.submit):
                return apply.SOON_SECONDS
        elif decision.stop:
            controller = observe.controller(zookeeper)
            requests.stop(self.around.endpoints, controller, decision.stop, self.around.security)
        self._report_progress(plan, decision)
        return RUNNING_SECONDS

    def _decide(self, plan: ReassignmentPlan, view: ReassignmentView) -> ReassignmentDecision:
        if self.wanted.mode == "PreferredLeader":
            cancel = self.wanted.cancel or self.meta.deleting
            return decide_preferred(plan, view, cancel=cancel, at_once=self.wanted.at_once)
        return decide_moves(
            plan,
            view,
            cancel=self.wanted.cancel,
            deleting=self.meta.deleting,
            rolling_back=self.memory.rolling_back,
            missing_since=self.memory.missing_since,
            offline_since=self.memory.offline_since,
            at_once=self.wanted.at_once,
            now=self.context.now(),
        )

    def _rates(
        self, zookeeper: ZooKeeper, plan: ReassignmentPlan
    ) -> dict[str, dict[str, str]] | None:
        """Return the rates set by others, to be written to the status before they are replaced."""
        found = broker_configs(zookeeper, throttle.brokers(plan))
        rates = {str(one): throttle.rates(have) for one, (have, _) in found.items()}
        return {one: there for one, there in rates.items() if there} or None

    def _report_progress(
        self, plan: ReassignmentPlan, decision: ReassignmentDecision, **fields: Any
    ) -> None:
        now = self.context.now()
        moved, total = None, 0
        if plan.sizes and decision.rolling_back is None:
            moved = requests.moved(self.around.endpoints, plan, decision, self.around.security)
            total = plan.total_bytes
        if moved is not None:
            fields["bytes"] = {"total": total, "moved": moved}
        if moved is not None or not total:
            fields["percent"] = percent(decision, moved, total)
        # Otherwise both stay as they were when all who copy answered.
        eta = None
        if self.memory.started is not None:
            eta = arrival(self.memory.started, now, moved, total)
        reason, message = _headline(decision)
        self._report(
            "Running",
            reason,
            message,
            partitions=reassignment_status.counts(decision),
            eta=reassignment_status.stamp(eta),
            **fields,
        )

    def _report_incomplete_throttle(
        self, plan: ReassignmentPlan, decision: ReassignmentDecision, rate: int | None
    ) -> None:
        """Report that ZooKeeper does not hold the throttle as it should be now."""
        throttled = ThrottleProgress.APPLYING if rate is not None else ThrottleProgress.REMOVING
        self.flags = replace(self.flags, throttle=throttled)
        told = status.condition_of(self.body["status"], reassignment_status.THROTTLE_APPLIED)
        if (
            rate is not None
            and told is not None
            and told["observedGeneration"] == self.meta.generation
        ):
            text = (
                "somebody changed or removed the throttle, and it is set again; "
                "change spec.throttleBytesPerSec instead"
            )
            self.context.kube.post_event(self.body, Event("ThrottleRestored", text, warning=True))
        self._report_progress(plan, decision)

    def _throttle_changes(
        self,
        zookeeper: ZooKeeper,
        plan: ReassignmentPlan,
        topics: Mapping[str, TopicView],
        rate: int | None,
    ) -> list[list[operations.Operation]]:
        """Return the transactions that set the throttle, or remove it."""
        back = self.memory.rolling_back is not None
        changes: list[list[operations.Operation]] = []
        for broker_id, (have, version) in broker_configs(zookeeper, throttle.brokers(plan)).items():
            wanted = throttle.broker_config(have, rate, self.memory.rates.get(broker_id, {}))
            if wanted != have:
                changes.append(admin.change_config("brokers", str(broker_id), wanted, version))
        for name, topic in topics.items():
            if topic.assignment is None or topic.incarnation != plan.incarnations[name]:
                continue
            entries = dict(topic.config or {})
            wanted = throttle.topic_config(plan, name, entries, on=rate is not None, back=back)
            if wanted != entries:
                version = None if topic.config is None else topic.config_version
                changes.append(admin.change_config("topics", name, wanted, version))
        return changes

    def _commit(self, zookeeper: ZooKeeper, wanted: list[operations.Operation]) -> bool:
        try:
            zookeeper.commit(wanted)
        except operations.TransactionFailedError as error:
            log.info("%s: failed to commit: %s; retrying", self.meta.name, error)
            return False
        return True

    def _submit(self, zookeeper: ZooKeeper, topics: Mapping[str, TopicView], batch: Layout) -> bool:
        """Submit a batch to the controller, conditional on the versions of the topics."""
        if not apply.still_wanted(self.context, self.body):
            return False
        checks = [
            operations.Check(znodes.topic_path(name), topics[name].version)
            for name in sorted({one.topic for one in batch})
        ]
        if self.wanted.mode == "PreferredLeader":
            data = znodes.encode_preferred_election(batch)
        else:
            data = znodes.encode_reassignment(batch)
        log.info("%s: submitting %s", self.meta.name, ", ".join(map(str, batch)))
        return self._commit(zookeeper, [*checks, operations.Create(self._request_path, data)])

    # --- the end ----------------------------------------------------------------------------

    def _finish(self, plan: ReassignmentPlan, decision: ReassignmentDecision) -> float:
        assert decision.ended is not None
        self.flags = replace(self.flags, missing=None, offline=None, blocked=None)
        fields: dict[str, Any] = {
            "partitions": reassignment_status.counts(decision),
            "percent": percent(decision, None, 0),
            "eta": None,
        }
        if decision.ended == "Completed" and plan.sizes:
            fields["bytes"] = {"total": plan.total_bytes, "moved": plan.total_bytes}
        return self._end(decision.ended, reassignment_status.summary(decision), **fields)

    def _give_up(self, zookeeper: ZooKeeper) -> float:
        """End without the plan, which was deleted; remove all throttles."""
        if self.memory.throttled and not self._unthrottle_everything(zookeeper):
            return apply.SOON_SECONDS
        self.flags = replace(self.flags, throttle=ThrottleProgress.ABSENT)
        text = f"the plan's ConfigMap {self.memory.plan_name} is gone; moves in progress continue"
        return self._end("Failed", text)

    def _unthrottle_everything(self, zookeeper: ZooKeeper) -> bool:
        ids = set(self.around.cluster.brokers) | set(self.around.endpoints)
        changes: list[list[operations.Operation]] = []
        for broker_id, (have, version) in broker_configs(zookeeper, ids).items():
            wanted = throttle.broker_config(have, None, self.memory.rates.get(broker_id, {}))
            if wanted != have:
                changes.append(admin.change_config("brokers", str(broker_id), wanted, version))
        topics = observe.topics(zookeeper, observe.topic_names(zookeeper))
        changes += [
            admin.change_config("topics", name, throttle.without(one.config), one.config_version)
            for name, one in topics.items()
            if one.config is not None and throttle.without(one.config) != one.config
        ]
        return all(self._commit(zookeeper, one) for one in changes)

    def _end(self, phase: str, message: str, **fields: Any) -> float:
        finished = reassignment_status.stamp(self.context.now())
        self._report(phase, phase, message, finishedAt=finished, **fields)
        if self.meta.has_finalizer:
            apply.set_finalizer(self.context, self.body, False)
        return self._left()

    def _after_the_end(self) -> float:
        if self.meta.has_finalizer:
            apply.set_finalizer(self.context, self.body, False)
            return STEADY_SECONDS
        if self.meta.deleting:
            return STEADY_SECONDS
        left = self._left()
        if left <= 0:
            fresh = kube.custom(
                self.context.kube, self.meta.kind, self.meta.namespace, self.meta.name
            )
            if fresh is not None and fresh["metadata"]["uid"] == self.meta.uid:
                self.context.kube.delete(fresh)
            return STEADY_SECONDS
        return left

    def _left(self) -> float:
        """Return seconds until a finished Reassignment goes, or the usual pace without an end."""
        lifetime, finished = self.wanted.lifetime, self.memory.finished or self.context.now()
        if lifetime is None or _is_remembered(self.body):
            return 3600.0
        return (finished + lifetime - self.context.now()).total_seconds()


_BUILT: Final = frozenset({"conditions", "observedGeneration", "phase", "history"})


def _is_remembered(body: Body) -> bool:
    """Return whether the Topic that made this would else begin the same move anew."""
    owners = body["metadata"].get("ownerReferences", ())
    of_topic = any(
        (one.get("apiVersion"), one["kind"]) == (spec.API_VERSION, "Topic") for one in owners
    )
    return of_topic and body.get("status", {}).get("phase") != "Completed"


def _being_moved(topics: Mapping[str, TopicView]) -> bool:
    return any(
        one.assignment is not None and (one.assignment.adding or one.assignment.removing)
        for one in topics.values()
    )


def _without_leader(decision: ReassignmentDecision) -> str:
    shown = ", ".join(map(str, sorted(decision.offline)[:5]))
    return f"{len(decision.offline)} partitions have lost their leaders: {shown}"


def _headline(decision: ReassignmentDecision) -> tuple[str, str]:
    """Return reason and message of Ready while it runs: what holds it up, if anything does."""
    text = reassignment_status.summary(decision)
    if decision.foreign is not None:
        return "Blocked", f"waiting for another reassignment: {decision.foreign}; {text}"
    if decision.rolling_back is not None:
        return "RollingBack", f"rolling back, {decision.rolling_back}; {text}"
    if decision.missing:
        return (
            "DestinationMissing",
            f"brokers {sorted(decision.missing)} are not registered; {text}",
        )
    if decision.offline:
        return "PartitionsOffline", f"{_without_leader(decision)}; {text}"
    if decision.absent:
        why = "are not registered, and replicas that stay there are not in sync"
        return "BrokerUnavailable", f"brokers {sorted(decision.absent)} {why}; {text}"
    return "Running", text
