"""Which versions of which requests a broker understands."""

from odradek.protocol.schema import Request, array, int16, int32, int64, message, string, struct


@struct
class ApiVersion:
    """Versions of one request key."""

    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


@struct
class SupportedFeatureKey:
    """A feature the broker knows (KIP-584)."""

    name: str = string()
    min_version: int = int16()
    max_version: int = int16()


@struct
class FinalizedFeatureKey:
    """A feature the whole cluster has turned on (KIP-584)."""

    name: str = string()
    max_version_level: int = int16()
    min_version_level: int = int16()


@message(versions=(0, 4), flexible_from=3)
class ApiVersionsResponse:
    """Request keys and versions the broker accepts; its header is always version 0 (KIP-511)."""

    error_code: int = int16(default=0)
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(since=1, default=0)
    supported_features: list[SupportedFeatureKey] = array(
        SupportedFeatureKey, since=3, tag=0, default_factory=list
    )
    finalized_features_epoch: int = int64(since=3, tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = array(
        FinalizedFeatureKey, since=3, tag=2, default_factory=list
    )


@message(versions=(0, 4), flexible_from=3)
class ApiVersionsRequest(Request[ApiVersionsResponse]):
    """Ask what the broker accepts, naming the client library from version 3 on."""

    client_software_name: str = string(since=3, default="")
    client_software_version: str = string(since=3, default="")
