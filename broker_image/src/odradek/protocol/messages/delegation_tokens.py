"""Delegation tokens: credentials that live for a while, which a user hands to others (KIP-48)."""

from odradek.protocol.schema import (
    Request,
    array,
    binary,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
)


@message(versions=(0, 2), flexible_from=2)
class CreateDelegationTokenResponse:
    """A new token and its owner; times in milliseconds since 1970, -1 with an error."""

    error_code: int = int16(default=0)
    principal_type: str = string()
    principal_name: str = string()
    issue_timestamp_ms: int = int64()
    expiry_timestamp_ms: int = int64()
    max_timestamp_ms: int = int64()
    token_id: str = string()
    hmac: bytes = binary()
    throttle_time_ms: int = int32(default=0)


@struct
class CreatableRenewers:
    """A principal that may renew the token."""

    principal_type: str = string()
    principal_name: str = string()


@message(versions=(0, 2), flexible_from=2)
class CreateDelegationTokenRequest(Request[CreateDelegationTokenResponse]):
    """Ask for a token that lives for `max_lifetime_ms`, -1 for as long as the broker allows."""

    renewers: list[CreatableRenewers] = array(CreatableRenewers)
    max_lifetime_ms: int = int64()


@message(versions=(0, 2), flexible_from=2)
class RenewDelegationTokenResponse:
    """When the token expires now, in milliseconds since 1970; -1 with an error."""

    error_code: int = int16(default=0)
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32(default=0)


@message(versions=(0, 2), flexible_from=2)
class RenewDelegationTokenRequest(Request[RenewDelegationTokenResponse]):
    """Let a token live for `renew_period_ms` from now, -1 for the broker's default."""

    hmac: bytes = binary()
    renew_period_ms: int = int64()


@message(versions=(0, 2), flexible_from=2)
class ExpireDelegationTokenResponse:
    """When the token expires now, in milliseconds since 1970; -1 with an error."""

    error_code: int = int16(default=0)
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32(default=0)


@message(versions=(0, 2), flexible_from=2)
class ExpireDelegationTokenRequest(Request[ExpireDelegationTokenResponse]):
    """Let a token expire in `expiry_time_period_ms`, at once if that is negative."""

    hmac: bytes = binary()
    expiry_time_period_ms: int = int64()


@struct
class DescribedDelegationTokenRenewer:
    """A principal that may renew the token."""

    principal_type: str = string()
    principal_name: str = string()


@struct
class DescribedDelegationToken:
    """A token and its owner; times in milliseconds since 1970."""

    principal_type: str = string()
    principal_name: str = string()
    issue_timestamp: int = int64()
    expiry_timestamp: int = int64()
    max_timestamp: int = int64()
    token_id: str = string()
    hmac: bytes = binary()
    renewers: list[DescribedDelegationTokenRenewer] = array(DescribedDelegationTokenRenewer)


@message(versions=(0, 2), flexible_from=2)
class DescribeDelegationTokenResponse:
    """Answer to a DescribeDelegationTokenRequest."""

    error_code: int = int16(default=0)
    tokens: list[DescribedDelegationToken] = array(DescribedDelegationToken)
    throttle_time_ms: int = int32(default=0)


@struct
class DescribeDelegationTokenOwner:
    """The owner of tokens."""

    principal_type: str = string()
    principal_name: str = string()


@message(versions=(0, 2), flexible_from=2)
class DescribeDelegationTokenRequest(Request[DescribeDelegationTokenResponse]):
    """Ask for the tokens of the owners; null means of all."""

    owners: list[DescribeDelegationTokenOwner] | None = array(
        DescribeDelegationTokenOwner, nullable_since=0, default=None
    )
