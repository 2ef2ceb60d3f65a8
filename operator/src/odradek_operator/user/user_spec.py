"""A User as wanted, and what its status says that the resource wrote: frozen values.

ACLs are kept as bindings, one per operation, and stand in the status as they do in the spec.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from odradek.quotas.entities import QuotaKey
from odradek.security import acl_znodes
from odradek.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from odradek.values import Principal
from odradek_operator.shared.spec import Body, InvalidSpec

TLS: Final = "tls"
TLS_EXTERNAL: Final = "tls-external"
_TYPES: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.CLUSTER,
    "transactionalId": ResourceType.TRANSACTIONAL_ID,
}
_PATTERNS: Final = {"literal": PatternType.LITERAL, "prefix": PatternType.PREFIXED}
_PERMISSIONS: Final = {"allow": PermissionType.ALLOW, "deny": PermissionType.DENY}
_OPERATIONS: Final = {
    acl_znodes.type_name(one): one for one in AclOperation if one is not AclOperation.ANY
}
_QUOTAS: Final = {
    "producerByteRate": QuotaKey.PRODUCE,
    "consumerByteRate": QuotaKey.FETCH,
    "requestPercentage": QuotaKey.REQUEST,
    "controllerMutationRate": QuotaKey.CONTROLLER_MUTATION,
}

Bindings = tuple[AclBinding, ...]


class SecretKey(NamedTuple):
    """A key of a Secret in the resource's namespace."""

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class UserSpec:
    """A User as wanted. `username` is the name in Kafka, `source` where its password comes from.

    `listener` is the authentication that a listener must ask for, `mechanism` SASL's name of it,
    None for users with certificates.
    """

    cluster: str
    username: str
    authentication: str
    source: SecretKey | None
    acls: Bindings
    quotas: Mapping[QuotaKey, float]
    paused: bool

    @property
    def mechanism(self) -> str | None:
        """SASL's name of the mechanism; None for a user with a certificate."""
        return None if self.listener == TLS else self.authentication.upper()

    @property
    def listener(self) -> str:
        """The authentication of listeners that this user can use."""
        return TLS if self.authentication == TLS_EXTERNAL else self.authentication


@dataclass(frozen=True, slots=True)
class Written:
    """What a resource wrote, or was about to write, as its status tells."""

    mechanisms: tuple[str, ...] = ()
    quotas: tuple[str, ...] = ()
    acls: Bindings = ()


def username(body: Body) -> str:
    """Return a User's name in Kafka."""
    name: str = body["metadata"]["name"]
    return f"CN={name}" if body["spec"]["authentication"]["type"].startswith(TLS) else name


def parse(body: Body) -> UserSpec:
    """Read a User, raising InvalidSpec for hosts that are no addresses."""
    spec = body["spec"]
    user, authentication = username(body), spec["authentication"]
    acls = spec.get("authorization", {}).get("acls", ())
    for one in acls:
        _check_host(one["host"])
    source = authentication.get("password", {}).get("valueFrom", {}).get("secretKeyRef")
    return UserSpec(
        cluster=spec["clusterRef"]["name"],
        username=user,
        authentication=authentication["type"],
        source=SecretKey(source["name"], source["key"]) if source else None,
        acls=_bindings(user, acls),
        quotas={
            _QUOTAS[name]: value
            for name, value in spec.get("quotas", {}).items()
            if value is not None
        },
        paused=spec.get("paused", False),
    )


def _check_host(host: str) -> None:
    if host == WILDCARD:
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise InvalidSpec("InvalidAcl", f"host {host} is no IP address, and not *") from None


def written(body: Body) -> Written:
    """Return what the status says that the resource wrote."""
    status = body.get("status", {})
    return Written(
        tuple(status.get("mechanisms", ())),
        tuple(status.get("quotas", ())),
        _bindings(status.get("username", username(body)), status.get("acls", ())),
    )


def is_known(body: Body) -> bool:
    """Return whether the status tells of what the resource wrote, so that it is not new."""
    return "username" in body.get("status", {})


def _bindings(user: str, acls: Iterable[Mapping[str, Any]]) -> Bindings:
    """Return the ACLs, each once."""
    return tuple(
        dict.fromkeys(
            AclBinding(
                ResourcePattern(
                    _TYPES[one["resource"]["type"]],
                    one["resource"].get("name", CLUSTER_NAME),
                    _PATTERNS[one["resource"]["patternType"]],
                ),
                AclEntry(
                    Principal("User", user),
                    _PERMISSIONS[one["type"]],
                    _OPERATIONS[operation],
                    one["host"],
                ),
            )
            for one in acls
            for operation in one["operations"]
        )
    )


def shown_acls(bindings: Iterable[AclBinding]) -> list[dict[str, Any]]:
    """Return ACLs as the status has them: those that differ by operation only are one."""
    grouped: dict[tuple[ResourcePattern, str, PermissionType], list[AclOperation]] = {}
    for pattern, entry in bindings:
        place = (pattern, entry.host, entry.permission_type)
        grouped.setdefault(place, []).append(entry.operation)
    return [
        {
            "resource": {
                "type": _name(_TYPES, pattern.resource_type),
                "name": pattern.name,
                "patternType": _name(_PATTERNS, pattern.pattern_type),
            },
            "operations": [_name(_OPERATIONS, one) for one in operations],
            "host": host,
            "type": _name(_PERMISSIONS, permission),
        }
        for (pattern, host, permission), operations in grouped.items()
    ]


def _name(names: Mapping[str, Any], value: object) -> str:
    return next(name for name, one in names.items() if one is value)
