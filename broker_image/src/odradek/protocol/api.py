"""The table of API keys, with their messages and the versions that the codec knows.

Which of them a broker advertises is decided where requests are handled.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from odradek.protocol import schema
from odradek.protocol.messages import (
    acls,
    admin,
    api_versions,
    client_quotas,
    configs,
    control,
    delegation_tokens,
    features,
    fetch,
    group_offsets,
    groups,
    metadata,
    offsets,
    produce,
    producers,
    sasl,
    topics,
    transaction_states,
    transactions,
)


class ApiKey(IntEnum):
    """Number that a request header carries to say what the request is."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


@dataclass(frozen=True, slots=True)
class Api:
    """One kind of request and its answer; versions are inclusive, `flexible_from` as in KIP-482."""

    key: ApiKey
    name: str
    request: type[Any]
    response: type[Any]
    min_version: int
    max_version: int
    flexible_from: int | None
    # The first version whose response header carries tagged fields: see below.
    tagged_response_from: int

    def is_flexible(self, version: int) -> bool:
        """Tell whether bodies of this version, and its request header, carry tagged fields."""
        return self.flexible_from is not None and version >= self.flexible_from

    def has_flexible_response_header(self, version: int) -> bool:
        """Tell whether the response header carries tagged fields.

        Never for ApiVersions: its sender cannot know yet what the broker speaks (KIP-511).
        """
        return version >= self.tagged_response_from


def _api(key: ApiKey, request: type[Any], response: type[Any]) -> Api:
    declared = schema.of(request)
    assert declared.versions is not None
    assert declared.versions == schema.of(response).versions
    name = declared.name.removesuffix("Request")
    flexible_from = declared.flexible_from
    never = declared.versions[1] + 1
    tagged_from = never if flexible_from is None or key is ApiKey.API_VERSIONS else flexible_from
    return Api(key, name, request, response, *declared.versions, flexible_from, tagged_from)


