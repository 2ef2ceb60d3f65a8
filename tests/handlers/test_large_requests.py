"""Requests that name thousands of partitions: others run in between."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from odradek import slices
from odradek.handlers import (
    alter_configs,
    dispatch,
    fetch,
    group_offsets,
    offsets,
    produce,
    transaction_markers,
    transaction_offsets,
    transactions,
)
from odradek.handlers.context import Broker, RequestContext
from odradek.handlers.dispatch import ELEMENTS_AT_ONCE, SERVED
from odradek.protocol import codec
from odradek.protocol.api import APIS, ApiKey
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from odradek.protocol.messages.control import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from odradek.protocol.messages.groups import (
    ListGroupsRequest,
    ListGroupsResponse,
)
from odradek.protocol.messages.metadata import (
    MetadataRequest,
)
from odradek.protocol.messages.topics import (
    DeleteTopicsRequest,
)
from odradek.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
)
from odradek.replica.role_changes import ROLES_PER_SLICE
from tests.handlers.large_requests import (
    ADDED,
    ALTER,
    ALTER_INCREMENTALLY,
    COMMITS,
    COMMITS_IN_TRANSACTION,
    EPOCH_ENDS,
    FETCH,
    LIST_OFFSETS,
    MANY,
    MANY_NAMES,
    MARKERS,
    NAMES,
    OFFSET_DELETIONS,
    OFFSETS_OF_ALL,
    PARTITIONS,
    PRODUCE,
    TOPIC,
    Turns,
    ask,
    collector_on,
    context,
    large_requests,
    roles,
    update,
)
from tests.support.replicas import Replicas


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (update(2), 5),
        (roles(), 2),
        (MetadataRequest(topics=None), 9),
        (LIST_OFFSETS, 5),
        (EPOCH_ENDS, 3),
        (PRODUCE, 9),
        (FETCH, 4),
        (FETCH, 11),
        (DeleteTopicsRequest(topic_names=NAMES, timeout_ms=0), 5),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else "",
)
async def test_others_run_while_a_large_request_is_served(
    wide: Broker, request_: object, version: int
) -> None:
    turns = Turns()
    await turns.during(ask(wide, request_, version))
    assert turns.count > PARTITIONS // slices.STEPS_PER_SLICE


@pytest.mark.parametrize(
    ("serve", "request_", "version"),
    [
        (offsets.list_offsets, LIST_OFFSETS, 5),
        (group_offsets.offset_commit, COMMITS, 8),
        (transaction_offsets.txn_offset_commit, COMMITS_IN_TRANSACTION, 3),
        (transactions.add_partitions_to_txn, ADDED, 3),
        (transaction_markers.write_txn_markers, MARKERS, 1),
        (group_offsets.offset_fetch, OFFSETS_OF_ALL, 7),
        (group_offsets.offset_delete, OFFSET_DELETIONS, 0),
        (alter_configs.alter_configs, ALTER, 1),
        (alter_configs.incremental_alter_configs, ALTER_INCREMENTALLY, 1),
        (produce.produce, PRODUCE, 9),
        (fetch.fetch, FETCH, 11),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_handler_gives_the_loop_back_between_slices(
    coordinating: Broker,
    monkeypatch: pytest.MonkeyPatch,
    serve: Callable[[Broker, object, RequestContext], Coroutine[Any, Any, Any]],
    request_: object,
    version: int,
) -> None:
    """Beside the turns for decoding and encoding."""
    monkeypatch.setattr(coordinating.transactions, "add_partitions", not_coordinator, raising=False)
    turns = Turns()
    await turns.during(serve(coordinating, request_, context(version)))
    # The last of the pauses may be where the work ends.
    assert turns.count >= PARTITIONS // slices.STEPS_PER_SLICE - 1


async def not_coordinator(*arguments: object) -> ErrorCode:
    """Stand for a coordinator of transactions that another broker has."""
    return ErrorCode.NOT_COORDINATOR


async def test_ids_of_many_transactions_without_partitions_take_turns(
    wide: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide.transactions, "verify_partitions", lambda *_: {}, raising=False)
    empty = AddPartitionsToTxnTransaction(
        transactional_id="t", producer_id=7, producer_epoch=0, verify_only=True, topics=[]
    )
    request = AddPartitionsToTxnRequest(transactions=[empty] * slices.STEPS_PER_SLICE)
    turns = Turns()
    answer = await turns.during(transactions.add_partitions_to_txn(wide, request, context(4)))
    assert len(answer.results_by_transaction) == slices.STEPS_PER_SLICE
    assert turns.count > 1


async def test_decoding_and_encoding_give_the_loop_back_too(wide: Broker) -> None:
    """Beside the handler's own turns."""
    assert PARTITIONS > ELEMENTS_AT_ONCE
    turns = Turns()
    await turns.during(slices.run(wide.metadata.update_in_slices(update())))
    applied = turns.count
    turns = Turns()
    await turns.during(ask(wide, update(), 5))
    assert turns.count > applied + PARTITIONS // slices.STEPS_PER_SLICE


