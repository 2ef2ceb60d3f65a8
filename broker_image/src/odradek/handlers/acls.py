"""DescribeAcls, CreateAcls, DeleteAcls (KIP-140, KIP-290), with an authorizer.

Any broker serves them: it writes to ZooKeeper. Clients that list ACLs among other things accept
SECURITY_DISABLED from a broker without an authorizer, but not a missing answer.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

from kazoo.exceptions import KazooException

from odradek import slices
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.acls import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from odradek.security import acl_changes, acl_znodes
from odradek.security.acls import (
    CLUSTER_NAME,
    AclEntry,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from odradek.security.authorizer import Authorizer
from odradek.values import parse_principal

_CODE = ErrorCode.SECURITY_DISABLED
_MESSAGE = "No Authorizer is configured on the broker"

# What ZooKeeper takes for no name of a znode. Beyond U+FFFF Java has surrogates.
_NO_NAME = re.compile(r"[\x00-\x1f/\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")

Number = TypeVar("Number", bound=IntEnum)


def _number(kind: type[Number], number: int) -> Number:
    try:
        return kind(number)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{number} is no {kind.__name__} that is known."
        ) from None


def _filter(asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """Return the filter of a request. Raises INVALID_REQUEST."""
    return AclFilter(
        _number(ResourceType, asked.resource_type_filter),
        asked.resource_name_filter,
        _number(PatternType, asked.pattern_type_filter),
        asked.principal_filter,
        asked.host_filter,
        _number(AclOperation, asked.operation),
        _number(PermissionType, asked.permission_type),
    )


# --- describe -------------------------------------------------------------------------------------


async def describe_acls(
    broker: Broker, request: DescribeAclsRequest, context: RequestContext
) -> DescribeAclsResponse:
    """Return the ACLs that this broker knows and the filter lets pass."""
    if broker.authorizer is None:
        return DescribeAclsResponse(error_code=_CODE, error_message=_MESSAGE, resources=[])
    try:
        wanted = _filter(request)
    except KafkaError as refusal:
        return DescribeAclsResponse(
            error_code=refusal.code, error_message=refusal.message, resources=[]
        )
    known = broker.authorizer.watcher.acls
    resources: list[DescribeAclsResource] = []
    for few in slices.cut(list(known.patterns())):
        for pattern in few:
            # Version 0 has no field for prefixes: they would look like literal names.
            is_shown = context.version > 0 or pattern.pattern_type is PatternType.LITERAL
            if is_shown and wanted.matches_pattern(pattern):
                found = [one for one in known.entries(pattern) if wanted.matches_entry(one)]
                if found:
                    resources.append(_described(pattern, found))
        await slices.pause()
    return DescribeAclsResponse(resources=resources)


def _described(pattern: ResourcePattern, entries: Iterable[AclEntry]) -> DescribeAclsResource:
    return DescribeAclsResource(
        resource_type=pattern.resource_type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        acls=[
            AclDescription(
                principal=str(one.principal),
                host=one.host,
                operation=one.operation,
                permission_type=one.permission_type,
            )
            for one in entries
        ],
    )


# --- create ---------------------------------------------------------------------------------------


async def create_acls(
    broker: Broker, request: CreateAclsRequest, context: RequestContext
) -> CreateAclsResponse:
    """Create ACLs; they fail together where they are for the same pattern."""
    if broker.authorizer is None:
        refusal = AclCreationResult(error_code=_CODE, error_message=_MESSAGE)
        return CreateAclsResponse(results=[refusal] * len(request.creations))
    results: list[AclCreationResult] = []
    wanted: dict[ResourcePattern, dict[AclEntry, list[AclCreationResult]]] = defaultdict(dict)
    for few in slices.cut(request.creations):
        for one in few:
            result = AclCreationResult()
            results.append(result)
            try:
                pattern, entry = _pattern(one), _entry(one)
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
            else:
                wanted[pattern].setdefault(entry, []).append(result)
        if len(few) == slices.STEPS_PER_SLICE:
            await slices.pause()
    for pattern, entries in wanted.items():
        try:
            await acl_changes.add(broker.session, pattern, entries)
        except KafkaError as error:
            for number, result in enumerate(itertools.chain.from_iterable(entries.values()), 1):
                result.error_code, result.error_message = error.code, error.message
                if number % slices.KEYS_AT_ONCE == 0:
                    await slices.pause()
    await _learn(broker.authorizer, wanted)
    return CreateAclsResponse(results=results)


def _pattern(given: AclCreation) -> ResourcePattern:
    """Return the pattern of an ACL to create. Raises INVALID_REQUEST."""
    resource_type = _number(ResourceType, given.resource_type)
    pattern_type = _number(PatternType, given.resource_pattern_type)
    name = given.resource_name
    reason = ""
    if resource_type is ResourceType.ANY:
        reason = "The resource type ANY is for filters only."
    elif pattern_type not in acl_znodes.PATTERN_TYPES:
        reason = f"The pattern type {pattern_type.name} is for filters only."
    elif resource_type is ResourceType.CLUSTER and name != CLUSTER_NAME:
        reason = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not name:
        reason = "Invalid empty resource name"
    elif not _fits_into_a_path(name):
        reason = f"ACL binding contains invalid resource name: {name[:249]}"
    if reason:
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)
    return ResourcePattern(resource_type, name, pattern_type)


def _fits_into_a_path(name: str) -> bool:
    """Return whether ZooKeeper takes the name as that of a znode."""
    return name not in (".", "..") and _NO_NAME.search(name) is None


def _entry(given: AclCreation) -> AclEntry:
    """Return the entry of an ACL to create. Raises INVALID_REQUEST."""
    operation = _number(AclOperation, given.operation)
    permission = _number(PermissionType, given.permission_type)
    if operation is AclOperation.ANY or permission is PermissionType.ANY:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "ANY is for filters only.")
    if not given.host:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty host")
    try:
        principal = parse_principal(given.principal)
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
    return AclEntry(principal, permission, operation, given.host)


async def _learn(authorizer: Authorizer, patterns: Iterable[ResourcePattern]) -> None:
    """Let changes of this broker count at once; other brokers see the notice."""
    # If it fails, the notice is in ZooKeeper all the same, and is handled with the next session.
    with contextlib.suppress(KazooException):
        await authorizer.watcher.refresh(list(patterns))


# --- delete ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _AclDeletion:
    """The filters of a request, and what was found for each: an ACL is the first filter's."""

    filters: dict[int, AclFilter] = field(default_factory=dict)
    results: list[DeleteAclsFilterResult] = field(default_factory=list)
    steps: int = 0

    async def of(self, pattern: ResourcePattern) -> dict[int, AclFilter]:
        """Return the filters that let ACLs of a pattern pass."""
        found: dict[int, AclFilter] = {}
        for few in slices.cut(self.filters.items(), slices.KEYS_AT_ONCE):
            found |= {number: one for number, one in few if one.matches_pattern(pattern)}
            self.steps += len(few)
            if self.steps >= slices.KEYS_AT_ONCE:
                self.steps = 0
                await slices.pause()
        return found


