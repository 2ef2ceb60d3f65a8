"""Finalized features: what all brokers of a cluster have turned on (KIP-584)."""

from odradek.protocol.schema import (
    Request,
    array,
    boolean,
    int16,
    int32,
    message,
    string,
    struct,
)


@struct
class UpdatableFeatureResult:
    """Outcome for one feature."""

    feature: str = string()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)


@message(versions=(0, 0), flexible_from=0)
class UpdateFeaturesResponse:
    """Outcome of an UpdateFeaturesRequest; no results if it is refused as a whole."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult)


@struct
class FeatureUpdateKey:
    """The new highest version of a feature; below 1, with `allow_downgrade`, it is deleted."""

    feature: str = string()
    max_version_level: int = int16()
    allow_downgrade: bool = boolean()


@message(versions=(0, 0), flexible_from=0)
class UpdateFeaturesRequest(Request[UpdateFeaturesResponse]):
    """Finalize versions of features, within `timeout_ms`."""

    timeout_ms: int = int32(default=60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
