"""Which listeners brokers have now, and which they get next. Pure.

Brokers of two kinds must understand each other while a cluster is rolled. So a new listener between
brokers takes three rolls: brokers get it beside the former one, then use it, then lose the former
one. Meanwhile they have an authorizer, without which a broker takes requests of brokers on one
listener only. Everything else takes one roll. The plan that pods were last given is an annotation
of the StatefulSet; the next one is not made before all brokers run with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from odradek_operator.shared import cluster_secrets, listener_spec
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.listener_spec import (
    ANONYMOUS,
    NONE,
    TLS,
    AuthorizationSpec,
    IssuerRef,
    ListenerSpec,
    OauthSpec,
)
from odradek_operator.shared.status import Condition

ANNOTATION: Final = "odradek.io/listeners"


@dataclass(frozen=True, slots=True)
class ListenerPlan:
    """The listeners of brokers, and the name of the one between them.

    `former` is the one that brokers which are not restarted yet use between them. `legacy` is the
    cluster without spec.listeners.
    """

    listeners: tuple[ListenerSpec, ...]
    between: str
    former: str
    authorization: AuthorizationSpec | None = None
    legacy: bool = False

    def find(self, name: str) -> ListenerSpec | None:
        """Return the listener of this name."""
        return next((one for one in self.listeners if one.name == name), None)

    @property
    def in_use(self) -> frozenset[str]:
        """Names of the listeners over which brokers may talk at present."""
        return frozenset({self.between, self.former})

    def settled(self) -> ListenerPlan:
        """Return the plan as it is once all brokers run with it."""
        return replace(self, former=self.between)

    def means(self, other: ListenerPlan) -> bool:
        """Return whether brokers do the same with both."""
        return self.settled() == other.settled()


@dataclass(frozen=True, slots=True)
class ListenerStep:
    """The plan to give to pods now. `refused` says why it is not on the way to what is wanted.

    `waits` says what comes when all brokers run with the present plan.
    """

    plan: ListenerPlan
    waits: str = ""
    refused: str = ""


def wanted_plan(spec: ClusterSpec) -> ListenerPlan:
    """Return the plan that a spec asks for in the end."""
    if not spec.listeners:
        plain = ListenerSpec(listener_spec.PLAINTEXT, spec.port)
        return ListenerPlan((plain,), plain.name, plain.name, legacy=True)
    between = listener_spec.broker_listener(spec.listeners).name
    return ListenerPlan(spec.listeners, between, between, spec.authorization)


class LostPlanError(Exception):
    """Nothing says which listeners the brokers of a StatefulSet have."""


def applied_plan(live_set: Mapping[str, Any] | None) -> ListenerPlan | None:
    """Return the plan of a StatefulSet as it is; None where there is none yet.

    Raises LostPlanError if somebody removed or edited its annotation.
    """
    if live_set is None:
        return None
    try:
        return _plan_of(live_set)
    except (KeyError, TypeError, ValueError):
        raise LostPlanError(
            f"StatefulSet {live_set['metadata']['name']} has lost its annotation {ANNOTATION}, "
            "which says what listeners brokers have: put it back, or, if they have those of the "
            "spec, delete the StatefulSet with --cascade=orphan"
        ) from None


def _plan_of(live_set: Mapping[str, Any]) -> ListenerPlan:
    text = live_set["metadata"].get("annotations", {}).get(ANNOTATION)
    if text is not None:
        return decode(text)
    (container,) = live_set["spec"]["template"]["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    plain = ListenerSpec(listener_spec.PLAINTEXT, ports["kafka"])
    return ListenerPlan((plain,), plain.name, plain.name, legacy=True)


def encode(plan: ListenerPlan) -> str:
    """Return a plan as the annotation has it."""
    raw = asdict(plan)
    for one in raw["listeners"]:
        # As plans were written before there were tokens: their brokers need no restart.
        if one["oauth"] is None:
            del one["oauth"]
    return json.dumps(raw, sort_keys=True, separators=(",", ":"))


def decode(text: str) -> ListenerPlan:
    """Read what `encode` wrote."""
    raw = json.loads(text)
    raw["listeners"] = tuple(map(_listener, raw["listeners"]))
    if found := raw["authorization"]:
        supers = tuple(found["super_users"])
        raw["authorization"] = AuthorizationSpec(supers, found["allow_everyone"])
    return ListenerPlan(**raw)


def _listener(raw: Mapping[str, Any]) -> ListenerSpec:
    issuer, oauth = raw["issuer"], raw.get("oauth")
    nested = {
        "issuer": IssuerRef(**issuer) if issuer else None,
        "oauth": OauthSpec(**oauth) if oauth else None,
    }
    return ListenerSpec(**{**raw, **nested})


def next_step(
    applied: ListenerPlan | None, wanted: ListenerPlan, *, settled: bool, per_node: int = 1
) -> ListenerStep:
    """Return the plan to give to pods now.

    `settled` is whether all brokers run with the applied one and all replicas are in sync. Up to
    `per_node` brokers on a node have as many ports of each listener, from its own on.
    """
    if applied is None or (applied.legacy and wanted.legacy):
        return ListenerStep(wanted)
    if settled:
        applied = applied.settled()
    if applied.means(wanted):
        return ListenerStep(applied)
    if refused := _why_unsafe(applied, wanted, per_node):
        return ListenerStep(applied, refused=refused)
    target, what = _towards(applied, wanted)
    if settled or _is_harmless(applied, target):
        former = applied.former if target.between == applied.between else applied.between
        return ListenerStep(replace(target, former=former))
    return ListenerStep(applied, waits=what)


def _why_unsafe(applied: ListenerPlan, wanted: ListenerPlan, per_node: int) -> str:
    for name in sorted(applied.in_use):
        before, after = applied.find(name), wanted.find(name)
        if before is not None and after is not None and before != after:
            return (
                f"brokers use listener {name} between them, so it cannot change: add another one "
                "with another port, named internal or the first, and then take this one out"
            )
    if wanted.between in applied.in_use and applied.between == wanted.between:
        return ""
    kept = {one.name for one in wanted.listeners}
    former = [one for one in applied.listeners if one.name not in kept]
    for one in wanted.listeners:
        for old in former:
            if abs(one.port - old.port) < per_node:
                whole = f"ports {old.port} to {old.port + per_node - 1}"
                return (
                    f"brokers have listener {old.name} on "
                    f"{f'port {old.port}' if per_node == 1 else whole} until all of them "
                    f"have {one.name}: give {one.name} another port"
                )
    return ""


def _towards(applied: ListenerPlan, wanted: ListenerPlan) -> tuple[ListenerPlan, str]:
    """Return the next plan on the way, and what it does."""
    if applied.between == wanted.between:
        gone = [one.name for one in applied.listeners if wanted.find(one.name) is None]
        return wanted, f"brokers lose listeners {', '.join(gone)}" if gone else "brokers change"
    bridge = _bridge(applied, wanted)
    old = tuple(one for one in applied.listeners if wanted.find(one.name) is None)
    union = (*wanted.listeners, *old)
    if set(union) == set(applied.listeners) and applied.authorization == bridge:
        switched = replace(applied, between=wanted.between)
        return switched, f"brokers use listener {wanted.between} between them"
    both = ListenerPlan(union, applied.between, applied.former, bridge)
    return both, f"brokers get listener {wanted.between} beside {applied.between}"


def _bridge(applied: ListenerPlan, wanted: ListenerPlan) -> AuthorizationSpec:
    """Return the authorizer while brokers change from one listener to another.

    It lets in the brokers of both.
    """
    base = wanted.authorization or applied.authorization or AuthorizationSpec((), True)
    before = applied.authorization.super_users if applied.authorization else ()
    used = (applied.find(applied.between), wanted.find(wanted.between))
    unknown = any(one is not None and one.authentication == NONE for one in used)
    supers = (*base.super_users, *before, *((ANONYMOUS,) if unknown else ()))
    return replace(base, super_users=tuple(dict.fromkeys(supers)))


def _is_harmless(applied: ListenerPlan, target: ListenerPlan) -> bool:
    """Return whether brokers of any plan so far understand those of the target."""
    if target.between not in applied.in_use:
        return False
    if any(applied.find(name) != target.find(name) for name in applied.in_use):
        return False
    return applied.between == applied.former or applied.authorization == target.authorization


def broker_principal(cluster: str) -> str:
    """Return whom the certificates of brokers name, as Java writes it."""
    return f"CN={cluster}-broker,O={cluster_secrets.ORGANIZATION}"


def super_users(plan: ListenerPlan, cluster: str) -> tuple[str, ...]:
    """Return the super users of a plan: those of the spec, the brokers and the operator."""
    assert plan.authorization is not None
    found = list(plan.authorization.super_users)
    if any(one.mechanism for one in plan.listeners):
        found += [f"User:{cluster_secrets.BROKER_USER}", f"User:{cluster_secrets.OPERATOR_USER}"]
    if any(one.authentication == TLS for one in plan.listeners):
        found += [f"User:{one}" for one in _certificate_principals(cluster)]
    return tuple(dict.fromkeys(found))


def no_token_users(cluster: str) -> tuple[str, ...]:
    """Return the principals that no token may name, whatever listeners there are.

    An issuer may let its users choose their names. Brokers and the operator are super users, and
    so is everybody without authentication while brokers come from a listener without it.
    """
    own = (f"User:{one}" for one in _certificate_principals(cluster))
    return (f"User:{cluster_secrets.RESERVED_PREFIX}*", ANONYMOUS, *own)


def _certificate_principals(cluster: str) -> tuple[str, str]:
    operator = f"CN={cluster_secrets.OPERATOR_USER},O={cluster_secrets.ORGANIZATION}"
    return broker_principal(cluster), operator


def why_not_secured(plan: ListenerPlan) -> Condition | None:
    """Return the condition Secured with what brokers of this plan leave open; None: nothing."""

    def no(reason: str, text: str) -> Condition:
        return Condition("Secured", False, reason, text)

    def named(found: list[ListenerSpec]) -> str:
        return ", ".join(f"{one.name} ({one.port})" for one in found)

    if plain := [one for one in plan.listeners if not one.tls]:
        return no("PlainText", f"plain text on listeners {named(plain)}")
    if open_ := [one for one in plan.listeners if one.authentication == NONE]:
        return no("NoAuthentication", f"nobody is asked who he is on listeners {named(open_)}")
    if plan.authorization is None:
        return no("NoAuthorization", "everybody who authenticates may do everything")
    if plan.authorization.allow_everyone:
        return no("OpenAuthorization", "what no ACL is about is allowed to everybody")
    return None
