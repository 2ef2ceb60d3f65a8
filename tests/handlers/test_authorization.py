"""Rules in front of handlers, for principals that nobody authenticates yet."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from odradek import slices
from odradek.handlers import (
    acls,
    automatic_topics,
    metadata,
    produce,
    rules,
    topic_rules,
    transaction_rules,
)
from odradek.handlers.client_quotas import alter_client_quotas
from odradek.handlers.context import Broker, RequestContext
from odradek.handlers.dispatch import Dispatcher
from odradek.handlers.user_credentials import (
    alter_user_scram_credentials,
    describe_user_scram_credentials,
)
from odradek.net.client_info import ClientInfo
from odradek.net.frame import ProtocolViolation
from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.acls import DeleteAclsFilter, DeleteAclsRequest
from odradek.protocol.messages.client_quotas import (
    AlterClientQuotasRequest,
    QuotaAlteration,
    QuotaEntityData,
    QuotaOperation,
)
from odradek.protocol.messages.control import ControlledShutdownRequest, UpdateMetadataResponse
from odradek.protocol.messages.fetch import FetchRequest
from odradek.protocol.messages.metadata import MetadataRequest, MetadataResponse
from odradek.protocol.messages.offsets import OffsetForLeaderEpochRequest
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.protocol.messages.sasl import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    SaslHandshakeRequest,
    ScramCredentialDeletion,
    UserName,
)
from odradek.protocol.messages.transaction_states import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicRequest,
)
from odradek.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    WritableTxnMarkerTopic,
)
from odradek.quotas import entities
from odradek.quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from odradek.security import acl_znodes
from odradek.security.acl_watcher import AclWatcher
from odradek.security.acls import (
    AclEntry,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from odradek.security.authorizer import Authorizer
from odradek.values import Principal
from tests.handlers.large_requests import MANY, MANY_NAMES, Turns, frame, markers
from tests.support import control
from tests.support.logs import batch
from tests.support.replicas import TOPIC, Replicas

ALICE, BOB, ROOT = (Principal("User", name) for name in ("alice", "bob", "root"))
OFFSETS = "__consumer_offsets"
CLUSTER = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")
ACT = AclEntry(ALICE, PermissionType.ALLOW, AclOperation.CLUSTER_ACTION)


@pytest.fixture
def authorizer(replicas: Replicas) -> Authorizer:
    """An authorizer that has loaded no ACLs, because there are none."""
    watcher = AclWatcher(replicas.session)  # type: ignore[arg-type]
    watcher.loaded = True
    return Authorizer(watcher, [ROOT])


@pytest.fixture
def guarded(broker: Broker, authorizer: Authorizer) -> Broker:
    """The broker with an authorizer."""
    return dataclasses.replace(broker, authorizer=authorizer)


def context(
    principal: Principal, client_id: str = "c", listener: str = "PLAINTEXT"
) -> RequestContext:
    return RequestContext(8, client_id, listener, "10.0.0.1", 1, lambda: True, principal)


def write(principal: Principal) -> AclEntry:
    return AclEntry(principal, PermissionType.ALLOW, AclOperation.WRITE)


async def send(
    broker: Broker, principal: Principal, *names: str, client_id: str = "c", acks: int = 1
) -> dict[str, ErrorCode]:
    """Produce to partition 0 of each topic; return the codes."""
    parts = [PartitionProduceData(index=0, records=batch(b"v"))]
    wanted = [TopicProduceData(name=name, partition_data=parts) for name in names]
    request = ProduceRequest(acks=acks, timeout_ms=0, topic_data=wanted)
    answer = await topic_rules.produce(
        broker, request, context(principal, client_id), produce.produce
    )
    return {
        one.name: ErrorCode(one.partition_responses[0].error_code)
        for one in answer.responses  # type: ignore[attr-defined]
    }


def log_end(broker: Broker, topic: str) -> int:
    return next(
        one.log.log_end_offset for key, one in broker.replicas.partitions.items() if key[0] == topic
    )


async def test_only_who_may_write_appends(
    guarded: Broker, replicas: Replicas, authorizer: Authorizer
) -> None:
    await replicas.lead()
    authorizer.watcher.acls.set(ResourcePattern(ResourceType.TOPIC, TOPIC), [write(ALICE)])
    denied, done = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NONE
    assert await send(guarded, BOB, TOPIC) == {TOPIC: denied}
    assert log_end(guarded, TOPIC) == 0
    assert await send(guarded, ALICE, "others", TOPIC) == {"others": denied, TOPIC: done}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await send(guarded, ROOT, "others", TOPIC) == {"others": unknown, TOPIC: done}
    assert log_end(guarded, TOPIC) == 2
    assert authorizer.denials == 2


async def test_refused_records_without_an_answer_close_the_connection(
    guarded: Broker, replicas: Replicas, authorizer: Authorizer
) -> None:
    await replicas.lead()
    prefix = ResourcePattern(ResourceType.TOPIC, TOPIC[:1], PatternType.PREFIXED)
    authorizer.watcher.acls.set(prefix, [write(ALICE)])
    with pytest.raises(ProtocolViolation, match="TOPIC_AUTHORIZATION_FAILED"):
        await send(guarded, ALICE, "hidden", TOPIC, acks=0)
    assert log_end(guarded, TOPIC) == 1, "as in Kafka, allowed records are appended"


async def test_topic_that_goes_while_all_are_listed_is_not_made_again(
    guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number:03}" for number in range(slices.STEPS_PER_SLICE + 1)]
    guarded.metadata.update(control.update(*(control.state(name) for name in names)))
    made: list[str] = []

    async def create(broker: Broker, topic: str, context: RequestContext) -> ErrorCode:
        made.append(topic)
        return ErrorCode.LEADER_NOT_AVAILABLE

    monkeypatch.setattr(automatic_topics, "create", create)
    request = MetadataRequest(topics=None, allow_auto_topic_creation=True)
    listing = asyncio.create_task(metadata.metadata(guarded, request, context(ROOT)))
    await asyncio.sleep(0)  # it has looked at the first ones
    gone = control.state(names[0], leader=-2)
    guarded.metadata.update(control.update(gone))
    answer = codec.decode(MetadataResponse, 8, await listing)[0]
    assert made == []
    assert {one.name for one in answer.topics} == set(names[1:])


@pytest.mark.parametrize("client_id", ["__admin_client", "c"])
async def test_internal_topics_need_the_rights_of_a_broker_whatever_the_client_id(
    guarded: Broker, replicas: Replicas, authorizer: Authorizer, client_id: str
) -> None:
    await replicas.lead(topic=OFFSETS)
    acls = authorizer.watcher.acls
    acls.set(ResourcePattern(ResourceType.TOPIC, OFFSETS), [write(ALICE), write(BOB)])
    acls.set(CLUSTER, [ACT])
    refused = {OFFSETS: ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert await send(guarded, BOB, OFFSETS, client_id=client_id) == refused
    assert log_end(guarded, OFFSETS) == 0
    assert await send(guarded, ALICE, OFFSETS, client_id=client_id) == {OFFSETS: ErrorCode.NONE}
    assert log_end(guarded, OFFSETS) == 1


async def test_requests_of_brokers_need_a_right_on_every_listener(
    guarded: Broker, authorizer: Authorizer
) -> None:
    """Brokers whose listeners change one after the other ask on both."""
    authorizer.watcher.acls.set(CLUSTER, [ACT])
    rule = rules.of_brokers(rules.answer(UpdateMetadataResponse))

    async def handle(*_: object) -> str:
        return "handled"

    refusal = UpdateMetadataResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    for listener in ("PLAINTEXT", "CLIENTS"):
        assert await rule(guarded, None, context(ALICE, listener=listener), handle) == "handled"
        assert await rule(guarded, None, context(BOB, listener=listener), handle) == refusal


async def test_who_asks_about_many_transactions_needs_the_right_of_brokers(
    guarded: Broker, authorizer: Authorizer
) -> None:
    authorizer.watcher.acls.set(CLUSTER, [ACT])

    async def handle(*_: object) -> str:
        return "handled"

    refusal = AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    for principal, expected in ((ALICE, "handled"), (BOB, refusal)):
        asked = context(principal)._replace(version=4)
        rule = transaction_rules.add_partitions_to_txn
        assert await rule(guarded, AddPartitionsToTxnRequest(), asked, handle) == expected


async def test_dispatcher_asks_for_the_principal_and_the_host_of_the_connection(
    guarded: Broker, authorizer: Authorizer
) -> None:
    authorizer.watcher.acls.set(CLUSTER, [ACT._replace(host="10.0.0.1")])
    asked = frame(ControlledShutdownRequest(broker_id=2), 1)
    dispatcher = Dispatcher(guarded, "PLAINTEXT")
    for peer in (
        ClientInfo("10.0.0.2", 9, 1, lambda: True, ALICE),
        ClientInfo("10.0.0.1", 9, 1, lambda: True, BOB),
    ):
        parts = await dispatcher.dispatch(asked, peer)
        assert isinstance(parts, list)
        assert b"".join(bytes(one) for one in parts)[4:6] == b"\x00\x1f"


@pytest.mark.parametrize(
    ("request_", "version", "is_exempt"),
    [
        (FetchRequest(replica_id=1, max_wait_ms=0, min_bytes=0, topics=[]), 11, True),
        (OffsetForLeaderEpochRequest(replica_id=1, topics=[]), 3, True),
        (ControlledShutdownRequest(broker_id=2), 1, True),
        (AddPartitionsToTxnRequest(), 4, True),
        (AddPartitionsToTxnRequest(), 3, False),
        (SaslHandshakeRequest(mechanism="PLAIN"), 1, False),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else "",
)
async def test_only_who_may_act_as_a_broker_is_exempt_from_quotas(
    guarded: Broker, authorizer: Authorizer, request_: object, version: int, is_exempt: bool
) -> None:
    """And an answer without a field for the throttle time is sent all the same."""
    authorizer.watcher.acls.set(CLUSTER, [ACT])
    guarded.metadata.update(control.update())
    guarded.quotas.change(QuotaEntity(DEFAULT), {QuotaKey.REQUEST: 1e-9})
    broker = dataclasses.replace(guarded, controller=NoController())  # type: ignore[arg-type]
    dispatcher = Dispatcher(broker, "PLAINTEXT")
    for principal, is_muted in ((ALICE, not is_exempt), (BOB, True)):
        peer = ClientInfo("10.0.0.1", 9, 1, lambda: True, principal)
        assert await dispatcher.dispatch(frame(request_, version), peer)
        assert (peer.throttling.mute_s > 0) is is_muted


class NoController:
    """The controller of a broker that is none."""

    active = False

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> None:
        raise KafkaError(ErrorCode.NOT_CONTROLLER)


OF_USER = [QuotaEntityData(entity_type="user", entity_name="u")]
SET = QuotaOperation(key="producer_byte_rate", value=1.0, remove=False)
UNKNOWN = dataclasses.replace(SET, key="rate")


def quota_change(parts: list[QuotaEntityData], operations: list[QuotaOperation]) -> Any:
    entry = QuotaAlteration(entity=parts, ops=operations)
    return AlterClientQuotasRequest(entries=[entry], validate_only=False)


@pytest.mark.parametrize(
    ("serve", "request_"),
    [
        (
            rules.refuse_alter_quotas,
            AlterClientQuotasRequest(
                entries=[QuotaAlteration(entity=OF_USER, ops=[])] * MANY, validate_only=False
            ),
        ),
        (
            rules.refuse_alter_credentials,
            AlterUserScramCredentialsRequest(
                deletions=[ScramCredentialDeletion(name=one, mechanism=1) for one in MANY_NAMES],
                upsertions=[],
            ),
        ),
        (
            rules.refuse_markers,
            markers(1, [WritableTxnMarkerTopic(name="t", partition_indexes=[*range(MANY)])]),
        ),
        (alter_client_quotas, quota_change(OF_USER, [*[SET] * MANY, UNKNOWN])),
        (alter_client_quotas, quota_change(OF_USER * MANY, [UNKNOWN])),
        (
            alter_user_scram_credentials,
            AlterUserScramCredentialsRequest(
                deletions=[ScramCredentialDeletion(name=one, mechanism=1) for one in MANY_NAMES],
                upsertions=[],
            ),
        ),
    ],
    ids=[
        "refused quotas",
        "refused credentials",
        "refused markers",
        "quotas",
        "parts",
        "credentials",
    ],
)
async def test_large_changes_of_rights_and_quotas_let_others_run(
    guarded: Broker, serve: Callable[..., Any], request_: object
) -> None:
    turns, asker = Turns(), context(ALICE)
    is_refusal = serve.__name__.startswith("refuse")
    work = serve(request_, asker) if is_refusal else serve(guarded, request_, asker)
    await turns.during(work)
    # Beside those for results and for the rest of the request.
    assert turns.count >= MANY // slices.STEPS_PER_SLICE - 1


async def test_of_the_parts_of_a_quota_s_entity_the_last_of_each_kind_is_sanitized(
    guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Kafka, the others do not count: not even an empty one is refused."""
    sanitized: list[str] = []
    sanitize = entities.sanitize

    def noting(name: str) -> str:
        sanitized.append(name)
        return sanitize(name)

    monkeypatch.setattr(entities, "sanitize", noting)
    parts = [QuotaEntityData(entity_type="user", entity_name=name) for name in ("", "a", "b")]
    answer = await alter_client_quotas(guarded, quota_change(parts, [UNKNOWN]), context(ALICE))
    [one] = answer.entries
    assert one.error_code == ErrorCode.INVALID_REQUEST
    assert "Invalid configuration key" in (one.error_message or "")
    assert sanitized == ["b"]


