"""The decisions of ACLs: whether a principal may do something, as Kafka's AclAuthorizer decides.

The ACLs that count for a resource are those of its own name, of `*`, and of every prefix of its
name. A Deny among them that matches refuses. Otherwise one Allow must match. The cost of a decision
depends on the number of different lengths of prefixes, not on the number of ACLs.
"""

from __future__ import annotations

import ipaddress
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from odradek.security.acls import (
    EVERYBODY,
    WILDCARD,
    AclBinding,
    AclEntry,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from odradek.values import Principal

_IMPLYING: Mapping[AclOperation, tuple[AclOperation, ...]] = {
    AclOperation.DESCRIBE: (
        AclOperation.DESCRIBE,
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
    ),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS),
}
"""The operations whose Allow includes another one. A Deny includes nothing."""

MOST_DECISIONS: Final = 10_000
"""Decisions that are remembered: clients repeat themselves, but may also make up names."""
LONGEST_REMEMBERED: Final = 256
"""Names of resources in decisions that are remembered: a made-up one may take 100 KiB."""


@lru_cache(maxsize=1000)
def plain_host(host: str) -> str:
    """Return an address as Java spells it: `0:0:0:0:0:0:0:1` for `::1`; other text as it is.

    ACLs are written by Kafka's tools too, and an IPv4 address may come as an IPv6 one.
    """
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    scope = f"%{address.scope_id}" if address.scope_id else ""
    packed = address.packed
    groups = (int.from_bytes(packed[at : at + 2], "big") for at in range(0, 16, 2))
    return ":".join(f"{group:x}" for group in groups) + scope


class _Entries:
    """The entries of one pattern: the hosts by permission, principal and operation."""

    __slots__ = ("_hosts", "all")

    def __init__(self, entries: tuple[AclEntry, ...]) -> None:
        self.all = entries
        self._hosts: dict[tuple[PermissionType, Principal, AclOperation], set[str]] = {}
        for one in entries:
            key = (one.permission_type, one.principal, one.operation)
            self._hosts.setdefault(key, set()).add(plain_host(one.host))

    def match(
        self,
        permission: PermissionType,
        principal: Principal,
        host: str | None,
        operations: Iterable[AclOperation],
    ) -> bool:
        """Return whether an entry matches one of the operations; no host stands for any."""
        for operation in (*operations, AclOperation.ALL):
            for who in (principal, EVERYBODY):
                hosts = self._hosts.get((permission, who, operation))
                if hosts and (host is None or host in hosts or WILDCARD in hosts):
                    return True
        return False


