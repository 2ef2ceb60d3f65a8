"""The znodes of ACLs: their paths and payloads, as Kafka's ZkData and AclEntry have them.

    /kafka-acl/Topic/orders                    {"version":1,"acls":[{"principal":"User:alice",
    /kafka-acl-extended/prefixed/Group/app-      "permissionType":"Allow","operation":"Read",
                                                 "host":"*"}]}
    /kafka-acl-changes/acl_changes_N           TOPIC:orders
    /kafka-acl-extended-changes/acl_changes_N  {"version":1,"resourceType":"GROUP","name":"app-",
                                                 "patternType":"PREFIXED"}

A change of ACLs is followed by a notice, as one of configs is. The literal notice has its own
format because brokers before 2.0 read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import TypeVar

from odradek.security.acls import (
    AclEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from odradek.values import Principal
from odradek.zk.operations import Create
from odradek.zk.payload import Fields, ZnodeError, check_text, dump, parse_text

LITERAL_CHANGES_PATH = "/kafka-acl-changes"
EXTENDED_CHANGES_PATH = "/kafka-acl-extended-changes"
CHANGES_PATHS = (LITERAL_CHANGES_PATH, EXTENDED_CHANGES_PATH)
CHANGE_PREFIX = "acl_changes_"
_ROOTS: Mapping[PatternType, str] = {
    PatternType.LITERAL: "/kafka-acl",
    PatternType.PREFIXED: "/kafka-acl-extended/prefixed",
}
PATTERN_TYPES = tuple(_ROOTS)
RESOURCE_TYPES = tuple(one for one in ResourceType if one is not ResourceType.ANY)

Number = TypeVar("Number", bound=IntEnum)


def type_name(number: IntEnum) -> str:
    """Return Kafka's name in ZooKeeper: `TransactionalId` for TRANSACTIONAL_ID."""
    return number.name.title().replace("_", "")


def _by_name(numbers: Iterable[Number]) -> dict[str, Number]:
    """Return the numbers by their names without case, of which Kafka reads both spellings."""
    found = {}
    for one in numbers:
        if one.name != "ANY":
            found[type_name(one).lower()] = found[one.name.lower()] = one
    return found


_OPERATIONS = _by_name(AclOperation)
_PERMISSIONS = _by_name(PermissionType)
_RESOURCE_TYPES = _by_name(ResourceType)
_PATTERN_TYPES = {one.name.lower(): one for one in PATTERN_TYPES}


def persistent_paths() -> list[str]:
    """Return the paths that a broker with an authorizer creates, parents first."""
    return [
        *(type_path(kind, each) for kind in PATTERN_TYPES for each in RESOURCE_TYPES),
        *CHANGES_PATHS,
    ]


def type_path(pattern_type: PatternType, resource_type: ResourceType) -> str:
    """Return the parent of the ACLs of these patterns: its children are the patterns' names."""
    return f"{_ROOTS[pattern_type]}/{type_name(resource_type)}"


def acl_path(pattern: ResourcePattern) -> str:
    """Return the znode of the ACLs of a pattern."""
    return f"{type_path(pattern.pattern_type, pattern.resource_type)}/{pattern.name}"


def encode_acls(entries: Iterable[AclEntry]) -> bytes:
    """Return the payload with these entries."""
    return dump(
        {
            "version": 1,
            "acls": [
                {
                    "principal": str(entry.principal),
                    "permissionType": type_name(entry.permission_type),
                    "operation": type_name(entry.operation),
                    "host": entry.host,
                }
                for entry in entries
            ],
        }
    )


def decode_acls(path: str, data: bytes | None) -> tuple[AclEntry, ...]:
    """Read the entries, each once, in their order; an empty znode has none."""
    if not data:
        return ()
    fields = Fields.parse(path, data)
    fields.require_version(1)
    return tuple(dict.fromkeys(_decode_entry(path, one) for one in fields.nested_list("acls")))


def _decode_entry(path: str, fields: Fields) -> AclEntry:
    text = fields.string("principal")
    kind, colon, name = text.partition(":")
    if not colon:
        raise ZnodeError(path, f"{text[:80]!r} is no principal")
    host = fields.string("host")
    for one in (text, host):
        check_text(path, one)
    return AclEntry(
        # Kafka's tools write `User:` too, which is nobody. It must not make the others unreadable.
        Principal(kind, name),
        _named(path, _PERMISSIONS, fields.string("permissionType")),
        _named(path, _OPERATIONS, fields.string("operation")),
        host,
    )


def change_notice(pattern: ResourcePattern) -> Create:
    """Return the operation that creates the notice of a change."""
    if pattern.pattern_type is PatternType.LITERAL:
        parent = LITERAL_CHANGES_PATH
        data = f"{pattern.resource_type.name}:{pattern.name}".encode()
    else:
        parent = EXTENDED_CHANGES_PATH
        data = dump(
            {
                "version": 1,
                "resourceType": pattern.resource_type.name,
                "name": pattern.name,
                "patternType": pattern.pattern_type.name,
            }
        )
    return Create(f"{parent}/{CHANGE_PREFIX}", data, sequence=True)


def decode_change(path: str, data: bytes | None) -> ResourcePattern:
    """Read a notice of either kind. Raises ZnodeError."""
    if not path.startswith(f"{EXTENDED_CHANGES_PATH}/"):
        kind, colon, name = parse_text(path, data).partition(":")
        if not colon:
            raise ZnodeError(path, "is not TYPE:NAME")
        return _checked(path, ResourcePattern(_named(path, _RESOURCE_TYPES, kind), name))
    fields = Fields.parse(path, data)
    fields.require_version(1)
    return _checked(
        path,
        ResourcePattern(
            _named(path, _RESOURCE_TYPES, fields.string("resourceType")),
            fields.string("name"),
            _named(path, _PATTERN_TYPES, fields.string("patternType")),
        ),
    )


def _checked(path: str, pattern: ResourcePattern) -> ResourcePattern:
    # It becomes part of a path, of which ZooKeeper's client refuses some.
    if "/" in pattern.name or pattern.name in ("", ".", ".."):
        raise ZnodeError(path, f"{pattern.name[:80]!r} is no name of a resource")
    check_text(path, pattern.name)
    return pattern


def _named(path: str, numbers: Mapping[str, Number], name: str) -> Number:
    found = numbers.get(name.lower())
    if found is None:
        raise ZnodeError(path, f"{name[:80]!r} is not known")
    return found
