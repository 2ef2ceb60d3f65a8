"""The brokers of one round: all asked at once, and one that failed not again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from odradek_operator.shared.broker_client import BrokerError, OperatorClient

WorkT = TypeVar("WorkT")
AnswerT = TypeVar("AnswerT")

_MOST_THREADS: Final = 16


class RoundBrokers:
    """The registered brokers; `failures` says why some do not answer."""

    def __init__(self, client: OperatorClient) -> None:
        self.client = client
        self.failures: dict[int, str] = {}

    @property
    def answering(self) -> list[int]:
        """Return the brokers that have not failed."""
        return [one for one in self.client.addresses if one not in self.failures]

    def each(
        self, work: Mapping[int, WorkT], ask: Callable[[int, WorkT], AnswerT]
    ) -> dict[int, AnswerT]:
        """Do the work of each broker, at the same time; return what those that answer say."""
        answering = set(self.answering)
        todo = {broker_id: one for broker_id, one in work.items() if broker_id in answering}
        found: dict[int, AnswerT] = {}
        with ThreadPoolExecutor(_MOST_THREADS, "broker") as pool:
            asked = {one: pool.submit(ask, one, todo[one]) for one in todo}
        for broker_id, answer in asked.items():
            try:
                found[broker_id] = answer.result()
            except BrokerError as error:
                self.failures[broker_id] = str(error).removeprefix(f"broker {broker_id}: ")
        return found
