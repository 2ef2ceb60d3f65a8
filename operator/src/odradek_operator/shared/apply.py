"""What several kinds reconcile with: the context, fresh reads before writes, owned objects.

A reconciliation observes, plans, writes and reports. It may stop after any write; the next one
starts from what exists then. Every write for a resource is preceded by a fresh read of it, since a
watch may lag or may have missed a deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from random import Random
from typing import Any, Final

from odradek_operator.shared import connect_strings, kube, pods, spec
from odradek_operator.shared.kube import Kube, KubeError
from odradek_operator.shared.objects import is_foreign
from odradek_operator.shared.spec import FINALIZER, Body
from odradek_operator.shared.status import Condition
from odradek_operator.shared.zookeeper import Pool

SOON_SECONDS: Final = 0.2
# The condition about volumes that shall grow.
GROWN: Final = "StorageGrown"
# The API server rejected the request: report why to the user, and do not retry at once.
REFUSALS: Final = frozenset({400, 403, 422})

log = logging.getLogger(__name__)
_UTC_NOW: Final = partial(datetime.now, UTC)


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """Lag exporters or consoles of the installation: their image, options and pod fields.

    `arguments` are options beside those that a cluster's spec gives, `pod` holds fields of a pod's
    spec (nodeSelector, tolerations), `resources` those of the container.
    """

    image: str
    arguments: tuple[str, ...] = ()
    resources: Mapping[str, Any] = field(default_factory=dict)
    pod: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Platform:
    """Settings of the operator's installation for all pods; `image` is that of jobs.

    Drivers and executors get the pull secrets by their accounts, which have these annotations.
    Without `exporter` clusters have no lag exporter, without `console` no console.
    """

    image: str
    pull_policy: str
    pull_secrets: tuple[str, ...] = ()
    exporter: WorkloadSettings | None = None
    console: WorkloadSettings | None = None
    account_annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReconcileContext:
    """What reconciling needs. `remember` stores a body that was written, `forget` drops
    one that is gone. `home` is the namespace of the operator's pod, None outside of pods.
    """

    kube: Kube
    zookeepers: Pool
    broker_image: str
    platform: Platform
    remember: Callable[[Body], object]
    forget: Callable[[Body], None]
    now: Callable[[], datetime] = _UTC_NOW
    random: Random = field(default_factory=Random)
    home: str | None = None

    def connect_from_here(self, connect: str, namespace: str) -> str:
        """Return the connect string of a ZooKeeper as pods of `namespace` know it, for this pod.

        Elsewhere a short name would be that of another Service: of another cluster's znodes.
        """
        if self.home in (None, namespace):
            return connect
        return connect_strings.qualified(connect, namespace)


def still_wanted(context: ReconcileContext, body: Body) -> bool:
    """Return whether the resource is still as it was read; if not, its new form is remembered.

    One that was made anew under its name is not: only what the watch tells as news is looked at,
    and it may be of another cluster.
    """
    meta = body["metadata"]
    fresh = kube.custom(context.kube, body["kind"], meta["namespace"], meta["name"])
    if fresh is None or fresh["metadata"]["uid"] != meta["uid"]:
        context.forget(body)
        return False
    same = is_same(fresh, body)
    if not same:
        context.remember(fresh)
    return same


def is_same(one: Body, other: Body) -> bool:
    """Return whether two bodies of a resource want the same."""
    return all(
        one["metadata"].get(name) == other["metadata"].get(name)
        for name in ("generation", "deletionTimestamp")
    )


def older_rival(context: ReconcileContext, body: Body, rivals: Iterable[Body]) -> str | None:
    """Return the oldest rival that is older than this resource and still exists."""
    uid = body["metadata"]["uid"]
    by_age = sorted([*rivals, body], key=age)
    older = takewhile(lambda one: one["metadata"]["uid"] != uid, by_age)
    return _first_name(body, _existing(context, older))


def staying_rival(context: ReconcileContext, body: Body, rivals: Iterable[Body]) -> str | None:
    """Return a rival, older or younger, that still exists and is not being deleted itself."""
    uid = body["metadata"]["uid"]
    others = (one for one in rivals if one["metadata"]["uid"] != uid)
    existing = _existing(context, others)
    staying = (one for one in existing if "deletionTimestamp" not in one["metadata"])
    return _first_name(body, staying)


def _existing(context: ReconcileContext, rivals: Iterable[Body]) -> Iterator[Body]:
    for rival in rivals:
        meta = rival["metadata"]
        fresh = kube.custom(context.kube, rival["kind"], meta["namespace"], meta["name"])
        if fresh is not None and fresh["metadata"]["uid"] == meta["uid"]:
            yield fresh
        else:
            context.forget(rival)


def _first_name(body: Body, others: Iterable[Body]) -> str | None:
    namespace = body["metadata"]["namespace"]
    return next((spec.shown(namespace, one["metadata"]) for one in others), None)


def age(body: Body) -> tuple[str, str]:
    """Return the sort key that orders resources from the oldest to the youngest."""
    return body["metadata"]["creationTimestamp"], body["metadata"]["uid"]


def set_finalizer(context: ReconcileContext, body: Body, present: bool) -> None:
    """Add or take away the operator's finalizer; a race is lost without harm."""
    meta = body["metadata"]
    fresh = kube.custom(context.kube, body["kind"], meta["namespace"], meta["name"])
    if fresh is None or fresh["metadata"]["uid"] != meta["uid"]:
        context.forget(body)
        return
    others = [one for one in fresh["metadata"].get("finalizers", ()) if one != FINALIZER]
    if present and "deletionTimestamp" in fresh["metadata"]:
        # Without it this would be tried again at once, until the watch tells of the deletion.
        context.remember(fresh)
        return
    changed = context.kube.set_finalizers(fresh, [*others, FINALIZER] if present else others)
    if "deletionTimestamp" in changed["metadata"] and not changed["metadata"].get("finalizers"):
        context.forget(body)
    else:
        context.remember(changed)


