"""Which changes of the operator itself reach the pods of a cluster, and when. Pure.

A cluster follows an upgrade of the operator at once. One that names its image, or takes upgrades on
request, keeps the template of its pods, and the files that they start with, as long as users ask
for the same (`asked`). So nothing is restarted, and a pod that dies comes back as it was. When
something else is asked for, pods become what the operator makes of it now. But with upgrades on
request they have the former image until the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from odradek_operator.cluster import asked
from odradek_operator.cluster.asked import SPEC_HASH
from odradek_operator.cluster.listener_objects import EXPOSED
from odradek_operator.cluster.objects import RACKS, TEMPLATE_HASH
from odradek_operator.cluster.rollout import ClusterView
from odradek_operator.shared import pods
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.objects import Object
from odradek_operator.shared.status import Condition

CONDITION: Final = "UpToDate"
# Keys of the ConfigMap with what changes while brokers run.
_LIVING: Final = (RACKS, EXPOSED)

Live = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WaitingUpgrade:
    """What an upgrade would change in pods: their image, from one to another, or the rest."""

    image: tuple[str, str] | None = None
    rest: bool = False


def image_for(spec: ClusterSpec, own: str, live_sets: Sequence[Live | None]) -> str:
    """Return the image that brokers get now; `own` is the operator's.

    The first StatefulSet tells which one brokers had before: it is the first that gets another.
    """
    if spec.image is not None:
        return spec.image
    first = next((one for one in live_sets if one is not None), None)
    if first is None or not spec.rollout.on_request:
        return own
    if asked.request_for(spec, first) != asked.request_of(first):
        return own
    given: str | None = first["metadata"].get("annotations", {}).get(asked.IMAGE)
    # A StatefulSet of an operator that did not note it tells by its template.
    return given or pods.image_of(first["spec"]["template"]) or own


def held_sets(
    spec: ClusterSpec, wanted: Sequence[Object], live_sets: Sequence[Live | None]
) -> dict[str, Live]:
    """Return the StatefulSets, by name, whose pods only the operator would make differently."""
    if not spec.holds_upgrades:
        return {}
    present = {one["metadata"]["name"]: one for one in live_sets if one is not None}
    found = {}
    for one in wanted:
        live = present.get(one["metadata"]["name"])
        if one["kind"] != "StatefulSet" or live is None:
            continue
        notes, had = one["metadata"]["annotations"], live["metadata"].get("annotations", {})
        same_wishes = notes[SPEC_HASH] == had.get(SPEC_HASH)
        if same_wishes and had.get(TEMPLATE_HASH) not in (None, notes[TEMPLATE_HASH]):
            found[str(one["metadata"]["name"])] = live
    return found


def hold(
    wanted: Sequence[Object], held: Mapping[str, Live], files: Mapping[str, Live | None]
) -> list[Object]:
    """Return the objects, with what StatefulSets that are held have; `files` are ConfigMaps."""
    return [_hold(one, held, files) for one in wanted]


def _hold(one: Object, held: Mapping[str, Live], files: Mapping[str, Live | None]) -> Object:
    name = one["metadata"]["name"]
    if one["kind"] == "StatefulSet" and name in held:
        live = held[name]
        # Of what was last applied, as before.
        mark = {TEMPLATE_HASH: live["metadata"]["annotations"][TEMPLATE_HASH]}
        about = {**one["metadata"], "annotations": {**one["metadata"]["annotations"], **mark}}
        spec = {**one["spec"], "template": live["spec"]["template"]}
        return {**one, "metadata": about, "spec": spec}
    if one["kind"] == "ConfigMap" and (found := files.get(name)) is not None:
        living = {key: one["data"][key] for key in _LIVING if key in one["data"]}
        return {**one, "data": {**one["data"], **found.get("data", {}), **living}}
    return one


def waiting(spec: ClusterSpec, own: str, image: str, held: Mapping[str, Live]) -> WaitingUpgrade:
    """Return what waits, where brokers get this image now; `own` is the operator's."""
    follows = spec.image is None and image != own
    return WaitingUpgrade((image, own) if follows else None, bool(held))


def judge(spec: ClusterSpec, view: ClusterView, waits: WaitingUpgrade) -> tuple[Condition, ...]:
    """Return the condition: whether brokers run as this operator would have them.

    A cluster that follows upgrades has none: it is Reconciling until then.
    """
    if not spec.holds_upgrades:
        return ()
    what = []
    if waits.image is not None:
        what.append(f"image {waits.image[1]} instead of {waits.image[0]}")
    if waits.rest:
        what.append("pods as this version of the operator makes them")
    if what:
        text = f"set spec.rollout.requestId to another value to give brokers {' and '.join(what)}"
        return (Condition(CONDITION, False, "UpgradeWaiting", text),)
    if not view.templates_known or any(map(view.is_outdated, view.staying)):
        return (Condition(CONDITION, False, "Rolling", "brokers get their present template"),)
    if not all(one.registered for one in view.own if one in view.staying or one.pod is None):
        text = "some brokers are away; the rest have their present template"
        return (Condition(CONDITION, None, "BrokersStarting", text),)
    return (Condition(CONDITION, True, "UpToDate"),)
