"""Access control lists as values: resource patterns, entries, and the filters that find them.

The numbers are those of requests (KIP-140, KIP-290), the names those in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from odradek.values import Principal

WILDCARD = "*"
CLUSTER_NAME = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""
EVERYBODY = Principal("User", WILDCARD)


class ResourceType(IntEnum):
    """What an ACL is about. ANY is for filters only."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6


class PatternType(IntEnum):
    """How a pattern names resources. ANY and MATCH are for filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What an ACL allows or denies. ANY is for filters only."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class PermissionType(IntEnum):
    """Whether an ACL allows or denies. ANY is for filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


SUPPORTED_OPERATIONS: Mapping[ResourceType, frozenset[AclOperation]] = {
    ResourceType.TOPIC: frozenset(
        {
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.CREATE,
            AclOperation.DELETE,
            AclOperation.ALTER,
            AclOperation.DESCRIBE,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        }
    ),
    ResourceType.GROUP: frozenset({AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE}),
    ResourceType.CLUSTER: frozenset(
        {
            AclOperation.CREATE,
            AclOperation.ALTER,
            AclOperation.DESCRIBE,
            AclOperation.CLUSTER_ACTION,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
            AclOperation.IDEMPOTENT_WRITE,
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset({AclOperation.DESCRIBE, AclOperation.WRITE}),
    ResourceType.DELEGATION_TOKEN: frozenset({AclOperation.DESCRIBE}),
}
"""The operations that mean something for a resource (Kafka's AclEntry.supportedOperations)."""


class ResourcePattern(NamedTuple):
    """The resources that ACLs are about: one, all (`*`), or those whose names begin so."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def __str__(self) -> str:
        return f"{self.resource_type.name}:{self.pattern_type.name}:{self.name}"


class AclEntry(NamedTuple):
    """Who may, or may not, do what from where. A host is an IP address, or `*`."""

    principal: Principal
    permission_type: PermissionType
    operation: AclOperation
    host: str = WILDCARD


class AclBinding(NamedTuple):
    """One ACL: an entry, and the resources that it is about."""

    pattern: ResourcePattern
    entry: AclEntry


class AclFilter(NamedTuple):
    """A filter of ACLs; None and ANY let everything pass.

    The pattern type MATCH asks for all patterns that cover the resource with this name.
    """

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission_type: PermissionType = PermissionType.ANY

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        """Return whether ACLs of this pattern can pass (Kafka's ResourcePatternFilter)."""
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        wanted = self.pattern_type
        if wanted not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        if wanted is not PatternType.MATCH:
            return self.name == pattern.name
        if pattern.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name in (self.name, WILDCARD)

    def matches_entry(self, entry: AclEntry) -> bool:
        """Return whether an entry passes (Kafka's AccessControlEntryFilter)."""
        return (
            self.principal in (None, str(entry.principal))
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission_type in (PermissionType.ANY, entry.permission_type)
        )

    def exact_patterns(self) -> tuple[ResourcePattern, ...]:
        """Return the patterns that alone can match; none if the filter does not name them."""
        if (
            self.name is None
            or self.resource_type is ResourceType.ANY
            or self.pattern_type is PatternType.MATCH
        ):
            return ()
        kinds = (
            (PatternType.LITERAL, PatternType.PREFIXED)
            if self.pattern_type is PatternType.ANY
            else (self.pattern_type,)
        )
        return tuple(ResourcePattern(self.resource_type, self.name, kind) for kind in kinds)
