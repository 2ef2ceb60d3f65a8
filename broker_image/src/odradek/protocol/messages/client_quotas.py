"""Client quotas: the limits of users and client ids (KIP-546)."""

from odradek.protocol.schema import (
    Request,
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    message,
    string,
    struct,
)

# What a component of a filter asks for.
MATCH_EXACT = 0
MATCH_DEFAULT = 1
MATCH_ANY = 2


@struct
class QuotaEntityData:
    """One part of an entity: its type (user or client-id), and its name, null for the default."""

    entity_type: str = string()
    entity_name: str | None = string(nullable_since=0, default=None)


@struct
class QuotaValueData:
    """The limit of one quota."""

    key: str = string()
    value: float = float64()


@struct
class DescribedQuotas:
    """The quotas of one entity."""

    entity: list[QuotaEntityData] = array(QuotaEntityData)
    values: list[QuotaValueData] = array(QuotaValueData)


@message(versions=(0, 1), flexible_from=1)
class DescribeClientQuotasResponse:
    """Answer to a DescribeClientQuotasRequest; entries are null with an error."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    entries: list[DescribedQuotas] | None = array(DescribedQuotas, nullable_since=0, default=None)


@struct
class QuotaFilterComponent:
    """Which names of one entity type match; `match` is for MATCH_EXACT."""

    entity_type: str = string()
    match_type: int = int8()
    match: str | None = string(nullable_since=0, default=None)


@message(versions=(0, 1), flexible_from=1)
class DescribeClientQuotasRequest(Request[DescribeClientQuotasResponse]):
    """Ask for the quotas of entities that match all components, and if `strict` have no others."""

    components: list[QuotaFilterComponent] = array(QuotaFilterComponent)
    strict: bool = boolean()


@struct
class AlteredQuotas:
    """Outcome for one entity."""

    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    entity: list[QuotaEntityData] = array(QuotaEntityData)


@message(versions=(0, 1), flexible_from=1)
class AlterClientQuotasResponse:
    """Outcome of an AlterClientQuotasRequest."""

    throttle_time_ms: int = int32(default=0)
    entries: list[AlteredQuotas] = array(AlteredQuotas)


@struct
class QuotaOperation:
    """The new limit of one quota, unless it is to be removed."""

    key: str = string()
    value: float = float64()
    remove: bool = boolean()


@struct
class QuotaAlteration:
    """The changes of one entity."""

    entity: list[QuotaEntityData] = array(QuotaEntityData)
    ops: list[QuotaOperation] = array(QuotaOperation)


@message(versions=(0, 1), flexible_from=1)
class AlterClientQuotasRequest(Request[AlterClientQuotasResponse]):
    """Set and remove quotas of entities, or only check the changes."""

    entries: list[QuotaAlteration] = array(QuotaAlteration)
    validate_only: bool = boolean()