async def test_pauses_of_the_collector_end_however_long_work_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "LONGEST_PAUSE_S", 0.01)
    async with asyncio.timeout(60):
        with slices.collector_paused():
            assert not gc.isenabled()
            while not gc.isenabled():
                with slices.collector_paused():
                    await asyncio.sleep(0)
            with slices.collector_paused():
                assert gc.isenabled(), "no new pause before the first has ended"
        await asyncio.sleep(0)
        with slices.collector_paused():
            assert not gc.isenabled()
    await collector_on()


async def test_every_handler_gives_the_loop_back(
    coordinating: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "KEYS_AT_ONCE", MANY // 5)

    async def refuse(*arguments: object) -> None:
        raise KafkaError(ErrorCode.NOT_CONTROLLER)

    controller = SimpleNamespace(
        active=False, elect_leaders=refuse, reassign=refuse, list_reassignments=refuse
    )
    broker = dataclasses.replace(coordinating, controller=controller)  # type: ignore[arg-type]
    monkeypatch.setattr(broker.transactions, "add_partitions", not_coordinator, raising=False)
    counts = {}
    for number, (request, version) in enumerate(large_requests()):
        turns = Turns()
        served = SERVED[next(api.key for api in APIS.values() if api.request is type(request))]
        await turns.during(served.handle(broker, request, context(version)))
        counts[f"{number} {served.api.name}"] = turns.count
    # Beside the turns for decoding and encoding.
    assert all(counts.values()), counts


async def test_a_large_request_and_its_answer_are_freed_in_slices(
    wide: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    class Weak(str):
        __slots__ = ("__weakref__",)

    async def noting(broker: Broker, request: Any, context: RequestContext) -> object:
        request.states_filter = [Weak(one) for one in request.states_filter]
        alive.update(request.states_filter)
        return ListGroupsResponse(groups=[])

    served = dataclasses.replace(SERVED[ApiKey.LIST_GROUPS], handle=noting)
    monkeypatch.setattr(dispatch, "SERVED", {**SERVED, ApiKey.LIST_GROUPS: served})
    monkeypatch.setattr(codec, "FREED_AT_ONCE", MANY // 5)
    await ask(wide, ListGroupsRequest(states_filter=MANY_NAMES), 4)
    counts = [len(alive)]
    while counts[-1]:
        assert not gc.isenabled(), "it need not look through them"
        await asyncio.sleep(0)
        counts.append(len(alive))
    assert max(before - after for before, after in pairwise(counts)) < MANY


async def test_more_entries_than_a_resource_can_have_are_refused_in_a_thread(
    wide: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, threads = alter_configs._checked, []

    def noting(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return check(*arguments)

    monkeypatch.setattr(alter_configs, "_checked", noting)
    entries = [AlterableConfig(name=one, value="1") for one in MANY_NAMES]
    for resource_type, name, code in (
        (2, TOPIC, ErrorCode.INVALID_CONFIG),
        (4, "1", ErrorCode.INVALID_REQUEST),
    ):
        resource = AlterConfigsResource(
            resource_type=resource_type, resource_name=name, configs=entries
        )
        request = AlterConfigsRequest(resources=[resource], validate_only=True)
        answer = await alter_configs.alter_configs(wide, request, context(1))
        [response] = answer.responses
        assert response.error_code == code
        assert "none-" in (response.error_message or "")

    assert len(threads) == 2
    assert threading.main_thread() not in threads


async def test_new_roles_are_taken_in_slices(replicas: Replicas, wide: Broker) -> None:
    """Each writes a file."""
    count = 40
    states = [
        LeaderAndIsrPartitionState(
            partition_index=index,
            controller_epoch=1,
            leader=1,
            leader_epoch=1,
            isr=[1],
            zk_version=1,
            replicas=[1],
            is_new=True,
        )
        for index in range(count)
    ]
    seen = Turns(lambda: sum(one.is_leader for one in replicas.manager.partitions.values()))
    request = LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=1,
        broker_epoch=100,
        topic_states=[LeaderAndIsrTopicState(topic_name=TOPIC, partition_states=states)],
        live_leaders=[],
    )
    await seen.during(ask(wide, request, 2))
    taken: list[Any] = [0, *seen.seen, count]
    assert max(after - before for before, after in pairwise(taken)) <= ROLES_PER_SLICE