def apply_object(context: ReconcileContext, wanted: Mapping[str, Any]) -> bool:
    """Apply an owned object if it differs; True if something was written."""
    if not differs(context, wanted):
        return False
    context.kube.apply(wanted)
    return True


def is_refused(error: KubeError) -> bool:
    """Return whether the API server rejected a request, or a webhook that it asks did or failed.

    A webhook may answer with any code, and one that does not answer makes it 500.
    """
    text = str(error)
    asked = "failed calling webhook" in text or "admission webhook " in text
    return error.code in REFUSALS or (error.code > 0 and asked)


class NotOwnError(KubeError):
    """Somebody else's object has the name of an owned one: refused before the API server is asked.

    Applied, it would be changed, and be deleted together with its new owner.
    """

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        (owner, *_), name = wanted["metadata"]["ownerReferences"], wanted["metadata"]["name"]
        whose = f"{owner['kind']} {owner['name']}"
        super().__init__(
            0, f"{wanted['kind']} {name} exists and is not of {whose}: delete or rename it"
        )
        self.code = 422


def require_own(wanted: Mapping[str, Any], live: Mapping[str, Any] | None) -> None:
    """Raise NotOwnError if somebody else's object has the name of an owned one."""
    if live is not None and is_foreign(wanted, live):
        raise NotOwnError(wanted)


def differs(context: ReconcileContext, wanted: Mapping[str, Any]) -> bool:
    """Return whether an owned object must be applied. Raises NotOwnError."""
    meta = wanted["metadata"]
    live = context.kube.get(wanted["apiVersion"], wanted["kind"], meta["namespace"], meta["name"])
    require_own(wanted, live)
    return live is None or kube.differs(wanted, live)


def grow_claim(context: ReconcileContext, live: Mapping[str, Any], size: str) -> Condition | None:
    """Request a larger volume for a claim, and return what holds it up: a class that cannot expand.

    None: the volume is that large, or the claim has none yet.
    """
    name, has = live["metadata"]["name"], live["spec"]["resources"]["requests"]["storage"]
    if not kube.same_quantity(has, size):
        try:
            live = context.kube.apply(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": name, "namespace": live["metadata"]["namespace"]},
                    "spec": {"resources": {"requests": {"storage": size}}},
                }
            )
        except KubeError as error:
            if not is_refused(error):
                raise
            why = _why_rejected(live, has, size, error)
            return Condition(GROWN, False, "ResizeRejected", why)
    # Of a volume that is not bound yet there is none.
    capacity = live.get("status", {}).get("capacity", {}).get("storage")
    if capacity is None or not kube.is_less(capacity, size):
        return None
    return Condition(GROWN, False, "Resizing", f"volume {name} has {capacity} of {size}")


def has_grown() -> Condition:
    """Return the condition of volumes that are as large as the spec says."""
    return Condition(GROWN, True, "AsSpecified")


def _why_rejected(claim: Mapping[str, Any], has: str, size: str, error: KubeError) -> str:
    """Return the API server's words about a claim of another size, and what to do."""
    name = claim["metadata"]["name"]
    if kube.is_less(size, has):
        return f"{error}; claim {name} has {has}, and no volume shrinks: raise the size to that"
    kept = f"{error}; claim {name} keeps {has}"
    if "support resize" not in str(error):
        # A quota, for instance.
        return kept
    if not (storage_class := claim["spec"].get("storageClassName")):
        return f"{kept}: without a StorageClass a volume does not grow"
    grows = f"set allowVolumeExpansion: true in its StorageClass {storage_class}"
    back = f"or set the size to {has} again"
    return f"{kept}: {grows}, if the driver of that can make volumes grow, {back}"


def why_unbound(context: ReconcileContext, pod: Mapping[str, Any]) -> str | None:
    """Return which claim of a pod that gets no node has no volume; None: it is not for that."""
    if "nodeName" in pod["spec"] or pods.pending_reason(pod) is None:
        return None
    for name in pods.claims(pod):
        space = pod["metadata"]["namespace"]
        live = context.kube.get("v1", "PersistentVolumeClaim", space, name)
        if live is None or live.get("status", {}).get("phase") != "Pending":
            continue
        # Admission fills in the default class.
        lacks = "it names no StorageClass, and there was no default one"
        if storage_class := live["spec"].get("storageClassName"):
            # Some classes have none before the pod has a node, which may lack something else.
            lacks = f"it has no volume of StorageClass {storage_class} yet"
        return f"claim {name} is Pending: {lacks}; see kubectl describe pvc {name}"
    return None


def namespace_terminating(context: ReconcileContext, namespace: str) -> bool:
    """Return whether the namespace itself is being deleted; False where that cannot be read."""
    try:
        found: dict[str, Any] | None = context.kube.get("v1", "Namespace", "", namespace)
    except KubeError as error:
        if error.code != 403:
            raise
        return False
    return found is not None and "deletionTimestamp" in found["metadata"]