_TABLE: Final = (
    _api(ApiKey.PRODUCE, produce.ProduceRequest, produce.ProduceResponse),
    _api(ApiKey.FETCH, fetch.FetchRequest, fetch.FetchResponse),
    _api(ApiKey.LIST_OFFSETS, offsets.ListOffsetsRequest, offsets.ListOffsetsResponse),
    _api(ApiKey.METADATA, metadata.MetadataRequest, metadata.MetadataResponse),
    _api(ApiKey.LEADER_AND_ISR, control.LeaderAndIsrRequest, control.LeaderAndIsrResponse),
    _api(ApiKey.STOP_REPLICA, control.StopReplicaRequest, control.StopReplicaResponse),
    _api(ApiKey.UPDATE_METADATA, control.UpdateMetadataRequest, control.UpdateMetadataResponse),
    _api(
        ApiKey.CONTROLLED_SHUTDOWN,
        control.ControlledShutdownRequest,
        control.ControlledShutdownResponse,
    ),
    _api(
        ApiKey.OFFSET_COMMIT, group_offsets.OffsetCommitRequest, group_offsets.OffsetCommitResponse
    ),
    _api(ApiKey.OFFSET_FETCH, group_offsets.OffsetFetchRequest, group_offsets.OffsetFetchResponse),
    _api(ApiKey.FIND_COORDINATOR, groups.FindCoordinatorRequest, groups.FindCoordinatorResponse),
    _api(ApiKey.JOIN_GROUP, groups.JoinGroupRequest, groups.JoinGroupResponse),
    _api(ApiKey.HEARTBEAT, groups.HeartbeatRequest, groups.HeartbeatResponse),
    _api(ApiKey.LEAVE_GROUP, groups.LeaveGroupRequest, groups.LeaveGroupResponse),
    _api(ApiKey.SYNC_GROUP, groups.SyncGroupRequest, groups.SyncGroupResponse),
    _api(ApiKey.DESCRIBE_GROUPS, groups.DescribeGroupsRequest, groups.DescribeGroupsResponse),
    _api(ApiKey.LIST_GROUPS, groups.ListGroupsRequest, groups.ListGroupsResponse),
    _api(ApiKey.SASL_HANDSHAKE, sasl.SaslHandshakeRequest, sasl.SaslHandshakeResponse),
    _api(ApiKey.API_VERSIONS, api_versions.ApiVersionsRequest, api_versions.ApiVersionsResponse),
    _api(ApiKey.CREATE_TOPICS, topics.CreateTopicsRequest, topics.CreateTopicsResponse),
    _api(ApiKey.DELETE_TOPICS, topics.DeleteTopicsRequest, topics.DeleteTopicsResponse),
    _api(ApiKey.DELETE_RECORDS, offsets.DeleteRecordsRequest, offsets.DeleteRecordsResponse),
    _api(
        ApiKey.INIT_PRODUCER_ID, producers.InitProducerIdRequest, producers.InitProducerIdResponse
    ),
    _api(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        offsets.OffsetForLeaderEpochRequest,
        offsets.OffsetForLeaderEpochResponse,
    ),
    _api(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        transactions.AddPartitionsToTxnRequest,
        transactions.AddPartitionsToTxnResponse,
    ),
    _api(
        ApiKey.ADD_OFFSETS_TO_TXN,
        transactions.AddOffsetsToTxnRequest,
        transactions.AddOffsetsToTxnResponse,
    ),
    _api(ApiKey.END_TXN, transactions.EndTxnRequest, transactions.EndTxnResponse),
    _api(
        ApiKey.WRITE_TXN_MARKERS,
        transactions.WriteTxnMarkersRequest,
        transactions.WriteTxnMarkersResponse,
    ),
    _api(
        ApiKey.TXN_OFFSET_COMMIT,
        transactions.TxnOffsetCommitRequest,
        transactions.TxnOffsetCommitResponse,
    ),
    _api(ApiKey.DESCRIBE_ACLS, acls.DescribeAclsRequest, acls.DescribeAclsResponse),
    _api(ApiKey.CREATE_ACLS, acls.CreateAclsRequest, acls.CreateAclsResponse),
    _api(ApiKey.DELETE_ACLS, acls.DeleteAclsRequest, acls.DeleteAclsResponse),
    _api(ApiKey.DESCRIBE_CONFIGS, configs.DescribeConfigsRequest, configs.DescribeConfigsResponse),
    _api(ApiKey.ALTER_CONFIGS, configs.AlterConfigsRequest, configs.AlterConfigsResponse),
    _api(
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        admin.AlterReplicaLogDirsRequest,
        admin.AlterReplicaLogDirsResponse,
    ),
    _api(ApiKey.DESCRIBE_LOG_DIRS, admin.DescribeLogDirsRequest, admin.DescribeLogDirsResponse),
    _api(ApiKey.SASL_AUTHENTICATE, sasl.SaslAuthenticateRequest, sasl.SaslAuthenticateResponse),
    _api(ApiKey.CREATE_PARTITIONS, topics.CreatePartitionsRequest, topics.CreatePartitionsResponse),
    _api(
        ApiKey.CREATE_DELEGATION_TOKEN,
        delegation_tokens.CreateDelegationTokenRequest,
        delegation_tokens.CreateDelegationTokenResponse,
    ),
    _api(
        ApiKey.RENEW_DELEGATION_TOKEN,
        delegation_tokens.RenewDelegationTokenRequest,
        delegation_tokens.RenewDelegationTokenResponse,
    ),
    _api(
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        delegation_tokens.ExpireDelegationTokenRequest,
        delegation_tokens.ExpireDelegationTokenResponse,
    ),
    _api(
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        delegation_tokens.DescribeDelegationTokenRequest,
        delegation_tokens.DescribeDelegationTokenResponse,
    ),
    _api(ApiKey.DELETE_GROUPS, groups.DeleteGroupsRequest, groups.DeleteGroupsResponse),
    _api(ApiKey.ELECT_LEADERS, admin.ElectLeadersRequest, admin.ElectLeadersResponse),
    _api(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        configs.IncrementalAlterConfigsRequest,
        configs.IncrementalAlterConfigsResponse,
    ),
    _api(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        admin.AlterPartitionReassignmentsRequest,
        admin.AlterPartitionReassignmentsResponse,
    ),
    _api(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        admin.ListPartitionReassignmentsRequest,
        admin.ListPartitionReassignmentsResponse,
    ),
    _api(
        ApiKey.OFFSET_DELETE, group_offsets.OffsetDeleteRequest, group_offsets.OffsetDeleteResponse
    ),
    _api(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        client_quotas.DescribeClientQuotasRequest,
        client_quotas.DescribeClientQuotasResponse,
    ),
    _api(
        ApiKey.ALTER_CLIENT_QUOTAS,
        client_quotas.AlterClientQuotasRequest,
        client_quotas.AlterClientQuotasResponse,
    ),
    _api(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        sasl.DescribeUserScramCredentialsRequest,
        sasl.DescribeUserScramCredentialsResponse,
    ),
    _api(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        sasl.AlterUserScramCredentialsRequest,
        sasl.AlterUserScramCredentialsResponse,
    ),
    _api(ApiKey.UPDATE_FEATURES, features.UpdateFeaturesRequest, features.UpdateFeaturesResponse),
    _api(
        ApiKey.DESCRIBE_CLUSTER, metadata.DescribeClusterRequest, metadata.DescribeClusterResponse
    ),
    _api(
        ApiKey.DESCRIBE_PRODUCERS,
        transaction_states.DescribeProducersRequest,
        transaction_states.DescribeProducersResponse,
    ),
    _api(
        ApiKey.DESCRIBE_TRANSACTIONS,
        transaction_states.DescribeTransactionsRequest,
        transaction_states.DescribeTransactionsResponse,
    ),
    _api(
        ApiKey.LIST_TRANSACTIONS,
        transaction_states.ListTransactionsRequest,
        transaction_states.ListTransactionsResponse,
    ),
)

APIS: Final[dict[int, Api]] = {api.key: api for api in _TABLE}
_BY_REQUEST: Final = {api.request: api for api in _TABLE}


def of_request(request: type[Any]) -> Api:
    """Return the entry of a request class."""
    return _BY_REQUEST[request]
