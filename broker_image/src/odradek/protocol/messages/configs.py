"""Reading and changing the settings of topics and brokers."""

from odradek.protocol.primitives import Kind
from odradek.protocol.schema import (
    Request,
    array,
    boolean,
    int8,
    int16,
    int32,
    message,
    string,
    struct,
)


@struct
class DescribeConfigsSynonym:
    """Another place that gives the setting a value, in order of precedence."""

    name: str = string()
    value: str | None = string(nullable_since=0, default=None)
    source: int = int8()


@struct
class DescribeConfigsResourceResult:
    """One setting; `config_source` tells where its value comes from (KIP-226)."""

    name: str = string()
    value: str | None = string(nullable_since=0, default=None)
    read_only: bool = boolean(default=False)
    is_default: bool = boolean(until=0, default=False)
    config_source: int = int8(since=1, default=-1)
    is_sensitive: bool = boolean(default=False)
    synonyms: list[DescribeConfigsSynonym] = array(
        DescribeConfigsSynonym, since=1, default_factory=list
    )
    config_type: int = int8(since=3, default=0)
    documentation: str | None = string(since=3, nullable_since=3, default=None)


@struct
class DescribeConfigsResult:
    """Settings of one resource."""

    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


@message(versions=(0, 4), flexible_from=4)
class DescribeConfigsResponse:
    """Answer to a DescribeConfigsRequest."""

    throttle_time_ms: int = int32(default=0)
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)


@struct
class DescribeConfigsResource:
    """A topic (type 2) or broker (type 4); null keys ask for all settings."""

    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array(Kind.STRING, nullable_since=0, default=None)


@message(versions=(0, 4), flexible_from=4)
class DescribeConfigsRequest(Request[DescribeConfigsResponse]):
    """Read settings of topics and brokers."""

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(since=1, default=False)
    include_documentation: bool = boolean(since=3, default=False)


@struct
class AlterConfigsResourceResponse:
    """Outcome for one resource."""

    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    resource_type: int = int8()
    resource_name: str = string()


@message(versions=(0, 2), flexible_from=2)
class AlterConfigsResponse:
    """Outcome of an AlterConfigsRequest."""

    throttle_time_ms: int = int32(default=0)
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


@struct
class AlterableConfig:
    """A setting and its new value."""

    name: str = string()
    value: str | None = string(nullable_since=0, default=None)


@struct
class AlterConfigsResource:
    """All settings that one resource shall have."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


@message(versions=(0, 2), flexible_from=2)
class AlterConfigsRequest(Request[AlterConfigsResponse]):
    """Replace the settings of resources: what is not named goes back to its default."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean(default=False)


@struct
class IncrementalAlterConfigsResourceResponse:
    """Outcome for one resource."""

    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    resource_type: int = int8()
    resource_name: str = string()


@message(versions=(0, 1), flexible_from=1)
class IncrementalAlterConfigsResponse:
    """Outcome of an IncrementalAlterConfigsRequest."""

    throttle_time_ms: int = int32(default=0)
    responses: list[IncrementalAlterConfigsResourceResponse] = array(
        IncrementalAlterConfigsResourceResponse
    )


@struct
class IncrementalAlterableConfig:
    """One change; operation 0 sets, 1 deletes, 2 appends to and 3 subtracts from a list."""

    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable_since=0, default=None)


@struct
class IncrementalAlterConfigsResource:
    """Changes to one resource."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: list[IncrementalAlterableConfig] = array(IncrementalAlterableConfig)


@message(versions=(0, 1), flexible_from=1)
class IncrementalAlterConfigsRequest(Request[IncrementalAlterConfigsResponse]):
    """Change single settings and leave the others alone (KIP-339)."""

    resources: list[IncrementalAlterConfigsResource] = array(IncrementalAlterConfigsResource)
    validate_only: bool = boolean(default=False)
