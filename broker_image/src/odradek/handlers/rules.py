"""The rule of each API: what its sender needs, and the answer to one who lacks it.

With an authorizer, the dispatcher calls the rule of an API instead of its handler. A rule refuses,
or passes the request on to the handler; `topic_rules` has those that look at topics. The rights are
those that Apache Kafka 2.8.2 checks, which its table of documentation does not always name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

from odradek import slices
from odradek.handlers import authorization
from odradek.handlers.authorization import allowed
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import (
    acls,
    admin,
    client_quotas,
    configs,
    control,
    features,
    groups,
    producers,
    sasl,
    transactions,
)
from odradek.security.acls import CLUSTER_NAME, AclOperation, ResourceType

Handle = Callable[[Broker, Any, RequestContext], Awaitable[Any]]
Rule = Callable[[Broker, Any, RequestContext, Handle], Awaitable[Any]]
Refusal = Callable[[Any, RequestContext], Awaitable[Any]]

DENIED = "Cluster authorization failed."
TOPIC, BROKER = 2, 4


async def everybody(
    broker: Broker, request: object, context: RequestContext, handle: Handle
) -> object:
    """Need nothing."""
    return await handle(broker, request, context)


async def in_handler(
    broker: Broker, request: object, context: RequestContext, handle: Handle
) -> object:
    """Leave it to the handler, which asks the authorizer itself."""
    return await handle(broker, request, context)


# --- the cluster ----------------------------------------------------------------------------------


def on_cluster(operation: AclOperation, refuse: Refusal) -> Rule:
    """Need a right on the cluster."""

    async def rule(
        broker: Broker, request: object, context: RequestContext, handle: Handle
    ) -> object:
        if allowed(broker, context, operation, ResourceType.CLUSTER):
            return await handle(broker, request, context)
        return await refuse(request, context)

    return rule


def of_brokers(refuse: Refusal) -> Rule:
    """Need ClusterAction, on any listener: brokers change theirs one after the other."""
    return on_cluster(AclOperation.CLUSTER_ACTION, refuse)


def answer(make: Callable[..., object]) -> Refusal:
    """Refuse with an answer that has no other field than the error."""

    async def refuse(request: object, context: RequestContext) -> object:
        return make(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    return refuse


async def refuse_markers(
    request: transactions.WriteTxnMarkersRequest, context: RequestContext
) -> transactions.WriteTxnMarkersResponse:
    """Refuse each partition of each marker."""
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    results = []
    for number, marker in enumerate(request.markers, 1):
        topics = await _each_refused(
            marker.topics,
            lambda topic: topic.partition_indexes,
            lambda topic, found: transactions.WritableTxnMarkerTopicResult(
                name=topic.name, partitions=found
            ),
            lambda index: transactions.WritableTxnMarkerPartitionResult(
                partition_index=index, error_code=refused
            ),
        )
        results.append(
            transactions.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)
        )
        if number % slices.STEPS_PER_SLICE == 0:
            await slices.pause()
    return transactions.WriteTxnMarkersResponse(markers=results)


async def refuse_leader_and_isr(
    request: control.LeaderAndIsrRequest, context: RequestContext
) -> control.LeaderAndIsrResponse:
    """Refuse as a whole."""
    return control.LeaderAndIsrResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, partition_errors=[]
    )


async def refuse_stop_replica(
    request: control.StopReplicaRequest, context: RequestContext
) -> control.StopReplicaResponse:
    """Refuse as a whole."""
    return control.StopReplicaResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, partition_errors=[]
    )


async def refuse_controlled_shutdown(
    request: control.ControlledShutdownRequest, context: RequestContext
) -> control.ControlledShutdownResponse:
    """Refuse as a whole."""
    return control.ControlledShutdownResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, remaining_partitions=[]
    )


async def refuse_describe_acls(
    request: acls.DescribeAclsRequest, context: RequestContext
) -> acls.DescribeAclsResponse:
    """Refuse as a whole."""
    return acls.DescribeAclsResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=DENIED, resources=[]
    )


async def refuse_create_acls(
    request: acls.CreateAclsRequest, context: RequestContext
) -> acls.CreateAclsResponse:
    """Refuse each ACL."""
    refusal = acls.AclCreationResult(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=DENIED
    )
    return acls.CreateAclsResponse(results=[refusal] * len(request.creations))


async def refuse_delete_acls(
    request: acls.DeleteAclsRequest, context: RequestContext
) -> acls.DeleteAclsResponse:
    """Refuse each filter."""
    refusal = acls.DeleteAclsFilterResult(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=DENIED, matching_acls=[]
    )
    return acls.DeleteAclsResponse(filter_results=[refusal] * len(request.filters))


async def refuse_describe_quotas(
    request: client_quotas.DescribeClientQuotasRequest, context: RequestContext
) -> client_quotas.DescribeClientQuotasResponse:
    """Refuse as a whole."""
    return client_quotas.DescribeClientQuotasResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=DENIED, entries=None
    )


async def refuse_alter_quotas(
    request: client_quotas.AlterClientQuotasRequest, context: RequestContext
) -> client_quotas.AlterClientQuotasResponse:
    """Refuse each entity."""
    return client_quotas.AlterClientQuotasResponse(
        entries=await authorization.answers(
            request.entries,
            lambda one: client_quotas.AlteredQuotas(
                error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                error_message=DENIED,
                entity=one.entity,
            ),
        )
    )


async def refuse_describe_credentials(
    request: sasl.DescribeUserScramCredentialsRequest, context: RequestContext
) -> sasl.DescribeUserScramCredentialsResponse:
    """Refuse as a whole."""
    return sasl.DescribeUserScramCredentialsResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=DENIED
    )


async def refuse_alter_credentials(
    request: sasl.AlterUserScramCredentialsRequest, context: RequestContext
) -> sasl.AlterUserScramCredentialsResponse:
    """Refuse each user."""
    changed: Iterable[Any] = chain(request.upsertions, request.deletions)
    return sasl.AlterUserScramCredentialsResponse(
        results=await authorization.answers(
            await slices.unique(one.name for one in changed),
            lambda user: sasl.AlterUserScramCredentialsResult(
                user=user,
                error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                error_message=DENIED,
            ),
        )
    )


async def refuse_features(
    request: features.UpdateFeaturesRequest, context: RequestContext
) -> features.UpdateFeaturesResponse:
    """Refuse as a whole."""
    return features.UpdateFeaturesResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=DENIED, results=[]
    )


async def refuse_alter_log_dirs(
    request: admin.AlterReplicaLogDirsRequest, context: RequestContext
) -> admin.AlterReplicaLogDirsResponse:
    """Refuse each partition."""
    topics = (topic for one in request.dirs for topic in one.topics)
    return admin.AlterReplicaLogDirsResponse(
        results=await _each_refused(
            topics,
            lambda topic: topic.partitions,
            lambda topic, found: admin.AlterReplicaLogDirTopicResult(
                topic_name=topic.name, partitions=found
            ),
            lambda index: admin.AlterReplicaLogDirPartitionResult(
                partition_index=index, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            ),
        )
    )


async def refuse_describe_log_dirs(
    request: admin.DescribeLogDirsRequest, context: RequestContext
) -> admin.DescribeLogDirsResponse:
    """Show nothing: there is no field for an error before version 3."""
    return admin.DescribeLogDirsResponse(results=[])


async def refuse_elections(
    request: admin.ElectLeadersRequest, context: RequestContext
) -> admin.ElectLeadersResponse:
    """Refuse as a whole, and each partition: version 0 has no other error."""
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return admin.ElectLeadersResponse(
        error_code=code,
        replica_election_results=await _each_refused(
            request.topic_partitions or [],
            lambda topic: topic.partition_id,
            lambda topic, found: admin.ReplicaElectionResult(
                topic=topic.topic, partition_result=found
            ),
            lambda index: admin.PartitionResult(
                partition_id=index, error_code=code, error_message=DENIED
            ),
        ),
    )


async def refuse_reassignments(
    request: admin.AlterPartitionReassignmentsRequest, context: RequestContext
) -> admin.AlterPartitionReassignmentsResponse:
    """Refuse as a whole, and each partition."""
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return admin.AlterPartitionReassignmentsResponse(
        error_code=code,
        error_message=DENIED,
        responses=await _each_refused(
            request.topics,
            lambda topic: topic.partitions,
            lambda topic, found: admin.ReassignableTopicResponse(name=topic.name, partitions=found),
            lambda part: admin.ReassignablePartitionResponse(
                partition_index=part.partition_index, error_code=code, error_message=DENIED
            ),
        ),
    )


async def refuse_listed_reassignments(
    request: admin.ListPartitionReassignmentsRequest, context: RequestContext
) -> admin.ListPartitionReassignmentsResponse:
    """Refuse as a whole."""
    return admin.ListPartitionReassignmentsResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=DENIED, topics=[]
    )


async def _each_refused(
    topics: Iterable[Any],
    partitions_of: Callable[[Any], Iterable[Any]],
    topic_answer: Callable[[Any, list[Any]], Any],
    partition_answer: Callable[[Any], Any],
) -> list[Any]:
    """Return the refusal of each partition of each topic, in slices."""
    return await slices.run(each_refused(topics, partitions_of, topic_answer, partition_answer))


def each_refused(
    topics: Iterable[Any],
    partitions_of: Callable[[Any], Iterable[Any]],
    topic_answer: Callable[[Any, list[Any]], Any],
    partition_answer: Callable[[Any], Any],
) -> Generator[None, None, list[Any]]:
    """Return the answer of each topic, with that of each of its partitions."""
    answers: list[Any] = []
    steps = 0
    for topic in topics:
        found: list[Any] = []
        answers.append(topic_answer(topic, found))
        for one in partitions_of(topic):
            found.append(partition_answer(one))
            steps += 1
            if steps % slices.STEPS_PER_SLICE == 0:
                yield
        steps += 1
        if steps % slices.STEPS_PER_SLICE == 0:
            yield
    return answers


# --- groups and producers -------------------------------------------------------------------------


def on_group(operation: AclOperation, refuse: Callable[[ErrorCode], object]) -> Rule:
    """Need a right on the group of the request; `refuse` makes the answer."""

    async def rule(broker: Broker, request: Any, context: RequestContext, handle: Handle) -> object:
        if allowed(broker, context, operation, ResourceType.GROUP, request.group_id):
            return await handle(broker, request, context)
        return refuse(ErrorCode.GROUP_AUTHORIZATION_FAILED)

    return rule


def refuse_join(error: ErrorCode) -> groups.JoinGroupResponse:
    """Refuse to let a member join."""
    return groups.JoinGroupResponse(
        error_code=error, protocol_name="", leader="", member_id="", members=[]
    )


def refuse_sync(error: ErrorCode) -> groups.SyncGroupResponse:
    """Refuse to tell a member its share."""
    return groups.SyncGroupResponse(error_code=error, assignment=b"")


def refuse_heartbeat(error: ErrorCode) -> groups.HeartbeatResponse:
    """Refuse a heartbeat."""
    return groups.HeartbeatResponse(error_code=error)


def refuse_leave(error: ErrorCode) -> groups.LeaveGroupResponse:
    """Refuse to let members leave."""
    return groups.LeaveGroupResponse(error_code=error)


_OF_KEY_TYPE = {
    0: (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    1: (ResourceType.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
}


async def find_coordinator(
    broker: Broker,
    request: groups.FindCoordinatorRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Describe on the group or the transactional id. The handler refuses other types."""
    kind, code = _OF_KEY_TYPE.get(request.key_type, (None, ErrorCode.NONE))
    if kind is None or allowed(broker, context, AclOperation.DESCRIBE, kind, request.key):
        return await handle(broker, request, context)
    return groups.FindCoordinatorResponse(
        error_code=code, error_message=code.name, node_id=-1, host="", port=-1
    )