class _OfType:
    """The patterns of one resource type."""

    __slots__ = ("_having", "lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, _Entries] = {}
        self.prefixed: dict[str, _Entries] = {}
        # The different lengths of the prefixes, sorted, and how many have each.
        self.lengths: list[int] = []
        self._having = Counter[int]()

    def set_prefixed(self, prefix: str, entries: _Entries) -> None:
        """Set the entries of a prefix."""
        if prefix not in self.prefixed:
            self._having[len(prefix)] += 1
            if self._having[len(prefix)] == 1:
                insort(self.lengths, len(prefix))
        self.prefixed[prefix] = entries

    def drop_prefixed(self, prefix: str) -> None:
        """Forget the entries of a prefix, if it has any."""
        if self.prefixed.pop(prefix, None) is not None:
            self._having[len(prefix)] -= 1
            if not self._having[len(prefix)]:
                self.lengths.remove(len(prefix))

    def covering(self, name: str) -> list[_Entries]:
        """Return the entries of all patterns that cover the resource with this name."""
        found = [self.literal[one] for one in {name, WILDCARD} if one in self.literal]
        for length in self.lengths:
            if length > len(name):
                break
            entries = self.prefixed.get(name[:length])
            if entries is not None:
                found.append(entries)
        return found


class Acls:
    """All ACLs, and the decisions that follow from them.

    `allow_if_none` is Kafka's allow.everyone.if.no.acl.found.
    """

    def __init__(self, allow_if_none: bool = False) -> None:
        self._allow_if_none = allow_if_none
        self._types: dict[ResourceType, _OfType] = {
            one: _OfType() for one in ResourceType if one is not ResourceType.ANY
        }
        # Only of the present ACLs.
        self._decisions: dict[tuple[Principal, str, AclOperation, ResourceType, str], bool] = {}
        self._anywhere: dict[tuple[Principal, str, AclOperation, ResourceType], bool] = {}

    def set(self, pattern: ResourcePattern, entries: Iterable[AclEntry]) -> None:
        """Replace the entries of a pattern; none removes it."""
        of_type = self._types[pattern.resource_type]
        is_literal = pattern.pattern_type is PatternType.LITERAL
        present = tuple(entries)
        if present and is_literal:
            of_type.literal[pattern.name] = _Entries(present)
        elif present:
            of_type.set_prefixed(pattern.name, _Entries(present))
        elif is_literal:
            of_type.literal.pop(pattern.name, None)
        else:
            of_type.drop_prefixed(pattern.name)
        self._decisions = {}
        self._anywhere = {}

    def patterns(self) -> Iterator[ResourcePattern]:
        """Yield every pattern that has entries."""
        for kind, of_type in self._types.items():
            for name in list(of_type.literal):
                yield ResourcePattern(kind, name)
            for name in list(of_type.prefixed):
                yield ResourcePattern(kind, name, PatternType.PREFIXED)

    def entries(self, pattern: ResourcePattern) -> tuple[AclEntry, ...]:
        """Return the entries of a pattern."""
        of_type = self._types[pattern.resource_type]
        is_literal = pattern.pattern_type is PatternType.LITERAL
        found = (of_type.literal if is_literal else of_type.prefixed).get(pattern.name)
        return () if found is None else found.all

    def find(self, wanted: AclFilter) -> Iterator[AclBinding]:
        """Yield the ACLs that pass a filter."""
        for pattern in self.patterns():
            if wanted.matches_pattern(pattern):
                for entry in self.entries(pattern):
                    if wanted.matches_entry(entry):
                        yield AclBinding(pattern, entry)

    def allow(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Return whether the ACLs let the principal do this; `host` as of `plain_host`."""
        key = (principal, host, operation, resource_type, name)
        known = self._decisions.get(key)
        if known is None:
            known = self._decide(*key)
            if len(name) > LONGEST_REMEMBERED:
                return known
            if len(self._decisions) >= MOST_DECISIONS:
                self._decisions = {}
            self._decisions[key] = known
        return known

    def _decide(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        covering = self._types[resource_type].covering(name)
        if not covering:
            return self._allow_if_none
        if any(one.match(PermissionType.DENY, principal, host, (operation,)) for one in covering):
            return False
        implying = _IMPLYING.get(operation, (operation,))
        return any(one.match(PermissionType.ALLOW, principal, host, implying) for one in covering)

    def allow_anywhere(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Return whether there can be a resource of this type for which it is allowed (KIP-679).

        As in Kafka, no operation implies another here.
        """
        key = (principal, host, operation, resource_type)
        known = self._anywhere.get(key)
        if known is None:
            if len(self._anywhere) >= MOST_DECISIONS:
                self._anywhere = {}
            known = self._anywhere[key] = self._decide_anywhere(*key)
        return known

    def _decide_anywhere(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        of_type = self._types[resource_type]
        wildcard = of_type.literal.get(WILDCARD)

        def matches(one: _Entries, permission: PermissionType) -> bool:
            return one.match(permission, principal, host, (operation,))

        if wildcard is not None and matches(wildcard, PermissionType.DENY):
            return False
        if self._allow_if_none:
            return True

        def has_denied_prefix(name: str) -> bool:
            return any(
                matches(of_type.prefixed[name[:length]], PermissionType.DENY)
                for length in of_type.lengths
                if length <= len(name) and name[:length] in of_type.prefixed
            )

        if wildcard is not None and matches(wildcard, PermissionType.ALLOW):
            return True
        return any(
            matches(one, PermissionType.ALLOW) and not has_denied_prefix(prefix)
            for prefix, one in of_type.prefixed.items()
        ) or any(
            matches(one, PermissionType.ALLOW)
            and not matches(one, PermissionType.DENY)
            and not has_denied_prefix(name)
            for name, one in of_type.literal.items()
        )

    def may_allow(
        self,
        principal: Principal,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Return whether there is a host from which the principal may do this."""
        covering = self._types[resource_type].covering(name)
        if not covering:
            return self._allow_if_none
        implying = _IMPLYING.get(operation, (operation,))
        return any(one.match(PermissionType.ALLOW, principal, None, implying) for one in covering)
