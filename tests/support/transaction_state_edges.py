"""Requests that look at transactions (KIP-664) with fields at their edges, and brokers' answers.

A transaction is open in one partition and ended in another. Producer ids and times differ from one
run to the next, so names stand for them. The same works with Apache Kafka 3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from odradek.protocol.messages import groups, transaction_states
from tests.support.asking import ADMIN, Connection
from tests.support.authorization_requests import creation
from tests.support.hanging_transactions import write
from tests.support.transaction_edges import INT_MAX, LONG_MAX, PARTITIONS, TOPIC, Producer

_TIME = re.compile("(timestamp|start_time_ms)=[0-9]+")
_MESSAGE = re.compile("""(?<=error_message)=('[^']*'|"[^"]*")""")
_LONG = re.compile("x{100,}")
OPEN, ENDED, IDLE = "open", "ended", "idle \U0001f600 id"
STATES = [
    *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"),
    *("Dead", "PrepareEpochFence"),
]
UNKNOWN = (["ongoing"], ["ONGOING", "Ongoing"], [""], ["Ongoing", "x"], ["x", "y"])
HOUR_MS = 3_600_000


def _prepared(connection: Connection) -> list[Producer]:
    """Return the producers, after their transactions are as the module says."""
    producers = [Producer(connection, name) for name in (OPEN, ENDED, IDLE)]
    for producer in producers:
        producer.begin()
    for producer, partition in zip(producers[:2], (0, 1), strict=True):
        producer.add((TOPIC, [partition]))
        write(producer, TOPIC, partition)
        write(producer, TOPIC, partition, 1)
    producers[1].end(commits=True)
    while _states(connection, ENDED)[0].transaction_state != "CompleteCommit":
        pass
    return producers


def _states(connection: Connection, *names: str) -> list[Any]:
    request = transaction_states.DescribeTransactionsRequest(transactional_ids=[*names])
    found: list[Any] = connection.ask(request, 0).transaction_states
    return found


def _of_producers(
    *topics: tuple[str, list[int]],
) -> transaction_states.DescribeProducersRequest:
    return transaction_states.DescribeProducersRequest(
        topics=[
            transaction_states.DescribeProducersTopicRequest(name=name, partition_indexes=indexes)
            for name, indexes in topics
        ]
    )


def _cases(producers: list[Producer]) -> Iterator[tuple[str, Any, int]]:
    partitions: dict[str, list[tuple[str, list[int]]]] = {
        "none": [],
        "open": [(TOPIC, [0])],
        "ended": [(TOPIC, [1])],
        "nothing written": [(TOPIC, [2])],
        "no partition": [(TOPIC, [])],
        "partitions out of range": [(TOPIC, [PARTITIONS, -1, INT_MAX, -(2**31)])],
        "unknown topic": [("none", [0])],
        "no name": [("", [0])],
        "illegal name": [("a/b", [0]), ("..", [0]), ("x" * 250, [0])],
        "internal topic": [("__transaction_state", [99])],
    }
    for said, topics in partitions.items():
        yield f"producers, {said}", _of_producers(*topics), 0
    for names in ([], [OPEN], [ENDED], [IDLE], ["unknown"], [""], ["x" * 32_767], ["a\0b"]):
        described = transaction_states.DescribeTransactionsRequest(transactional_ids=names)
        yield f"transactions, {str(names)[:40]}", described, 0
    for states in [*([one] for one in STATES), *UNKNOWN, STATES]:
        request = transaction_states.ListTransactionsRequest(state_filters=states)
        yield f"list, {states}", request, 0
    for ids in ([producers[0].producer_id], [producers[2].producer_id] * 2, [-1], [LONG_MAX]):
        request = transaction_states.ListTransactionsRequest(
            state_filters=["Ongoing", "Empty"], producer_id_filters=ids
        )
        yield f"list, {ids}", request, 0
    for duration_ms in (-1, -(2**63), 0, HOUR_MS, LONG_MAX):
        request = transaction_states.ListTransactionsRequest(duration_filter=duration_ms)
        yield f"list, {duration_ms} ms", request, 1
    request = transaction_states.ListTransactionsRequest(
        state_filters=["Ongoing", "CompleteCommit"], duration_filter=HOUR_MS
    )
    yield "list, of two states, longer than an hour", request, 1


def results(port: int) -> dict[str, str]:
    """Return what a broker answers."""
    connection = Connection(port, ADMIN)
    made = connection.ask(creation(TOPIC, partitions=PARTITIONS), 5)
    while made.topics[0].error_code:
        made = connection.ask(creation(TOPIC, partitions=PARTITIONS), 5)  # it knows no brokers yet
    while connection.ask(groups.FindCoordinatorRequest(key=OPEN, key_type=1), 3).error_code:
        pass
    producers = _prepared(connection)
    found = {}
    for said, request, version in _cases(producers):
        answer = connection.ask(request, version)
        text = str(_sorted(answer))
        for producer in producers:
            for part in ("producer_id=", "[", ", "):
                text = text.replace(f"{part}{producer.producer_id},", f"{part}ID,")
            said = said.replace(f"[{producer.producer_id}", "[ID").replace(
                f", {producer.producer_id}]", ", ID]"
            )
        text = _TIME.sub(r"\1=T", _MESSAGE.sub("=said", text))
        found[said] = _LONG.sub("x...", text)
    connection.close()
    return found


def _sorted(answer: Any) -> Any:
    """Return the answer with its lists in an order that does not depend on the broker."""
    for name in ("transaction_states", "unknown_state_filters", "topics"):
        if hasattr(answer, name):
            setattr(answer, name, sorted(getattr(answer, name), key=str))
    return answer