async def describe_groups(
    broker: Broker,
    request: groups.DescribeGroupsRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Describe on each group."""
    passed, refused = await authorization.split(
        broker, context, AclOperation.DESCRIBE, ResourceType.GROUP, request.groups, str
    )
    answered: groups.DescribeGroupsResponse = await handle(
        broker, replace(request, groups=passed), context
    )
    answered.groups += await authorization.answers(
        await slices.unique(refused),
        lambda name: groups.DescribedGroup(
            error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
            group_id=name,
            group_state="",
            protocol_type="",
            protocol_data="",
            members=[],
        ),
    )
    return answered


async def list_groups(
    broker: Broker,
    request: groups.ListGroupsRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Describe on the cluster; else only groups with Describe are listed."""
    answered: groups.ListGroupsResponse = await handle(broker, request, context)
    if not allowed(broker, context, AclOperation.DESCRIBE, ResourceType.CLUSTER, log=False):
        answered.groups, _ = await authorization.split(
            broker,
            context,
            AclOperation.DESCRIBE,
            ResourceType.GROUP,
            answered.groups,
            lambda group: group.group_id,
            log=False,
        )
    return answered


async def delete_groups(
    broker: Broker,
    request: groups.DeleteGroupsRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Delete on each group."""
    passed, refused = await authorization.split(
        broker, context, AclOperation.DELETE, ResourceType.GROUP, request.groups_names, str
    )
    answered: groups.DeleteGroupsResponse = await handle(
        broker, replace(request, groups_names=passed), context
    )
    answered.results += await authorization.answers(
        await slices.unique(refused),
        lambda name: groups.DeletableGroupResult(
            group_id=name, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
        ),
    )
    return answered


async def init_producer_id(
    broker: Broker,
    request: producers.InitProducerIdRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Write on the transactional id, else IdempotentWrite or Write on any topic (KIP-679)."""
    error = ErrorCode.NONE
    if request.transactional_id is not None:
        kind, name = ResourceType.TRANSACTIONAL_ID, request.transactional_id
        if not allowed(broker, context, AclOperation.WRITE, kind, name):
            error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not allowed(
        broker,
        context,
        AclOperation.IDEMPOTENT_WRITE,
        ResourceType.CLUSTER,
        CLUSTER_NAME,
        log=False,
    ) and not (
        broker.authorizer is None
        or broker.authorizer.allow_anywhere(
            context.principal, context.host, AclOperation.WRITE, ResourceType.TOPIC
        )
    ):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if error is ErrorCode.NONE:
        return await handle(broker, request, context)
    return producers.InitProducerIdResponse(error_code=error, producer_epoch=-1)


# --- configs --------------------------------------------------------------------------------------


def on_configs(operation: AclOperation, name: str, refuse: Callable[..., Any]) -> Rule:
    """Need a right on each topic, or on the cluster for brokers.

    `name` is the list in the answer, `refuse` makes a member of it.
    """

    async def rule(broker: Broker, request: Any, context: RequestContext, handle: Handle) -> object:
        refused: list[Any] = []
        passed: list[Any] = []
        for few in slices.cut(request.resources):
            for one in few:
                code = _config_refusal(broker, context, operation, one)
                if code is ErrorCode.NONE:
                    passed.append(one)
                else:
                    refused.append(
                        refuse(
                            error_code=code,
                            error_message=f"{code.name.replace('_', ' ').capitalize()}.",
                            resource_type=one.resource_type,
                            resource_name=one.resource_name,
                        )
                    )
            if len(few) == slices.STEPS_PER_SLICE:
                await slices.pause()
        answered = await handle(broker, replace(request, resources=passed), context)
        getattr(answered, name).extend(refused)
        return answered

    return rule


def _config_refusal(
    broker: Broker, context: RequestContext, operation: AclOperation, resource: Any
) -> ErrorCode:
    if resource.resource_type == TOPIC:
        if not allowed(broker, context, operation, ResourceType.TOPIC, resource.resource_name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    # What is no topic is a broker, or refused by the handler.
    elif not allowed(broker, context, operation, ResourceType.CLUSTER):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def refuse_described(**fields: Any) -> configs.DescribeConfigsResult:
    """Refuse to show the configs of a resource."""
    return configs.DescribeConfigsResult(configs=[], **fields)


describe_configs = on_configs(AclOperation.DESCRIBE_CONFIGS, "results", refuse_described)
alter_configs = on_configs(
    AclOperation.ALTER_CONFIGS, "responses", configs.AlterConfigsResourceResponse
)
incremental_alter_configs = on_configs(
    AclOperation.ALTER_CONFIGS, "responses", configs.IncrementalAlterConfigsResourceResponse
)
