"""DescribeClientQuotas and AlterClientQuotas (KIP-546): quotas of users, client ids, addresses.

Any broker serves them, from and to ZooKeeper. A change is written with a notice, in one
transaction, on the condition that the znode is as it was read; every broker then applies it (see
`odradek.quotas.store`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from odradek import slices
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.client_quotas import (
    MATCH_ANY,
    MATCH_DEFAULT,
    MATCH_EXACT,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuotas,
    QuotaAlteration,
    QuotaEntityData,
    QuotaFilterComponent,
    QuotaOperation,
    QuotaValueData,
)
from odradek.quotas import entities, store
from odradek.quotas.entities import CREATION_RATE, DEFAULT, WHOLE, QuotaEntity, QuotaKey
from odradek.zk import admin, znodes
from odradek.zk.failures import meaning
from odradek.zk.operations import TransactionFailedError
from odradek.zk.payload import fits_an_answer
from odradek.zk.session import Session

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
_KINDS: Final = (USER, CLIENT_ID, IP)
# How far a number may be from a whole one, as in Kafka.
_EPSILON: Final = 1e-6
_KEYS: Final = frozenset(key.value for key in QuotaKey)
_KEYS_OF_IP: Final = frozenset({CREATION_RATE})
_ALL_KEYS: Final = _KEYS | _KEYS_OF_IP
_WHOLE: Final = {CREATION_RATE, *(key.value for key in WHOLE)}

logger = logging.getLogger(__name__)


# --- describe -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Filter:
    """Which names match: one sanitized name or DEFAULT, or any if `name` is None."""

    name: str | None = None


async def describe_client_quotas(
    broker: Broker, request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    """Return the quotas of the entities that match all components of the filter."""
    try:
        filters = _filters(request.components)
        found = await store.read_all(broker.session)
    except KafkaError as refusal:
        return DescribeClientQuotasResponse(
            error_code=refusal.code, error_message=refusal.message, entries=None
        )
    except KazooException as failure:
        logger.warning("failed to read client quotas: ZooKeeper: %r", failure)
        return DescribeClientQuotasResponse(
            error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=f"ZooKeeper: {meaning(failure)}"
        )
    entries: list[DescribedQuotas] = []
    for few in slices.cut(found.items()):
        for entity, configs in few:
            values = _values(_keys_of(entity), configs)
            if not values or not _matches(entity, filters, strict=request.strict):
                continue
            parts = _parts(entity)
            if all(fits_an_answer(one.entity_name or "") for one in parts):
                entries.append(DescribedQuotas(entity=parts, values=values))
            else:
                path = store.path_of(entity)
                logger.error("leaving out quotas whose name no answer can hold: %.80s", path)
        await slices.pause()
    return DescribeClientQuotasResponse(entries=entries)


def _filters(components: Iterable[QuotaFilterComponent]) -> dict[str, _Filter]:
    """Return the filters by entity type. Raises KafkaError for what Kafka does not take."""
    filters: dict[str, _Filter] = {}
    for one in components:
        if not one.entity_type:
            raise _invalid("Unexpected empty filter component entity type")
        if one.entity_type not in _KINDS:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Custom entity type '{one.entity_type}' not supported",
            )
        if one.entity_type in filters:
            raise _invalid(f"Duplicate {one.entity_type} filter component entity type")
        filters[one.entity_type] = _filter(one)
    if IP in filters and len(filters) > 1:
        raise _invalid("Invalid entity filter component combination")
    return filters


def _filter(component: QuotaFilterComponent) -> _Filter:
    if component.match_type == MATCH_EXACT and component.match is not None:
        return _Filter(entities.sanitize(component.match))
    if component.match_type == MATCH_DEFAULT:
        return _Filter(DEFAULT)
    if component.match_type == MATCH_ANY:
        return _Filter()
    raise _invalid(f"Unexpected match type {component.match_type}, or no name to match")


def _matches(entity: QuotaEntity, filters: Mapping[str, _Filter], *, strict: bool) -> bool:
    for kind, name in _names(entity):
        wanted = filters.get(kind)
        if wanted is None:
            if strict and name is not None:
                return False
        elif name is None or wanted.name not in (None, name):
            return False
    return True


def _names(entity: QuotaEntity) -> tuple[tuple[str, str | None], ...]:
    return (USER, entity.user), (CLIENT_ID, entity.client_id), (IP, entity.ip)


def _keys_of(entity: QuotaEntity) -> frozenset[str]:
    return _KEYS if entity.ip is None else _KEYS_OF_IP


def _values(keys: frozenset[str], configs: Mapping[str, str]) -> list[QuotaValueData]:
    values: list[QuotaValueData] = []
    for name in keys & configs.keys():
        try:
            values.append(QuotaValueData(key=name, value=float(configs[name])))
        except ValueError:
            continue  # the store logs it
    return values


def _parts(entity: QuotaEntity) -> list[QuotaEntityData]:
    return [
        QuotaEntityData(entity_type=kind, entity_name=_shown(name))
        for kind, name in _names(entity)
        if name is not None
    ]


def _shown(name: str) -> str | None:
    if name == DEFAULT:
        return None
    try:
        return entities.desanitize(name)
    except ValueError:
        return name  # not written by Kafka


# --- alter --------------------------------------------------------------------------------------


async def alter_client_quotas(
    broker: Broker, request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    """Change the quotas of each entity; entities fail independently."""
    answers: list[AlteredQuotas] = []
    for few in slices.cut(request.entries, slices.LONG_NAMES_PER_SLICE):
        for entry in few:
            refusal = await _outcome(broker.session, entry, validate_only=request.validate_only)
            answers.append(
                AlteredQuotas(
                    error_code=ErrorCode.NONE if refusal is None else refusal.code,
                    error_message=None if refusal is None else refusal.message,
                    entity=entry.entity,
                )
            )
        await slices.pause()
    return AlterClientQuotasResponse(entries=answers)


async def _outcome(
    session: Session, entry: QuotaAlteration, *, validate_only: bool
) -> KafkaError | None:
    try:
        entity = await _entity(entry.entity)
        changes = await _changes(entry.ops, _keys_of(entity))
        await _apply(session, entity, changes, validate_only=validate_only)
    except KafkaError as refusal:
        return refusal
    except znodes.ZnodeError as error:
        return _invalid(str(error))
    except KazooException as failure:
        logger.warning("failed to change client quotas: ZooKeeper: %r", failure)
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper: {meaning(failure)}")
    return None


async def _entity(parts: Sequence[QuotaEntityData]) -> QuotaEntity:
    if not parts:
        raise _invalid("Invalid empty client quota entity")
    given: dict[str, str | None] = {}  # as in Kafka, the last of each kind counts
    for number, part in enumerate(parts, 1):
        if number % slices.STEPS_PER_SLICE == 0:
            await slices.pause()
        if part.entity_type not in _KINDS:
            raise _invalid(f"Unhandled client quota entity type: {part.entity_type}")
        given[part.entity_type] = part.entity_name
    names = {kind: _sanitized(kind, name) for kind, name in given.items()}
    if IP in names:
        return _address(names)
    return QuotaEntity(names.get(USER), names.get(CLIENT_ID))


def _sanitized(kind: str, name: str | None) -> str:
    """Return the name in a znode. It takes milliseconds for the longest ones."""
    if name is None:
        return DEFAULT
    sanitized = entities.sanitize(name)
    if not sanitized:
        raise _invalid(f"Empty {kind} not supported")
    if sanitized in (".", ".."):
        raise _invalid(f"{kind} '{sanitized}' is no name of a znode")
    return sanitized


def _address(names: Mapping[str, str]) -> QuotaEntity:
    if len(names) > 1:
        raise _invalid(f"Invalid client quota entity: {IP} is with nothing else")
    try:
        return QuotaEntity(ip=entities.sanitized_address(names[IP]))
    except ValueError:
        raise _invalid(f"{entities.desanitize(names[IP])} is not a valid IP") from None


async def _changes(
    operations: Iterable[QuotaOperation], keys: frozenset[str]
) -> dict[str, str | None]:
    """Return the new text of each config, None to remove it.

    Other than in Kafka 2.8, only quotas are removed: a user's credentials are kept beside them.
    """
    changes: dict[str, str | None] = {}
    for number, one in enumerate(operations, 1):
        if number % slices.STEPS_PER_SLICE == 0:
            await slices.pause()
        if one.key not in keys:
            raise _invalid(f"Invalid configuration key {one.key}")
        if one.remove:
            changes[one.key] = None
            continue
        if not entities.is_limit(one.value):
            # As later versions of Kafka; 2.8 takes it, and does not limit anything.
            raise _invalid(f"Quota {one.key} must be greater than 0")
        if one.key not in _WHOLE:
            changes[one.key] = str(one.value)
            continue
        whole = math.floor(one.value + _EPSILON)
        if abs(whole - one.value) > _EPSILON or not 0 < whole < 2**63:
            raise _invalid(f"Configuration {one.key} must be a LONG value")
        changes[one.key] = str(whole)
    return changes


async def _apply(
    session: Session,
    entity: QuotaEntity,
    changes: Mapping[str, str | None],
    *,
    validate_only: bool,
) -> None:
    path = store.path_of(entity)
    while True:
        found = (await session.get_all([path])).get(path)
        present = {} if found is None else znodes.decode_config(path, found[0])
        merged = {**present, **changes}
        wanted = {name: text for name, text in merged.items() if text is not None}
        admin.check_config_size(wanted)
        if validate_only:
            return
        if found is None:
            await session.ensure(path.rpartition("/")[0])
        version = None if found is None else found[1].version
        kind, name = entity.entity_type, entity.name
        try:
            await session.multi(admin.change_config(kind, name, wanted, version))
        except TransactionFailedError as failure:
            if failure.index == 0 and isinstance(
                failure.error, BadVersionError | NodeExistsError | NoNodeError
            ):
                continue
            raise failure.error from failure
        logger.info("quotas of %s/%s are now %s", kind, name, _shown_limits(wanted))
        return


def _shown_limits(configs: Mapping[str, str]) -> dict[str, str]:
    """Return the quotas among the configs: credentials are not logged."""
    return {name: text for name, text in configs.items() if name in _ALL_KEYS}


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, reason)
