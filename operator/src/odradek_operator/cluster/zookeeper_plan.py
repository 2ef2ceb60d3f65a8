"""How brokers connect to ZooKeeper now, and what comes next. Pure.

Brokers that log in and brokers that do not work together as long as znodes are open to all. So
brokers first get the login, and secure what they create once all of them have it. The way back is
the user's to begin: a broker without the login is not let into znodes that are secured. What pods
were last given is an annotation of the StatefulSet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from odradek.zk import acls
from odradek_operator.shared.objects import digest
from odradek_operator.shared.status import Condition

ANNOTATION: Final = "odradek.io/zookeeper"
# Annotation of pods: whom ZooKeeper takes their brokers for.
MARK: Final = "odradek.io/zookeeper-hash"
CONDITION: Final = "ZooKeeperSecured"
_MOST_NAMES: Final = 5


@dataclass(frozen=True, slots=True)
class ZooKeeperPlan:
    """Whom ZooKeeper takes brokers for (`ZooKeeperCredentials.ids`), and whether they set ACLs."""

    ids: tuple[str, ...] = ()
    set_acl: bool = False


@dataclass(frozen=True, slots=True)
class ZooKeeperStep:
    """The plan to give to pods now. `refused` says why it is not on the way to what is wanted.

    `waits` says what comes when all brokers run with the present plan.
    """

    plan: ZooKeeperPlan
    waits: str = ""
    refused: str = ""


def encode(plan: ZooKeeperPlan) -> str:
    """Return a plan as the annotation has it."""
    return json.dumps(asdict(plan), sort_keys=True, separators=(",", ":"))


def applied_plan(live_set: Mapping[str, Any] | None) -> ZooKeeperPlan | None:
    """Return the plan of a StatefulSet as it is; None where there is none yet.

    One without a readable annotation counts as open: what follows is harmless to any brokers.
    """
    if live_set is None:
        return None
    text = live_set["metadata"].get("annotations", {}).get(ANNOTATION)
    try:
        raw = json.loads(text or "{}")
        return ZooKeeperPlan(tuple(map(str, raw.get("ids", ()))), raw.get("set_acl") is True)
    except (AttributeError, TypeError, ValueError):
        return ZooKeeperPlan()


def next_step(
    applied: ZooKeeperPlan | None,
    wanted: ZooKeeperPlan,
    *,
    settled: bool,
    alive: bool,
    secured: Mapping[str, bool] | None,
) -> ZooKeeperStep:
    """Return the plan to give to pods now.

    `settled` is whether all brokers run with the applied one and all replicas are in sync, `alive`
    whether any may be registered, `secured` which roots of znodes have ACLs; None: nobody knows.
    """
    if applied is None or applied == wanted:
        return ZooKeeperStep(wanted)
    stays = set(applied.ids) <= set(wanted.ids)
    refused = "" if stays else _why_locked_out(applied, alive, secured)
    if refused:
        return ZooKeeperStep(applied, refused=refused)
    secures = applied.set_acl and stays
    ready = settled and applied.ids == wanted.ids
    if wanted.set_acl and alive and not secures and not ready:
        then = "brokers secure what they create in ZooKeeper"
        return ZooKeeperStep(replace(wanted, set_acl=False), waits=then)
    return ZooKeeperStep(wanted)


def _why_locked_out(applied: ZooKeeperPlan, alive: bool, secured: Mapping[str, bool] | None) -> str:
    """Return why brokers cannot become somebody else to ZooKeeper, or nobody."""
    if secured is None:
        return "ZooKeeper does not answer, and its znodes may be secured for the present login"
    # The root alone may be somebody else's: brokers have made nothing in it yet.
    has_znodes = not secured.keys() <= {acls.ROOT}
    roots = _named([root for root, is_secured in secured.items() if is_secured and has_znodes])
    if alive and applied.set_acl:
        return (
            "brokers secure what they create for the present login: first set setAcl to false, "
            "then, with all brokers restarted, run `odradek zookeeper unsecure` in a broker's pod"
        )
    if roots:
        return (
            f"{roots} are secured for the present login, and another one would be locked out: "
            "first run `odradek zookeeper unsecure` in a broker's pod (docs/security.md)"
        )
    return ""


def _named(roots: list[str]) -> str:
    more = " and others" if len(roots) > _MOST_NAMES else ""
    return ", ".join(roots[:_MOST_NAMES]) + more


def stamp(plan: ZooKeeperPlan) -> str:
    """Return what stands for whom pods are to ZooKeeper, in their annotations."""
    return digest([*plan.ids, plan.set_acl])


def judge(
    wanted: ZooKeeperPlan,
    step: ZooKeeperStep,
    marks: Sequence[str | None],
    secured: Mapping[str, bool] | None,
    *,
    tls: bool,
    command: str,
) -> Condition:
    """Return the condition: whether nobody but the brokers' login changes what brokers keep.

    `marks` are those of the brokers' pods, `secured` which roots of znodes have ACLs. `command` is
    the one that secures them.
    """

    def no(reason: str, text: str) -> Condition:
        return Condition(CONDITION, False, reason, text)

    if step.refused:
        return no("UnsafeZooKeeperChange", step.refused)
    if not wanted.ids:
        return no("NoAuthentication", "brokers use TLS, and do not say who they are")
    done = list(marks).count(stamp(step.plan))
    if done < len(marks) or step.plan != wanted:
        text = f"{done} of {len(marks)} brokers run with what they get now"
        return no("Rolling", text + (f"; next, {step.waits}" if step.waits else ""))
    if not wanted.set_acl:
        return no("OpenZnodes", "setAcl is false: everybody may change what brokers create")
    if secured is None:
        text = "the ACLs of znodes cannot be read"
        return Condition(CONDITION, None, "ZooKeeperUnreachable", text)
    if open_ := sorted(root for root, is_secured in secured.items() if not is_secured):
        return no("OpenZnodes", f"everybody may change {_named(open_)}: run {command}")
    how = "over TLS" if tls else "without TLS"
    return Condition(
        CONDITION, True, "Secured", f"brokers authenticate {how}, and the roots have ACLs"
    )
