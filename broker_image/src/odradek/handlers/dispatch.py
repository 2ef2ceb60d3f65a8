"""The dispatcher: from a request frame to the parts of its answer.

One table lists the versions and the handler of each API key; the answer to ApiVersions is derived
from it. A key or version outside the table closes the connection, and so does a malformed body.
Only ApiVersions of an unknown version is answered, in version 0 with error 35, so that newer
clients can fall back (KIP-511).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from odradek import slices
from odradek.handlers import (
    acls,
    alter_configs,
    configs,
    control,
    elections,
    fetch,
    group_offsets,
    groups,
    log_dirs,
    metadata,
    offsets,
    produce,
    producers,
    reassignments,
    topics,
)
from odradek.handlers.context import Broker, RequestContext
from odradek.net.connection import ClientInfo
from odradek.net.frame import ProtocolViolation
from odradek.protocol import codec, headers
from odradek.protocol.api import APIS, Api, ApiKey
from odradek.protocol.codec import MalformedError
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from odradek.protocol.messages.fetch import FetchResponse
from odradek.protocol.regions import Part

logger = logging.getLogger(__name__)

# Larger requests are decoded in slices: the smallest elements of so many bytes take some 20 ms.
LARGE_FRAME_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class Served:
    """An API that this broker serves, in versions `lowest` to `highest`."""

    api: Api
    lowest: int
    highest: int
    handle: Callable[[Broker, Any, RequestContext], Any]
    # Answers may be far larger than requests. They wait while others that nobody reads fill the
    # memory.
    large_answers: bool = False


async def _api_versions(
    broker: Broker, request: ApiVersionsRequest, context: RequestContext
) -> ApiVersionsResponse:
    return ApiVersionsResponse(api_keys=list(ADVERTISED))


_HANDLERS: Mapping[ApiKey, tuple[int, int, Callable[[Broker, Any, RequestContext], Any]]] = {
    # Produce from 0: librdkafka up to 2.11 otherwise sends gzip, snappy and lz4 uncompressed
    # (KAFKA-18659).
    ApiKey.PRODUCE: (0, 9, produce.produce),
    ApiKey.FETCH: (0, 12, fetch.fetch),
    ApiKey.LIST_OFFSETS: (0, 6, offsets.list_offsets),
    ApiKey.METADATA: (0, 9, metadata.metadata),
    ApiKey.LEADER_AND_ISR: (0, 4, control.leader_and_isr),
    ApiKey.STOP_REPLICA: (0, 3, control.stop_replica),
    ApiKey.UPDATE_METADATA: (0, 6, control.update_metadata),
    ApiKey.CONTROLLED_SHUTDOWN: (0, 3, control.controlled_shutdown),
    ApiKey.OFFSET_COMMIT: (0, 8, group_offsets.offset_commit),
    ApiKey.OFFSET_FETCH: (0, 7, group_offsets.offset_fetch),
    ApiKey.FIND_COORDINATOR: (0, 3, groups.find_coordinator),
    ApiKey.JOIN_GROUP: (0, 7, groups.join_group),
    ApiKey.HEARTBEAT: (0, 4, groups.heartbeat),
    ApiKey.LEAVE_GROUP: (0, 4, groups.leave_group),
    ApiKey.SYNC_GROUP: (0, 5, groups.sync_group),
    ApiKey.DESCRIBE_GROUPS: (0, 5, groups.describe_groups),
    ApiKey.LIST_GROUPS: (0, 4, groups.list_groups),
    ApiKey.DELETE_GROUPS: (0, 2, groups.delete_groups),
    ApiKey.OFFSET_DELETE: (0, 0, group_offsets.offset_delete),
    ApiKey.API_VERSIONS: (0, 4, _api_versions),
    ApiKey.CREATE_TOPICS: (0, 6, topics.create_topics),
    ApiKey.DELETE_TOPICS: (0, 5, topics.delete_topics),
    ApiKey.DELETE_RECORDS: (0, 2, offsets.delete_records),
    ApiKey.INIT_PRODUCER_ID: (0, 4, producers.init_producer_id),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (0, 4, offsets.offset_for_leader_epoch),
    ApiKey.DESCRIBE_ACLS: (0, 2, acls.describe_acls),
    ApiKey.CREATE_ACLS: (0, 2, acls.create_acls),
    ApiKey.DELETE_ACLS: (0, 2, acls.delete_acls),
    ApiKey.DESCRIBE_CONFIGS: (0, 4, configs.describe_configs),
    ApiKey.ALTER_CONFIGS: (0, 2, alter_configs.alter_configs),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1, alter_configs.incremental_alter_configs),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (0, 2, log_dirs.alter_replica_log_dirs),
    ApiKey.DESCRIBE_LOG_DIRS: (0, 2, log_dirs.describe_log_dirs),
    ApiKey.ELECT_LEADERS: (0, 2, elections.elect_leaders),
    ApiKey.CREATE_PARTITIONS: (0, 3, topics.create_partitions),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 0, reassignments.alter_partition_reassignments),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0, reassignments.list_partition_reassignments),
}

# Brokers send none of these: clients that do not read cannot hold up a broker. Fetch has a bound of
# its own where its answers are no regions of files (see `fetch_conversion`).
_LARGE_ANSWERS = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.OFFSET_FETCH,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.CREATE_TOPICS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.ELECT_LEADERS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
    }
)

SERVED: Mapping[int, Served] = {
    key: Served(APIS[key], lowest, highest, handle, key in _LARGE_ANSWERS)
    for key, (lowest, highest, handle) in _HANDLERS.items()
}
# Served before the first UpdateMetadata: requests of the controller, and ApiVersions.
_BEFORE_METADATA = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.API_VERSIONS,
    }
)
# Their answers have about as many elements as the requests.
_DATA_PATH = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
ADVERTISED = tuple(
    ApiVersion(api_key=key, min_version=served.lowest, max_version=served.highest)
    for key, served in SERVED.items()
)


class Dispatcher:
    """Serves the requests of one listener."""

    def __init__(self, broker: Broker, listener: str) -> None:
        self._answers = broker.answers
        self._broker = broker
        self._listener = listener
        self._observe = broker.metrics.request_observers(
            {key: served.api.name for key, served in SERVED.items()}
        )

    async def dispatch(self, frame: memoryview, peer: ClientInfo) -> list[Part] | None:
        """Return the parts of the answer, None if there is none. Raises ProtocolViolation."""
        began = perf_counter()
        try:
            header, position = headers.decode_request_header(frame)
        except MalformedError as error:
            raise ProtocolViolation(str(error)) from error
        served = SERVED.get(header.api_key)
        if served is None:
            raise ProtocolViolation(f"request key {header.api_key} is not served")
        version = header.api_version
        if not served.lowest <= version <= served.highest:
            return _unsupported(served, version, header.correlation_id)
        is_large = len(frame) > LARGE_FRAME_BYTES
        try:
            request, _ = (
                await slices.run(
                    codec.decode_in_slices(served.api.request, version, frame, position)
                )
                if is_large
                else codec.decode(served.api.request, version, frame, position)
            )
        except MalformedError as error:
            raise ProtocolViolation(str(error)) from error
        if not self._broker.metadata.initialized and header.api_key not in _BEFORE_METADATA:
            # The metadata cache is still empty: "unknown topic" would be wrong.
            await self._broker.metadata.wait_until_initialized()
        if self._answers.full and served.large_answers:
            await self._answers.wait_for_room()
        answer = await served.handle(
            self._broker,
            request,
            RequestContext(
                version,
                header.client_id,
                self._listener,
                peer.host,
                peer.connection_id,
                peer.is_connected,
            ),
        )
        self._observe[header.api_key](perf_counter() - began)
        if answer is None:
            return None
        correlation_id = header.correlation_id
        if isinstance(answer, bytes):
            start = headers.encode_response_header(served.api, version, correlation_id)
            return [start + answer]
        if header.api_key in _DATA_PATH and not is_large:
            return headers.encode_response(served.api, version, correlation_id, answer)
        # Small requests may have large answers.
        try:
            return await slices.run(
                headers.encode_response_in_slices(served.api, version, correlation_id, answer)
            )
        except BaseException:
            if isinstance(answer, FetchResponse):
                fetch.discard(answer)  # the connection ended meanwhile
            raise


def _unsupported(served: Served, version: int, correlation_id: int) -> list[Part]:
    if served.api.key is not ApiKey.API_VERSIONS:
        raise ProtocolViolation(f"{served.api.name} version {version} is not served")
    answer = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=list(ADVERTISED)
    )
    return headers.encode_response(served.api, 0, correlation_id, answer)
