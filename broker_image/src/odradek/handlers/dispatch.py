"""The dispatcher: from a request frame to the parts of its answer.

One table lists the versions and the handler of each API key; the answer to ApiVersions is derived
from it. A key or version outside the table closes the connection, and so does a malformed body.
Only ApiVersions of an unknown version is answered, in version 0 with error 35, so that newer
clients can fall back (KIP-511).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from time import perf_counter
from typing import Any

from odradek import slices
from odradek.handlers import (
    acls,
    alter_configs,
    client_quotas,
    cluster,
    configs,
    control,
    delegation_tokens,
    elections,
    features,
    fetch,
    fetch_answers,
    group_offsets,
    groups,
    log_dirs,
    metadata,
    offsets,
    produce,
    producers,
    reassignments,
    rules,
    sasl,
    topic_rules,
    topics,
    transaction_markers,
    transaction_offsets,
    transaction_rules,
    transaction_states,
    transactions,
    user_credentials,
)
from odradek.handlers.context import Broker, RequestContext
from odradek.handlers.rules import Rule
from odradek.net.client_info import Answer, ClientInfo
from odradek.net.frame import ProtocolViolation
from odradek.net.owed_answers import Later
from odradek.protocol import codec, headers, schema
from odradek.protocol.api import APIS, Api, ApiKey
from odradek.protocol.codec import MalformedError, TooManyElementsError
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from odradek.protocol.messages.control import UpdateMetadataResponse
from odradek.protocol.messages.fetch import FetchResponse
from odradek.protocol.regions import Part
from odradek.quotas.request_quota import CpuMeter, RequestQuota
from odradek.replica.fetch_sessions import NO_SESSION
from odradek.security.acls import CLUSTER_NAME, AclOperation, ResourceType

logger = logging.getLogger(__name__)

_tuple = tuple.__new__

READ, DESCRIBE, ALTER = AclOperation.READ, AclOperation.DESCRIBE, AclOperation.ALTER
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS

FIRST_WITH_SOFTWARE = 3
"""The first version of ApiVersions that names the client library."""
# What its name and version may be (KIP-511).
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")

ELEMENTS_AT_ONCE = 2500
"""Elements of the arrays of a request that is decoded without a pause, which takes some ten
milliseconds at most.
"""


@dataclass(frozen=True, slots=True)
class Served:
    """An API that this broker serves, in versions `lowest` to `highest`."""

    api: Api
    lowest: int
    highest: int
    handle: Callable[[Broker, Any, RequestContext], Any]
    rule: Rule
    # Answers may be far larger than requests. They wait while others that nobody reads fill the
    # memory.
    large_answers: bool = False


async def _api_versions(
    broker: Broker, request: ApiVersionsRequest, context: RequestContext
) -> ApiVersionsResponse:
    if context.version >= FIRST_WITH_SOFTWARE and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
    return ApiVersionsResponse(api_keys=list(ADVERTISED))


# Lowest and highest version, handler, and what its sender needs: see `rules`.
_HANDLERS: Mapping[ApiKey, tuple[int, int, Callable[[Broker, Any, RequestContext], Any], Rule]] = {
    # Produce from 0: librdkafka up to 2.11 otherwise sends gzip, snappy and lz4 uncompressed
    # (KAFKA-18659).
    ApiKey.PRODUCE: (0, 9, produce.produce, topic_rules.produce),
    ApiKey.FETCH: (0, 12, fetch.fetch, topic_rules.fetch),
    ApiKey.LIST_OFFSETS: (0, 6, offsets.list_offsets, topic_rules.list_offsets),
    ApiKey.METADATA: (0, 11, metadata.metadata, rules.in_handler),
    ApiKey.LEADER_AND_ISR: (
        0,
        4,
        control.leader_and_isr,
        rules.of_brokers(rules.refuse_leader_and_isr),
    ),
    ApiKey.STOP_REPLICA: (0, 3, control.stop_replica, rules.of_brokers(rules.refuse_stop_replica)),
    ApiKey.UPDATE_METADATA: (
        0,
        6,
        control.update_metadata,
        rules.of_brokers(rules.answer(UpdateMetadataResponse)),
    ),
    ApiKey.CONTROLLED_SHUTDOWN: (
        0,
        3,
        control.controlled_shutdown,
        rules.of_brokers(rules.refuse_controlled_shutdown),
    ),
    ApiKey.OFFSET_COMMIT: (0, 8, group_offsets.offset_commit, topic_rules.offset_commit),
    ApiKey.OFFSET_FETCH: (0, 7, group_offsets.offset_fetch, topic_rules.offset_fetch),
    ApiKey.FIND_COORDINATOR: (0, 3, groups.find_coordinator, rules.find_coordinator),
    ApiKey.JOIN_GROUP: (0, 7, groups.join_group, rules.on_group(READ, rules.refuse_join)),
    ApiKey.HEARTBEAT: (0, 4, groups.heartbeat, rules.on_group(READ, rules.refuse_heartbeat)),
    ApiKey.LEAVE_GROUP: (0, 4, groups.leave_group, rules.on_group(READ, rules.refuse_leave)),
    ApiKey.SYNC_GROUP: (0, 5, groups.sync_group, rules.on_group(READ, rules.refuse_sync)),
    ApiKey.DESCRIBE_GROUPS: (0, 5, groups.describe_groups, rules.describe_groups),
    ApiKey.LIST_GROUPS: (0, 4, groups.list_groups, rules.list_groups),
    ApiKey.DELETE_GROUPS: (0, 2, groups.delete_groups, rules.delete_groups),
    ApiKey.OFFSET_DELETE: (0, 0, group_offsets.offset_delete, topic_rules.offset_delete),
    ApiKey.TXN_OFFSET_COMMIT: (
        0,
        3,
        transaction_offsets.txn_offset_commit,
        topic_rules.txn_offset_commit,
    ),
    ApiKey.API_VERSIONS: (0, 4, _api_versions, rules.everybody),
    ApiKey.CREATE_TOPICS: (0, 6, topics.create_topics, topic_rules.create_topics),
    ApiKey.DELETE_TOPICS: (0, 5, topics.delete_topics, topic_rules.delete_topics),
    ApiKey.DELETE_RECORDS: (0, 2, offsets.delete_records, topic_rules.delete_records),
    ApiKey.INIT_PRODUCER_ID: (0, 4, producers.init_producer_id, rules.init_producer_id),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        0,
        4,
        offsets.offset_for_leader_epoch,
        topic_rules.offset_for_leader_epoch,
    ),
    # Clients send versions up to 3, also where more are advertised.
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        0,
        4,
        transactions.add_partitions_to_txn,
        transaction_rules.add_partitions_to_txn,
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (
        0,
        3,
        transactions.add_offsets_to_txn,
        transaction_rules.add_offsets_to_txn,
    ),
    ApiKey.END_TXN: (0, 3, transactions.end_txn, transaction_rules.end_txn),
    ApiKey.WRITE_TXN_MARKERS: (
        0,
        1,
        transaction_markers.write_txn_markers,
        transaction_rules.write_txn_markers,
    ),
    ApiKey.DESCRIBE_ACLS: (
        0,
        2,
        acls.describe_acls,
        rules.on_cluster(DESCRIBE, rules.refuse_describe_acls),
    ),
    ApiKey.CREATE_ACLS: (0, 2, acls.create_acls, rules.on_cluster(ALTER, rules.refuse_create_acls)),
    ApiKey.DELETE_ACLS: (0, 2, acls.delete_acls, rules.on_cluster(ALTER, rules.refuse_delete_acls)),
    ApiKey.DESCRIBE_CONFIGS: (0, 4, configs.describe_configs, rules.describe_configs),
    ApiKey.ALTER_CONFIGS: (0, 2, alter_configs.alter_configs, rules.alter_configs),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        0,
        1,
        alter_configs.incremental_alter_configs,
        rules.incremental_alter_configs,
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        0,
        2,
        log_dirs.alter_replica_log_dirs,
        rules.on_cluster(ALTER, rules.refuse_alter_log_dirs),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (
        0,
        2,
        log_dirs.describe_log_dirs,
        rules.on_cluster(DESCRIBE, rules.refuse_describe_log_dirs),
    ),
    ApiKey.ELECT_LEADERS: (
        0,
        2,
        elections.elect_leaders,
        rules.on_cluster(ALTER, rules.refuse_elections),
    ),
    ApiKey.CREATE_PARTITIONS: (0, 3, topics.create_partitions, topic_rules.create_partitions),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        0,
        0,
        reassignments.alter_partition_reassignments,
        rules.on_cluster(ALTER, rules.refuse_reassignments),
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (
        0,
        0,
        reassignments.list_partition_reassignments,
        rules.on_cluster(DESCRIBE, rules.refuse_listed_reassignments),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (
        0,
        1,
        client_quotas.describe_client_quotas,
        rules.on_cluster(DESCRIBE_CONFIGS, rules.refuse_describe_quotas),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: (
        0,
        1,
        client_quotas.alter_client_quotas,
        rules.on_cluster(ALTER_CONFIGS, rules.refuse_alter_quotas),
    ),
    ApiKey.SASL_HANDSHAKE: (0, 1, sasl.sasl_handshake, rules.everybody),
    ApiKey.SASL_AUTHENTICATE: (0, 2, sasl.sasl_authenticate, rules.everybody),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (
        0,
        0,
        user_credentials.describe_user_scram_credentials,
        rules.on_cluster(DESCRIBE, rules.refuse_describe_credentials),
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        0,
        0,
        user_credentials.alter_user_scram_credentials,
        rules.on_cluster(ALTER, rules.refuse_alter_credentials),
    ),
    # Kafka asks for rights on single tokens only, of which there are none.
    ApiKey.CREATE_DELEGATION_TOKEN: (0, 2, delegation_tokens.create_token, rules.everybody),
    ApiKey.RENEW_DELEGATION_TOKEN: (0, 2, delegation_tokens.renew_token, rules.everybody),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (0, 2, delegation_tokens.expire_token, rules.everybody),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (0, 2, delegation_tokens.describe_tokens, rules.everybody),
    ApiKey.UPDATE_FEATURES: (
        0,
        0,
        features.update_features,
        rules.on_cluster(ALTER, rules.refuse_features),
    ),
    ApiKey.DESCRIBE_CLUSTER: (0, 0, cluster.describe_cluster, rules.in_handler),
    ApiKey.DESCRIBE_PRODUCERS: (
        0,
        0,
        transaction_states.describe_producers,
        transaction_rules.describe_producers,
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        0,
        0,
        transaction_states.describe_transactions,
        transaction_rules.describe_transactions,
    ),
    ApiKey.LIST_TRANSACTIONS: (
        0,
        1,
        transaction_states.list_transactions,
        transaction_rules.list_transactions,
    ),
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
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
    }
)

SERVED: Mapping[int, Served] = {
    key: Served(APIS[key], lowest, highest, handle, rule, key in _LARGE_ANSWERS)
    for key, (lowest, highest, handle, rule) in _HANDLERS.items()
}


def _ruled(served: Served) -> Served:
    """Return the API with its rule in front of the handler."""
    rule, handle = served.rule, served.handle

    def check(broker: Broker, request: object, context: RequestContext) -> Awaitable[Any]:
        return rule(broker, request, context, handle)

    return replace(served, handle=check)


# With an authorizer. Without one, a rule costs nothing.
_RULED: Mapping[int, Served] = {key: _ruled(served) for key, served in SERVED.items()}
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
# Requests of brokers, which no quota is for, and their first version. Followers' have a replica id.
_OF_BROKERS: Mapping[int, int] = {
    ApiKey.LEADER_AND_ISR: 0,
    ApiKey.STOP_REPLICA: 0,
    ApiKey.UPDATE_METADATA: 0,
    ApiKey.CONTROLLED_SHUTDOWN: 0,
    ApiKey.WRITE_TXN_MARKERS: 0,
    # Producers wait for the answers.
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.FIRST_OF_BROKERS,
}
# The version from which on an answer has about as many elements as its request.
_AS_LARGE_AS_REQUEST: Mapping[int, int] = {
    ApiKey.PRODUCE: 0,
    ApiKey.FETCH: 0,
    ApiKey.LIST_OFFSETS: offsets.FIRST_WITH_ONE_OFFSET,
}
_NEVER = 0x7FFF


@cache
def _answers_briefly_from(key: int) -> int:
    """Return the version from which on an answer to a short request is short, too."""
    return _AS_LARGE_AS_REQUEST.get(key, _NEVER if schema.has_arrays(APIS[key].response) else 0)


ADVERTISED = tuple(
    ApiVersion(api_key=key, min_version=served.lowest, max_version=served.highest)
    for key, served in SERVED.items()
)


class Dispatcher:
    """Serves the requests of one listener."""

    def __init__(self, broker: Broker, listener: str) -> None:
        self._answers = broker.answers
        self._broker = broker
        self._quotas = broker.quotas
        self._listener = listener
        self._has_metadata = False
        self._served = SERVED if broker.authorizer is None else _RULED
        self._observe = broker.metrics.request_observers(
            {key: served.api.name for key, served in SERVED.items()}
        )

    def dispatch(self, frame: memoryview, peer: ClientInfo) -> Awaitable[Answer]:
        """Return the parts of the answer, None if there is none. Raises ProtocolViolation."""
        if not self._quotas.enforced or peer.is_stranger:
            return self._serve(frame, peer)
        meter = CpuMeter()
        return meter.run(self._serve(frame, peer, meter))

    async def _serve(
        self, frame: memoryview, peer: ClientInfo, meter: CpuMeter | None = None
    ) -> Answer:
        began = perf_counter()
        try:
            header, position = headers.decode_request_header(frame)
        except MalformedError as error:
            raise ProtocolViolation(str(error)) from error
        key, version, correlation_id, client_id = header
        served = self._served.get(key)
        if served is None:
            raise ProtocolViolation(f"request key {key} is not served")
        if not served.lowest <= version <= served.highest:
            return _unsupported(served, version, correlation_id)
        is_large = False
        request = answer = quota = None
        try:
            try:
                request, _ = codec.decode(
                    served.api.request, version, frame, position, ELEMENTS_AT_ONCE
                )
            except TooManyElementsError:
                # The collector would look through its elements again and again.
                is_large = True
                slices.begin_pause()
                request = await _decode_in_slices(served, version, frame, position)
            except MalformedError as error:
                raise ProtocolViolation(str(error)) from error
            if not self._has_metadata and key not in _BEFORE_METADATA:
                # The metadata cache is still empty: "unknown topic" would be wrong.
                await self._broker.metadata.wait_until_initialized()
                self._has_metadata = True
            if self._answers.full and served.large_answers:
                await self._answers.wait_for_room()
            if meter is not None:
                quota = self._quota(header, request, peer, len(frame), meter)
            answer = await served.handle(
                self._broker,
                request,
                _tuple(
                    RequestContext,
                    (
                        version,
                        client_id,
                        self._listener,
                        peer.host,
                        peer.connection_id,
                        peer.is_connected,
                        peer.principal,
                        quota,
                        peer.next_request,
                        peer.unasked,
                        peer.takes_later and meter is None and not is_large,
                    ),
                ),
            )
            kind = type(answer)
            if kind is Later:
                return Later(partial(self._answer_later, served, header, answer, began))
            if quota is not None:
                answer = _throttled(header, quota, answer, peer)
            self._observe[key](perf_counter() - began)
            if answer is None:
                return None
            if kind is bytes:
                start = headers.encode_response_header(served.api, version, correlation_id)
                return [start + answer]
            if (
                not is_large
                and version >= _answers_briefly_from(key)
                and not (kind is FetchResponse and _is_long_of_session(answer))
            ):
                return headers.encode_response(served.api, version, correlation_id, answer)
            # Small requests may have large answers.
            try:
                return await slices.run(
                    headers.encode_response_in_slices(served.api, version, correlation_id, answer)
                )
            except BaseException:
                if isinstance(answer, FetchResponse):
                    fetch_answers.discard(answer)  # the connection ended meanwhile
                raise
        finally:
            if is_large:
                slices.run_in_background(codec.free_in_slices(request, answer))
                slices.end_pause()

    async def _answer_later(
        self, served: Served, header: headers.RequestHeader, later: Later[Any], began: float
    ) -> list[Part]:
        """Return the parts of an answer to a request of few elements."""
        answer = await later.wait()
        self._observe[header.api_key](perf_counter() - began)
        return headers.encode_response(
            served.api, header.api_version, header.correlation_id, answer
        )

    def _quota(
        self,
        header: headers.RequestHeader,
        request: Any,
        peer: ClientInfo,
        size: int,
        meter: CpuMeter,
    ) -> RequestQuota | None:
        """Return the quota of a request, None if it is a broker's."""
        of_brokers = header.api_version >= _OF_BROKERS.get(header.api_key, _NEVER)
        if (of_brokers or getattr(request, "replica_id", -1) >= 0) and self._is_broker(peer):
            return None
        sensors = self._quotas.sensors(peer.principal.name, header.client_id)
        return RequestQuota(self._quotas, sensors, size, meter)

    def _is_broker(self, peer: ClientInfo) -> bool:
        """Return whether a client that claims to be a broker may act as one."""
        authorizer = self._broker.authorizer
        return authorizer is None or authorizer.allow(
            peer.principal,
            peer.host,
            AclOperation.CLUSTER_ACTION,
            ResourceType.CLUSTER,
            CLUSTER_NAME,
            log=False,
        )