@pytest.mark.parametrize(
    ("serve", "request_"),
    [
        (
            alter_client_quotas,
            AlterClientQuotasRequest(
                entries=[QuotaAlteration(entity=OF_USER, ops=[UNKNOWN])] * slices.STEPS_PER_SLICE,
                validate_only=False,
            ),
        ),
        (
            alter_user_scram_credentials,
            AlterUserScramCredentialsRequest(
                deletions=[
                    ScramCredentialDeletion(name=one, mechanism=1)
                    for one in MANY_NAMES[: slices.STEPS_PER_SLICE]
                ],
                upsertions=[],
            ),
        ),
    ],
    ids=["quotas", "credentials"],
)
async def test_names_that_may_be_long_are_escaped_few_at_once(
    guarded: Broker, serve: Callable[..., Any], request_: object
) -> None:
    """What is refused waits for no ZooKeeper, so others would not run in between."""
    turns = Turns()
    await turns.during(serve(guarded, request_, context(ALICE)))
    assert turns.count >= slices.STEPS_PER_SLICE // slices.LONG_NAMES_PER_SLICE - 1


async def test_many_filters_against_many_acls_let_others_run(
    guarded: Broker, authorizer: Authorizer
) -> None:
    patterns = 20
    for number in range(patterns):
        pattern = ResourcePattern(ResourceType.TOPIC, f"t{number}")
        authorizer.watcher.acls.set(pattern, [write(ALICE)])
    of_groups = DeleteAclsFilter(
        resource_type_filter=ResourceType.GROUP,
        pattern_type_filter=PatternType.ANY,
        operation=AclOperation.ANY,
        permission_type=PermissionType.ANY,
    )
    turns = Turns()
    request = DeleteAclsRequest(filters=[of_groups] * slices.KEYS_AT_ONCE)
    answer = await turns.during(acls.delete_acls(guarded, request, context(ALICE)))
    assert not any(one.error_code or one.matching_acls for one in answer.filter_results)
    # Beside those for the filters.
    assert turns.count >= slices.KEYS_AT_ONCE // slices.STEPS_PER_SLICE + patterns // 2


