"""Requests to other brokers that carry many questions: what is asked of a broker while a few
requests to it are under way goes out together, in the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeAlias, TypeVar

from odradek.net.client import PeerClient

_REQUESTS_AT_ONCE: Final = 5

QuestionT = TypeVar("QuestionT")
AnswerT = TypeVar("AnswerT")
Spawn: TypeAlias = Callable[[Coroutine[object, object, None]], object]
"""Runs work in the background."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Queued(Generic[QuestionT, AnswerT]):
    question: QuestionT
    answer: asyncio.Future[AnswerT | None]


@dataclass(slots=True)
class _Channel(Generic[QuestionT, AnswerT]):
    queue: list[_Queued[QuestionT, AnswerT]] = field(default_factory=list)
    client: PeerClient | None = None
    under_way: int = 0


class BrokerChannels(Generic[QuestionT, AnswerT]):
    """One connection to each broker. Used from the event loop.

    `connect` returns a client of a broker, None while its address is unknown. `exchange` sends one
    request with all the questions, and returns their answers in order; it raises OSError or
    TimeoutError.
    """

    def __init__(
        self,
        connect: Callable[[int], PeerClient | None],
        exchange: Callable[[PeerClient, Sequence[QuestionT]], Awaitable[Sequence[AnswerT | None]]],
        spawn: Spawn,
    ) -> None:
        self._connect = connect
        self._exchange = exchange
        self._spawn = spawn
        self._closed = False
        self._channels: dict[int, _Channel[QuestionT, AnswerT]] = {}

    def ask(self, broker_id: int, question: QuestionT) -> asyncio.Future[AnswerT | None]:
        """Return what becomes the answer, None if there is none: ask again."""
        answer: asyncio.Future[AnswerT | None] = asyncio.get_running_loop().create_future()
        if self._closed:
            answer.set_result(None)
            return answer
        channel = self._channels.setdefault(broker_id, _Channel())
        channel.queue.append(_Queued(question, answer))
        self._send_next(broker_id, channel)
        return answer

    def _send_next(self, broker_id: int, channel: _Channel[QuestionT, AnswerT]) -> None:
        """Send what is queued, unless enough requests are under way; also in this very moment
        others may queue more.
        """
        if not self._closed and channel.queue and channel.under_way < _REQUESTS_AT_ONCE:
            channel.under_way += 1
            self._spawn(self._send_queued(broker_id, channel))

    async def _send_queued(self, broker_id: int, channel: _Channel[QuestionT, AnswerT]) -> None:
        queued, channel.queue = channel.queue, []
        queued = [one for one in queued if not one.answer.done()]  # nobody waits for those
        try:
            if queued:
                found = await self._answers(broker_id, channel, [one.question for one in queued])
                for one, answer in zip(queued, found, strict=True):
                    _settle(one, answer)
        except (OSError, TimeoutError) as error:
            logger.debug("no answer of broker %d: %s", broker_id, error)
        finally:
            for one in queued:
                _settle(one, None)
            channel.under_way -= 1
            self._send_next(broker_id, channel)

    async def _answers(
        self,
        broker_id: int,
        channel: _Channel[QuestionT, AnswerT],
        questions: Sequence[QuestionT],
    ) -> Sequence[AnswerT | None]:
        """Raises OSError or TimeoutError."""
        client = channel.client or self._connect(broker_id)
        if client is None:
            raise ConnectionError("its address is unknown")
        channel.client = client
        try:
            return await self._exchange(client, questions)
        except (OSError, TimeoutError):
            # The next request looks the address up again. Another one may have done so meanwhile.
            if channel.client is client:
                channel.client = None
            await client.close()
            raise

    async def close(self) -> None:
        """Send nothing more, and answer nothing."""
        self._closed = True
        for channel in self._channels.values():
            for one in channel.queue:
                _settle(one, None)
            if channel.client is not None:
                await channel.client.close()


def _settle(queued: _Queued[QuestionT, AnswerT], answer: AnswerT | None) -> None:
    if not queued.answer.done():
        queued.answer.set_result(answer)
