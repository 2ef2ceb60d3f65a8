"""One User: its Secret, then its ACLs, quotas and credentials in ZooKeeper, then its status.

The Secret comes first, since it holds the password. What ZooKeeper is to hold is claimed in the
status before it is written, so that the resource knows what is its own, wherever it was stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from odradek.zk.operations import TransactionFailedError
from odradek.zk.payload import ZnodeError
from odradek_operator.shared import apply, spec, status, status_update, user_znodes
from odradek_operator.shared.apply import SOON_SECONDS, ReconcileContext
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.spec import TERMINATING_TIMEOUT, Body, InvalidSpec, ResourceMeta
from odradek_operator.shared.status import Condition, Event
from odradek_operator.shared.user_znodes import FullZnodeError, OvertakenError
from odradek_operator.shared.views import Owner
from odradek_operator.shared.zookeeper import RefusedError, ZnodeReader, ZooKeeper
from odradek_operator.user import plan, secret_step, user_spec
from odradek_operator.user.plan import Target, UserCluster
from odradek_operator.user.secret_step import SecretPlan
from odradek_operator.user.user_spec import UserSpec, WrittenByUser

# Nobody watches Secrets: the operator may read those whose names it knows, and list none.
STEADY_SECONDS: Final = 60.0
WAIT_SECONDS: Final = 10.0
# A deletion waits for ZooKeeper; it is over within seconds of its return.
AWAY_SECONDS: Final = 2.0
_REMEMBERED: Final = ("username", "secret", "mechanisms", "quotas", "acls")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _UserRun:
    """One reconciliation of one User that is not being deleted."""

    context: ReconcileContext
    body: Body
    meta: ResourceMeta
    wanted: UserSpec
    cluster: UserCluster
    zookeeper: ZooKeeper
    written: WrittenByUser


def reconcile(
    context: ReconcileContext, body: Body, cluster: UserCluster, zookeeper: ZooKeeper | None
) -> float:
    """Bring one user nearer to its spec; return the seconds until the next look."""
    meta = spec.parse_meta(body)
    if meta.deleting:
        return _delete(context, body, meta, cluster, zookeeper)
    try:
        wanted = user_spec.parse(body)
    except InvalidSpec as error:
        return status_update.refuse(context, body, error, _REMEMBERED)
    refused = plan.refuse(wanted, cluster)
    if refused is not None:
        _tell(context, body, cluster, refused)
        return AWAY_SECONDS if not cluster.state.reachable else WAIT_SECONDS
    assert zookeeper is not None
    run = _UserRun(context, body, meta, wanted, cluster, zookeeper, user_spec.written(body))
    paused = wanted.paused or cluster.state.paused
    if not paused and not meta.has_finalizer:
        # Before anything is written, so that no deletion is missed.
        apply.set_finalizer(context, body, True)
        return 0.0
    try:
        found = secret_step.look(context, meta, wanted)
        if isinstance(found, tuple):
            _tell(context, body, cluster, found)
            return WAIT_SECONDS
        return _paused(run, found) if paused else _carry_out(run, found)
    except KubeError as error:
        if not apply.is_refused(error):
            raise
        _tell(context, body, cluster, status.stalled("SecretRejected", str(error)))
        return WAIT_SECONDS
    except (ZnodeError, FullZnodeError) as error:
        reason = "ZnodeUnreadable" if isinstance(error, ZnodeError) else "TooManyAcls"
        _tell(context, body, cluster, status.stalled(reason, str(error)))
        return WAIT_SECONDS
    except RefusedError as error:
        _tell(context, body, cluster, status.stalled("ZooKeeperRefuses", str(error)))
        return WAIT_SECONDS
    except (OvertakenError, TransactionFailedError) as error:
        log.info("%s: failed to commit: %s; retrying", meta.name, error)
        return SOON_SECONDS


def _tell(
    context: ReconcileContext, body: Body, cluster: UserCluster, conditions: Iterable[Condition]
) -> None:
    """Report why nothing is written; what the resource wrote stays in the status."""
    is_paused = bool(body["spec"].get("paused")) or cluster.state.paused
    told = (*conditions, status.paused(is_paused))
    status_update.write_status(context, body, told, status_update.remembered(body, _REMEMBERED))


def _target(wanted: UserSpec, found: SecretPlan) -> Target:
    return Target(wanted.mechanism, found.password, wanted.quotas, wanted.acls)


@dataclass(frozen=True, slots=True)
class _Changes:
    """What differs in ZooKeeper."""

    entries: dict[str, str | None]
    missing: dict[Any, list[Any]]
    obsolete: dict[Any, list[Any]]

    def __bool__(self) -> bool:
        return bool(self.entries or self.missing or self.obsolete)


def _compare(
    reader: ZnodeReader, username: str, target: Target, written: WrittenByUser
) -> _Changes:
    entries = user_znodes.read_entries(reader, [username])[username]
    patterns = {one.pattern for one in (*target.acls, *written.acls)}
    acls = user_znodes.read_acls(reader, patterns)
    return _Changes(
        plan.entry_changes(target, written, entries),
        plan.missing_acls(target, acls),
        plan.obsolete_acls(target, written, acls),
    )


def _paused(run: _UserRun, found: SecretPlan) -> float:
    target = _target(run.wanted, found)
    changes = _compare(run.zookeeper.cached, run.wanted.username, target, run.written)
    why = "spec.paused is true" if run.wanted.paused else "the KafkaCluster is paused"
    health = status.stalled("Paused", f"{why}; changes are pending")
    if not changes and not found.is_due:
        health = status.ready("Paused", why)
    told = (*health, plan.effective(run.wanted, run.cluster), status.paused(True))
    kept = status_update.remembered(run.body, _REMEMBERED)
    status_update.write_status(run.context, run.body, told, kept)
    return STEADY_SECONDS


def _carry_out(run: _UserRun, found: SecretPlan) -> float:
    """Write what differs, and the status."""
    target, user = _target(run.wanted, found), run.wanted.username
    changes = _compare(run.zookeeper.cached, user, target, run.written)
    if changes or found.is_due:
        if not apply.still_wanted(run.context, run.body):
            return SOON_SECONDS
        if not secret_step.carry_out(run.context, found):
            return SOON_SECONDS
        untrusted = secret_step.why_untrusted(run.context, run.meta, run.wanted.cluster, found)
        if untrusted is not None:
            _tell(run.context, run.body, run.cluster, untrusted)
            return SOON_SECONDS
    body = run.body
    if changes:
        claimed = plan.claim(target, run.written)
        if not plan.fits(claimed):
            # After a change that was interrupted, and another: what is not wanted goes first.
            left = plan.without_new_acls(target, run.written)
            _apply_acls(run.zookeeper, left, run.written)
            claimed = replace(claimed, acls=target.acls)
        if claimed != run.written:
            body = _claim(run, body, claimed, found)
            if body is run.body:
                return SOON_SECONDS
        _apply(run.zookeeper, user, target, claimed)
    effect = plan.effective(run.wanted, run.cluster)
    message = "" if effect.status else effect.message
    told = (*status.ready("Synced", message), effect, status.paused(False))
    fields = plan.fields(user, found.name, plan.owned(target))
    status_update.write_status(run.context, body, told, fields, _events(run, found, changes))
    return STEADY_SECONDS


def _claim(run: _UserRun, body: Body, claimed: WrittenByUser, found: SecretPlan) -> Body:
    """Write what is about to be written into the status; return the same body if that failed."""
    is_new = not run.body.get("status", {}).get("username")
    reason = status.CREATING if is_new else "Updating"
    health = status.progressing(reason, "writing what differs to ZooKeeper")
    fields = plan.fields(run.wanted.username, found.name, claimed)
    told = (*health, status.paused(False))
    after = status_update.write_status(run.context, body, told, fields)
    same = all(
        body["metadata"].get(one) == after["metadata"].get(one)
        for one in ("generation", "deletionTimestamp")
    )
    return after if same else body


def _apply(zookeeper: ZooKeeper, username: str, target: Target, written: WrittenByUser) -> None:
    """Bring ZooKeeper to the target: rights before credentials, and the other way at the end."""
    change = partial(plan.entry_changes, target, written)
    acls = partial(_apply_acls, zookeeper, target, written)
    if target.mechanism is None:
        user_znodes.update_entries(zookeeper, username, change)
        acls()
    else:
        acls()
        user_znodes.update_entries(zookeeper, username, change)


def _apply_acls(zookeeper: ZooKeeper, target: Target, written: WrittenByUser) -> None:
    present = user_znodes.read_acls(
        zookeeper, {one.pattern for one in (*target.acls, *written.acls)}
    )
    missing = plan.missing_acls(target, present)
    obsolete = plan.obsolete_acls(target, written, present)
    for pattern in {**missing, **obsolete}:
        added, removed = missing.get(pattern, ()), obsolete.get(pattern, ())
        user_znodes.update_acls(zookeeper, pattern, added, removed)


def _events(run: _UserRun, found: SecretPlan, changes: _Changes) -> list[Event]:
    """Return the Events of what was done: a change that was asked for, or that was made undone."""
    told = [] if found.event is None else [found.event]
    if not changes:
        return told
    text = plan.describe(changes.entries, changes.missing, changes.obsolete)
    body = run.body
    ready = status.condition_of(body.get("status", {}), "Ready")
    if ready is None or not user_spec.is_known(body):
        return [*told, Event("UserCreated", text)]
    was_synced = ready["reason"] == "Synced" and ready["observedGeneration"] == run.meta.generation
    if was_synced and found.event is None:
        return [*told, Event("UserRestored", f"ZooKeeper differed from the spec: {text}", True)]
    return [*told, Event("UserUpdated", text)]


# --- deletion -------------------------------------------------------------------------------------


def _delete(
    context: ReconcileContext,
    body: Body,
    meta: ResourceMeta,
    cluster: UserCluster,
    zookeeper: ZooKeeper | None,
) -> float:
    """Remove what the resource wrote, then its finalizer; the garbage collector has the Secret.

    With spec.deletionPolicy Retain, which may still be set, what it wrote stays.
    """
    if not meta.has_finalizer:
        return STEADY_SECONDS
    written, user, state = user_spec.written(body), user_spec.username(body), cluster.state
    reachable = state.owner in (Owner.PRESENT, Owner.TERMINATING) and zookeeper is not None
    if body["spec"].get("deletionPolicy") == "Retain":
        if written != WrittenByUser():
            text = f"what user {user} has in ZooKeeper is retained there"
            context.kube.post_event(body, Event("UserRetained", text))
    elif not reachable and written != WrittenByUser():
        why = _why_abandoned(context, meta, cluster)
        if why is None:
            away = status.progressing("ZooKeeperUnreachable", f"{state.away}; {_OR_RETAIN}")
            _tell(context, body, cluster, away)
            return AWAY_SECONDS
        text = f"what user {user} has in ZooKeeper was not removed: {why}"
        context.kube.post_event(body, Event("UserAbandoned", text, warning=True))
    elif written != WrittenByUser():
        assert zookeeper is not None
        if body["spec"].get("paused") or state.paused:
            told = status.stalled("Paused", "paused; deletion is pending")
            _tell(context, body, cluster, told)
            return WAIT_SECONDS
        try:
            _remove(zookeeper, user, written)
        except (OvertakenError, TransactionFailedError) as error:
            log.info("%s: failed to commit: %s; retrying", meta.name, error)
            return SOON_SECONDS
        except ZnodeError as error:
            text = f"{error}; mend it, or {_OR_RETAIN}"
            _tell(context, body, cluster, status.stalled("ZnodeUnreadable", text))
            return WAIT_SECONDS
        except RefusedError as error:
            text = f"{error}; {_OR_RETAIN}"
            _tell(context, body, cluster, status.stalled("ZooKeeperRefuses", text))
            return WAIT_SECONDS
        text = f"removed the credentials, ACLs and quotas of user {user}"
        context.kube.post_event(body, Event("UserDeleted", text))
    apply.set_finalizer(context, body, False)
    return SOON_SECONDS


def _remove(zookeeper: ZooKeeper, username: str, written: WrittenByUser) -> None:
    """Remove what the resource wrote; a znode that cannot be changed holds up no other.

    Raises the first of their errors at the end.
    """
    change = partial(plan.entry_changes, Target(), written)
    removals: list[Callable[[], object]] = [
        partial(user_znodes.update_entries, zookeeper, username, change),
        *(
            partial(user_znodes.update_acls, zookeeper, pattern, (), entries)
            for pattern, entries in plan.written_acls(written).items()
        ),
    ]
    failures: list[ZnodeError | RefusedError] = []
    for remove in removals:
        try:
            remove()
        except (ZnodeError, RefusedError) as error:
            failures.append(error)
    if failures:
        raise failures[0]


_OR_RETAIN: Final = (
    "to let the resource go, and leave in ZooKeeper what the user has there, set "
    "spec.deletionPolicy to Retain"
)


def _why_abandoned(
    context: ReconcileContext, meta: ResourceMeta, cluster: UserCluster
) -> str | None:
    """Return why a deletion cannot wait for ZooKeeper; None: it can."""
    if cluster.state.owner is not Owner.PRESENT:
        return f"its cluster is {cluster.state.owner.value}"
    assert meta.deleted is not None
    ending = apply.namespace_terminating(context, meta.namespace)
    if ending and context.now() - meta.deleted > TERMINATING_TIMEOUT:
        return "its namespace is being deleted"
    return None