async def test_many_filters_of_one_pattern_are_not_held_against_each_entry(
    guarded: Broker,
    replicas: Replicas,
    authorizer: Authorizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scripts delete the ACLs of many users so, one filter for each."""
    entries = [write(Principal("User", f"u{number}")) for number in range(20)]
    pattern = ResourcePattern(ResourceType.TOPIC, "t")
    authorizer.watcher.acls.set(pattern, entries)
    replicas.session.znodes[acl_znodes.acl_path(pattern)] = acl_znodes.encode_acls(entries), 0
    monkeypatch.setattr(AclFilter, "matches_entry", lambda *_: pytest.fail("one by one"))

    async def multi(operations: object) -> None:
        """Take every change."""

    monkeypatch.setattr(replicas.session, "multi", multi, raising=False)
    everything = DeleteAclsFilter(
        resource_type_filter=ResourceType.ANY,
        pattern_type_filter=PatternType.ANY,
        operation=AclOperation.ANY,
        permission_type=PermissionType.ANY,
    )
    of_users = [
        DeleteAclsFilter(
            resource_type_filter=pattern.resource_type,
            resource_name_filter=pattern.name,
            principal_filter=str(one.principal),
            host_filter=one.host,
            operation=one.operation,
            permission_type=one.permission_type,
        )
        for one in entries
    ]

    async def delete(*filters: DeleteAclsFilter) -> list[list[str]]:
        """Return the principals whose ACL each of the filters found."""
        request = DeleteAclsRequest(filters=[*filters])
        answer = await acls.delete_acls(guarded, request, context(ROOT))
        return [[acl.principal for acl in one.matching_acls] for one in answer.filter_results]

    names = [str(one.principal) for one in entries]
    nothing: list[str] = []
    assert await delete(*of_users, everything) == [*([one] for one in names), nothing]
    assert await delete(everything, *of_users) == [names, *[nothing] * len(names)]


@pytest.mark.parametrize("name", ["orders", " ", "~", "...", "\xa0", "\ud7ff", "\uf900", "\uffef"])
def test_names_that_zookeeper_takes_are_known(name: str) -> None:
    assert acls._fits_into_a_path(name)


@pytest.mark.parametrize(
    "name",
    [".", "..", "a/b", "\0", "a\x1f", "\x7f", "\x9f", "\ud800", "\uf8ff", "\ufff0", "\U0001f600"],
)
def test_names_that_zookeeper_refuses_are_known(name: str) -> None:
    assert not acls._fits_into_a_path(name)


async def test_users_that_are_named_twice_let_others_run(guarded: Broker) -> None:
    request = DescribeUserScramCredentialsRequest(
        users=[UserName(name=one) for one in MANY_NAMES * 2]
    )
    turns = Turns()
    answer = await turns.during(describe_user_scram_credentials(guarded, request, context(ALICE)))
    assert {one.error_code for one in answer.results} == {ErrorCode.DUPLICATE_RESOURCE}
    # In two thirds of them the names are counted, in the others they are answered.
    assert turns.count >= 3 * MANY // slices.STEPS_PER_SLICE - 2


async def test_names_that_no_topic_can_have_let_others_run(guarded: Broker) -> None:
    topics = [DescribeProducersTopicRequest(name=" ", partition_indexes=[])] * MANY

    async def handle(broker: Broker, request: object, asker: RequestContext) -> object:
        return DescribeProducersResponse(topics=[])

    turns = Turns()
    asked = transaction_rules.describe_producers(
        guarded, DescribeProducersRequest(topics=topics), context(ALICE), handle
    )
    await turns.during(asked)
    assert turns.count >= MANY // slices.STEPS_PER_SLICE - 1