def _is_long_of_session(answer: FetchResponse) -> bool:
    return answer.session_id != NO_SESSION and fetch_answers.is_long(answer)


def _throttled(
    header: headers.RequestHeader, quota: RequestQuota, answer: Any, peer: ClientInfo
) -> Any:
    """Return the answer with its throttle time, and mute the connection for it (KIP-219)."""
    is_produce = header.api_key == ApiKey.PRODUCE
    throttle_ms = quota.settle(produces=is_produce, answered=answer is not None)
    peer.throttling.send = quota.send
    if throttle_ms:
        peer.throttling.mute_s = throttle_ms / 1000
        if isinstance(answer, bytes):
            return metadata.with_throttle_time(answer, header.api_version, throttle_ms)
        if hasattr(answer, "throttle_time_ms"):  # not in those of SASL and of the controller
            answer.throttle_time_ms = throttle_ms
    return answer


async def _decode_in_slices(served: Served, version: int, frame: memoryview, position: int) -> Any:
    try:
        request, _ = await slices.run(
            codec.decode_in_slices(served.api.request, version, frame, position)
        )
    except MalformedError as error:
        raise ProtocolViolation(str(error)) from error
    return request


def _unsupported(served: Served, version: int, correlation_id: int) -> list[Part]:
    if served.api.key is not ApiKey.API_VERSIONS:
        raise ProtocolViolation(f"{served.api.name} version {version} is not served")
    answer = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=list(ADVERTISED)
    )
    return headers.encode_response(served.api, 0, correlation_id, answer)