async def delete_acls(
    broker: Broker, request: DeleteAclsRequest, context: RequestContext
) -> DeleteAclsResponse:
    """Delete the ACLs that pass any of the filters.

    As in Kafka, filters that name one pattern look into ZooKeeper, others at what this broker
    knows.
    """
    if broker.authorizer is None:
        refusal = DeleteAclsFilterResult(error_code=_CODE, error_message=_MESSAGE, matching_acls=[])
        return DeleteAclsResponse(filter_results=[refusal] * len(request.filters))
    deletion = _AclDeletion()
    patterns = dict.fromkeys(broker.authorizer.watcher.acls.patterns())
    for number, asked in enumerate(request.filters):
        result = DeleteAclsFilterResult(matching_acls=[])
        deletion.results.append(result)
        try:
            wanted = deletion.filters[number] = _filter(asked)
        except KafkaError as refusal:
            result.error_code, result.error_message = refusal.code, refusal.message
            continue
        patterns |= {
            one: None for one in wanted.exact_patterns() if one.name and _fits_into_a_path(one.name)
        }
        if number % slices.STEPS_PER_SLICE == 0:
            await slices.pause()
    changed = []
    for pattern in patterns:
        matching = await deletion.of(pattern)
        if matching and await _delete_from(broker, pattern, matching, deletion.results):
            changed.append(pattern)
    await _learn(broker.authorizer, changed)
    return DeleteAclsResponse(filter_results=deletion.results)


async def _first_filter(filters: Mapping[int, AclFilter]) -> Callable[[AclEntry], int | None]:
    """Return a function from an entry to the number of the first filter that lets it pass. Scripts
    name thousands of entries of one pattern by as many filters.
    """
    numbers: dict[tuple[str | None, str | None, int, int], int] = {}
    for few in slices.cut(filters.items(), slices.KEYS_AT_ONCE):
        for number, one in few:
            fields = one.principal, one.host, one.operation, one.permission_type
            numbers.setdefault(fields, number)
        if len(few) == slices.KEYS_AT_ONCE:
            await slices.pause()

    def first(entry: AclEntry) -> int | None:
        passing = itertools.product(
            (None, str(entry.principal)),
            (None, entry.host),
            (AclOperation.ANY, entry.operation),
            (PermissionType.ANY, entry.permission_type),
        )
        return min((numbers[fields] for fields in passing if fields in numbers), default=None)

    return first


async def _delete_from(
    broker: Broker,
    pattern: ResourcePattern,
    filters: dict[int, AclFilter],
    results: list[DeleteAclsFilterResult],
) -> bool:
    """Delete from one pattern; add what was deleted to the results. Return whether there was any.

    What could not be deleted is shown as known here, with the error.
    """
    first = await _first_filter(filters)
    code, message = ErrorCode.NONE, None
    assert broker.authorizer is not None
    try:
        entries = await acl_changes.remove(
            broker.session, pattern, lambda entry: first(entry) is not None
        )
    except KafkaError as refusal:
        code, message = refusal.code, refusal.message
        entries = broker.authorizer.watcher.acls.entries(pattern)
    for entry in entries:
        number = first(entry)
        if number is not None:
            results[number].matching_acls.append(
                DeleteAclsMatchingAcl(
                    error_code=code,
                    error_message=message,
                    resource_type=pattern.resource_type,
                    resource_name=pattern.name,
                    pattern_type=pattern.pattern_type,
                    principal=str(entry.principal),
                    host=entry.host,
                    operation=entry.operation,
                    permission_type=entry.permission_type,
                )
            )
    return bool(entries)
