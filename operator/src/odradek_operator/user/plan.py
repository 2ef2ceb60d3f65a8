"""What to do about a User: pure functions of its spec, its status and what ZooKeeper holds.

    spec (UserSpec) + status (WrittenByUser) + znodes -> entries and ACLs to set and to remove

Only what the status says that this resource wrote is ever removed. So what is about to be written
stands in the status first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from odradek.quotas.entities import QuotaKey, parse_limits
from odradek.security import acl_znodes
from odradek.security.acls import AclBinding, AclEntry, ResourcePattern
from odradek_operator.shared import listener_spec, status, user_znodes
from odradek_operator.shared.spec import Body
from odradek_operator.shared.status import Condition
from odradek_operator.shared.views import ClusterState, Owner
from odradek_operator.user import user_spec
from odradek_operator.user.user_spec import UserSpec, WrittenByUser

EFFECTIVE: Final = "Effective"
# Of the status; the spec has fewer.
MOST_ACLS: Final = 500
_SHOWN: Final = 5

Acls = Mapping[ResourcePattern, Sequence[AclEntry]]


@dataclass(frozen=True, slots=True)
class UserCluster:
    """What a User needs to know of its cluster.

    `authentications` are those that its listeners ask for, `authorizes` says whether it asks for
    ACLs, `super_users` are principals.
    """

    state: ClusterState
    authentications: frozenset[str] = frozenset()
    authorizes: bool = False
    super_users: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Target:
    """What a user shall have in ZooKeeper; by default nothing."""

    mechanism: str | None = None
    password: str = field(default="", repr=False)
    quotas: Mapping[QuotaKey, float] = field(default_factory=dict)
    acls: tuple[AclBinding, ...] = ()


def view_cluster(state: ClusterState, body: Body | None) -> UserCluster:
    """Return what a User needs to know of a KafkaCluster."""
    if body is None:
        return UserCluster(state)
    spec = body["spec"]
    # Those of a cluster whose only listener is plain stand in its config.
    config = spec["brokers"].get("config", {})
    authorization = listener_spec.parse_authorization(spec)
    super_users = {one.strip() for one in config.get("super.users", "").split(";")}
    super_users |= set(authorization.super_users if authorization else ())
    return UserCluster(
        state,
        frozenset(one.authentication for one in listener_spec.parse_listeners(spec)),
        authorization is not None or bool(config.get("authorizer.class.name")),
        frozenset(super_users - {""}),
    )


def refuse(wanted: UserSpec, cluster: UserCluster) -> tuple[Condition, ...] | None:
    """Return the conditions of a User for which nothing can be written now; None: go on."""
    state = cluster.state
    if state.owner is not Owner.PRESENT:
        text = f"KafkaCluster {wanted.cluster} is {state.owner.value}"
        return status.progressing(state.owner.reason, text)
    if f"User:{wanted.username}" in cluster.super_users:
        text = (
            f"User:{wanted.username} is a super user of KafkaCluster {wanted.cluster}: who can "
            "write a User could become it"
        )
        return status.stalled("SuperUser", text)
    if not state.reachable:
        return status.progressing("ZooKeeperUnreachable", state.away)
    return None


def entry_changes(
    target: Target, written: WrittenByUser, present: Mapping[str, str]
) -> dict[str, str | None]:
    """Return which entries of /config/users to set, and with None to remove."""
    changes: dict[str, str | None] = {}
    for mechanism in written.mechanisms:
        if mechanism in present and mechanism != target.mechanism:
            changes[mechanism] = None
    if target.mechanism is not None:
        entry = present.get(target.mechanism)
        if not user_znodes.is_of_password(entry, target.mechanism, target.password):
            changes[target.mechanism] = user_znodes.scram_entry(target.mechanism, target.password)
    limits, _ = parse_limits(present)
    wanted = user_znodes.quota_entries(target.quotas)
    for key in QuotaKey:
        value = target.quotas.get(key)
        if value is None:
            if key.value in written.quotas and key.value in present:
                changes[key.value] = None
        elif limits.get(key) != float(value):
            # Compared as it is read: not each number of 64 bits is a float.
            changes[key.value] = wanted[key.value]
    return changes


def missing_acls(target: Target, present: Acls) -> dict[ResourcePattern, list[AclEntry]]:
    """Return the ACLs to add, by pattern."""
    return _by_pattern(one for one in target.acls if one.entry not in present.get(one.pattern, ()))


def obsolete_acls(
    target: Target, written: WrittenByUser, present: Acls
) -> dict[ResourcePattern, list[AclEntry]]:
    """Return the ACLs to remove, by pattern: those that this resource wrote."""
    kept = frozenset(target.acls)
    return _by_pattern(
        one for one in written.acls if one not in kept and one.entry in present.get(one.pattern, ())
    )


def written_acls(written: WrittenByUser) -> dict[ResourcePattern, list[AclEntry]]:
    """Return the ACLs that this resource wrote, by pattern."""
    return _by_pattern(written.acls)


def _by_pattern(bindings: Iterable[AclBinding]) -> dict[ResourcePattern, list[AclEntry]]:
    found: dict[ResourcePattern, list[AclEntry]] = {}
    for pattern, entry in bindings:
        found.setdefault(pattern, []).append(entry)
    return found


def claim(target: Target, written: WrittenByUser) -> WrittenByUser:
    """Return what the status must say before anything is written.

    What is to be removed is still among it.
    """
    own = owned(target)
    return WrittenByUser(
        tuple(dict.fromkeys((*own.mechanisms, *written.mechanisms))),
        tuple(dict.fromkeys((*own.quotas, *written.quotas))),
        tuple(dict.fromkeys((*own.acls, *written.acls))),
    )


def fits(claimed: WrittenByUser) -> bool:
    """Return whether the status can hold it, which one change of the spec cannot exceed."""
    return len(user_spec.shown_acls(claimed.acls)) <= MOST_ACLS


def without_new_acls(target: Target, written: WrittenByUser) -> Target:
    """Return a target whose ACLs are those that are written already."""
    return replace(target, acls=tuple(one for one in target.acls if one in set(written.acls)))


def owned(target: Target) -> WrittenByUser:
    """Return what the status says once everything is as wanted."""
    mechanisms = () if target.mechanism is None else (target.mechanism,)
    quotas = tuple(one.value for one in QuotaKey if one in target.quotas)
    return WrittenByUser(mechanisms, quotas, target.acls)


def fields(username: str, secret: str | None, written: WrittenByUser) -> dict[str, Any]:
    """Return the fields of the status."""
    return {
        "username": username,
        "secret": secret,
        "mechanisms": list(written.mechanisms) or None,
        "quotas": list(written.quotas) or None,
        "acls": user_spec.shown_acls(written.acls) or None,
    }


def effective(wanted: UserSpec, cluster: UserCluster) -> Condition:
    """Return whether the cluster asks for what this User says."""
    if wanted.listener not in cluster.authentications:
        text = (
            f"no listener of KafkaCluster {wanted.cluster} has authentication {wanted.listener}, "
            f"so nobody can be {wanted.username} yet"
        )
        return Condition(EFFECTIVE, False, "NoListener", text)
    if wanted.acls and not cluster.authorizes:
        text = f"KafkaCluster {wanted.cluster} has no authorization: it does not ask for ACLs"
        return Condition(EFFECTIVE, False, "NoAuthorization", text)
    return Condition(EFFECTIVE, True, "AsListed")


def describe(
    changes: Mapping[str, str | None],
    added: Mapping[ResourcePattern, Sequence[AclEntry]],
    removed: Mapping[ResourcePattern, Sequence[AclEntry]],
) -> str:
    """Return what was changed, in a sentence that tells no secret."""
    parts = [f"{'removed' if text is None else 'set'} {name}" for name, text in changes.items()]
    for verb, acls in (("added", added), ("removed", removed)):
        names = [
            f"{acl_znodes.type_name(entry.operation)} of {pattern}"
            for pattern, entries in acls.items()
            for entry in entries
        ]
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            parts.append(f"{verb} ACLs: {', '.join(names[:_SHOWN])}{more}")
    return "; ".join(parts)
