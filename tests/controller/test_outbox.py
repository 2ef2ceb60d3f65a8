"""The outbox: order, retries, overflow, and the events that answers cause."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from odradek import quarantine
from odradek.controller import outbox as module
from odradek.controller import requests
from odradek.controller.events import (
    LeaderAndIsr,
    ReplicasAnswered,
    ReplicasFailed,
    ReplicasStopped,
    ResendRequired,
    StopReplicas,
    UpdateMetadata,
)
from odradek.controller.outbox import Outbox
from odradek.controller.requests import Sender
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import control
from odradek.quarantine import Quarantines
from odradek.values import BrokerId, ControllerEpoch, TopicPartition
from tests.controller.conftest import until
from tests.controller.transcript import brokers

ONE = TopicPartition("t", 0)
TWO = BrokerId(2)
ErrorT = TypeVar("ErrorT")


class ScriptedConnection:
    """Answers each call with the next of `answers`; an exception is raised."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self.registrations: list[int] = []
        self.answers: list[Any] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = False

    async def call(self, request: Any, version: int, timeout_ms: int) -> Any:
        await self.gate.wait()
        self.calls.append((type(request).__name__, version, request.controller_epoch))
        self.registrations.append(request.broker_epoch)
        answer = self.answers.pop(0) if self.answers else control.UpdateMetadataResponse()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
async def recorded() -> AsyncIterator[SimpleNamespace]:
    recorded = SimpleNamespace(connection=ScriptedConnection(), events=[], fenced=[])
    recorded.quarantines = Quarantines()
    recorded.outbox = Outbox(
        Sender(BrokerId(1), ControllerEpoch(5), "PLAINTEXT", 1000),
        lambda host, port: recorded.connection,
        recorded.events.append,
        lambda: recorded.fenced.append(True),
        recorded.quarantines,
    )
    recorded.outbox.update_brokers(brokers(["2"]))
    yield recorded
    await recorded.outbox.close()


def update() -> UpdateMetadata:
    return UpdateMetadata((TWO,), (), ())


async def test_requests_are_sent_in_order_and_retried_until_acknowledged(
    recorded: SimpleNamespace,
) -> None:
    recorded.connection.answers = [ConnectionError("down"), TimeoutError("slow")]
    recorded.outbox.send(update())
    recorded.outbox.send(StopReplicas(TWO, (ONE,), delete=False))
    recorded.connection.answers += [
        control.UpdateMetadataResponse(),
        control.StopReplicaResponse(partition_errors=[]),
    ]
    await until(lambda: len(recorded.connection.calls) == 4)
    assert recorded.connection.calls == [("UpdateMetadataRequest", 5, 5)] * 3 + [
        ("StopReplicaRequest", 1, 5)
    ]


async def test_requests_name_the_broker_epoch_that_they_are_meant_for(
    recorded: SimpleNamespace,
) -> None:
    recorded.outbox.update_brokers(brokers(["2@57"]))
    refused: dict[str, Any] = {"error_code": ErrorCode.STALE_BROKER_EPOCH, "partition_errors": []}
    recorded.connection.answers = [
        control.UpdateMetadataResponse(error_code=ErrorCode.STALE_BROKER_EPOCH),
        control.LeaderAndIsrResponse(**refused),
        control.StopReplicaResponse(**refused),
    ]
    recorded.outbox.send(update())
    recorded.outbox.send(LeaderAndIsr(TWO, (), ()))
    recorded.outbox.send(StopReplicas(TWO, (ONE,), delete=True))
    recorded.outbox.send(update())
    await until(lambda: len(recorded.connection.calls) == 4)
    assert recorded.connection.registrations == [57] * 4
    assert not recorded.events, "a restarted broker receives its full state anyway"
    assert not recorded.fenced


async def test_stale_controller_epoch_fences_the_controller(recorded: SimpleNamespace) -> None:
    recorded.connection.answers = [control.UpdateMetadataResponse(error_code=11)]
    recorded.outbox.send(update())
    await until(lambda: recorded.fenced)


async def test_answers_become_events(recorded: SimpleNamespace) -> None:
    def error(kind: Callable[..., ErrorT], number: int, code: int) -> ErrorT:
        return kind(topic_name="t", partition_index=number, error_code=code)

    recorded.connection.answers = [
        control.LeaderAndIsrResponse(
            partition_errors=[
                error(control.LeaderAndIsrPartitionError, 0, 56),
                error(control.LeaderAndIsrPartitionError, 1, 11),
                error(control.LeaderAndIsrPartitionError, 2, 0),
                error(control.LeaderAndIsrPartitionError, 3, 3),
            ]
        ),
        control.StopReplicaResponse(
            partition_errors=[
                error(control.StopReplicaPartitionError, 0, 0),
                error(control.StopReplicaPartitionError, 1, 56),
                error(control.StopReplicaPartitionError, 2, 3),
            ]
        ),
    ]
    three = tuple(TopicPartition("t", number) for number in range(3))
    recorded.outbox.send(LeaderAndIsr(TWO, (), ()))
    recorded.outbox.send(StopReplicas(TWO, three, delete=True))
    await until(lambda: len(recorded.events) == 3)
    assert recorded.events == [
        ReplicasAnswered(TWO, frozenset({three[1], three[2]})),
        ReplicasFailed(TWO, frozenset({ONE})),
        ReplicasStopped(TWO, frozenset({three[0], three[2]}), frozenset({three[1]})),
    ]


async def test_overflow_requires_sending_the_full_state_again(
    recorded: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_QUEUE", 3)
    recorded.connection.gate.clear()
    for _ in range(6):
        recorded.outbox.send(update())
    assert recorded.events == [ResendRequired(TWO)]
    assert recorded.outbox.queued() < 4


async def test_gone_or_restarted_broker_gets_no_earlier_requests(recorded: SimpleNamespace) -> None:
    recorded.connection.gate.clear()
    recorded.outbox.send(update())
    old, recorded.connection = recorded.connection, ScriptedConnection()
    recorded.outbox.update_brokers(brokers(["2@99"]))
    old.gate.set()
    recorded.outbox.send(StopReplicas(TWO, (ONE,), delete=False))
    recorded.connection.answers = [control.StopReplicaResponse(partition_errors=[])]
    await until(lambda: recorded.connection.calls)
    assert [name for name, _, _ in recorded.connection.calls] == ["StopReplicaRequest"]
    recorded.outbox.update_brokers({})
    await until(lambda: recorded.connection.closed)
    recorded.outbox.send(update())
    assert recorded.outbox.queued() == 0


def broken(build: Callable[..., Any], poison: object) -> Callable[..., Any]:
    """Return `build`, which fails for one message."""

    def build_or_fail(message: object, *arguments: Any) -> Any:
        if message is poison:
            raise KeyError("unforeseen")
        return build(message, *arguments)

    return build_or_fail


async def test_a_request_that_cannot_be_made_ends_no_channel_and_is_made_up_for(
    recorded: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests behind it are sent, and the broker gets its full state again."""
    poison = LeaderAndIsr(TWO, (), ())
    monkeypatch.setattr(requests, "build_in_slices", broken(requests.build_in_slices, poison))
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 0.0)
    recorded.outbox.send(poison)
    recorded.outbox.send(update())
    await until(lambda: recorded.connection.calls and recorded.events)
    assert [name for name, _, _ in recorded.connection.calls] == ["UpdateMetadataRequest"]
    assert recorded.events == [ResendRequired(TWO)]
    assert recorded.quarantines.totals()["channel"] == 1
    await until(lambda: not recorded.quarantines.held()["channel"])
    recorded.outbox.send(update())
    await until(lambda: len(recorded.connection.calls) == 2)


async def test_an_answer_that_nobody_foresaw_ends_no_channel(
    recorded: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 0.0)
    recorded.connection.answers = [RuntimeError("unforeseen"), object()]
    for _ in range(3):
        recorded.outbox.send(update())
    await until(lambda: len(recorded.connection.calls) == 3 and recorded.events)
    assert recorded.quarantines.totals()["channel"] == 2


@pytest.mark.parametrize(
    ("message", "rejected"),
    [
        (
            LeaderAndIsr(TWO, (), ()),
            control.LeaderAndIsrResponse(
                error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, partition_errors=[]
            ),
        ),
        (update(), control.UpdateMetadataResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)),
        (
            StopReplicas(TWO, (ONE,), delete=False),
            control.StopReplicaResponse(
                error_code=ErrorCode.UNKNOWN_SERVER_ERROR, partition_errors=[]
            ),
        ),
    ],
)
async def test_what_a_broker_rejects_as_a_whole_is_made_up_for(
    recorded: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, message: Any, rejected: object
) -> None:
    """Else the controller would take it as done."""
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 0.0)
    recorded.connection.answers = [rejected]
    recorded.outbox.send(message)
    await until(lambda: recorded.events)
    assert recorded.events == [ResendRequired(TWO)]


async def test_a_state_that_always_fails_is_sent_again_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poison = LeaderAndIsr(TWO, (), ())
    monkeypatch.setattr(requests, "build_in_slices", broken(requests.build_in_slices, poison))
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 0.001)
    pauses: list[float] = []

    class Noting(Quarantines):
        def put(self, *arguments: Any) -> float:
            pauses.append(super().put(*arguments))
            return pauses[-1]

    outbox = Outbox(
        Sender(BrokerId(1), ControllerEpoch(5), "PLAINTEXT", 1000),
        lambda host, port: ScriptedConnection(),
        lambda event: outbox.send(poison),
        lambda: None,
        Noting(),
    )
    outbox.update_brokers(brokers(["2"]))
    outbox.send(poison)
    await until(lambda: len(pauses) >= 4)
    await outbox.close()
    assert pauses[:4] == [0.001, 0.002, 0.004, 0.008]


async def test_a_broker_that_is_gone_is_not_in_quarantine(
    recorded: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = LeaderAndIsr(TWO, (), ())
    monkeypatch.setattr(requests, "build_in_slices", broken(requests.build_in_slices, poison))
    recorded.outbox.send(poison)
    await until(lambda: recorded.quarantines.held()["channel"] == 1)
    recorded.outbox.update_brokers({})
    assert recorded.quarantines.held()["channel"] == 0


async def test_a_broker_that_cannot_be_connected_to_unforeseen_has_its_channel_still() -> None:
    connection, failures = ScriptedConnection(), [KeyError("unforeseen")]
    events: list[object] = []

    def connect(host: str, port: int) -> ScriptedConnection:
        if failures:
            raise failures.pop()
        return connection

    outbox = Outbox(
        Sender(BrokerId(1), ControllerEpoch(5), "PLAINTEXT", 1000),
        connect,
        events.append,
        lambda: None,
        Quarantines(),
    )
    outbox.update_brokers(brokers(["2"]))
    for _ in range(2):
        outbox.send(update())
    await until(lambda: len(connection.calls) == 1)
    await outbox.close()
    assert connection.closed
