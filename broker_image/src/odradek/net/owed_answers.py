"""The answers that a connection owes: to Produce requests whose records wait for other replicas.

With acks=all the records of a request are in the log long before it may be answered. A producer has
its next requests on the way by then. Their records are appended meanwhile, so that followers copy
those of several requests at once (ADR 22). Answers go out in the order of the requests all the
same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from odradek.protocol.regions import Part

MOST_OWED: Final = 5
"""As many requests as Kafka's producers have on the way (max.in.flight.requests.per.connection)."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Later(Generic[T]):
    """What is there later of a request that is done but for that; its frame is not needed."""

    wait: Callable[[], Awaitable[T]]


class OwedAnswers:
    """Sends answers that are there later, in order.

    Only the connection that owns it uses it, and sends no other answers while it owes some. An
    exception ends it: `failed` gets it, and whoever waits for answers to be sent.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Part]], Awaitable[None]],
        failed: Callable[[Exception], None],
    ) -> None:
        self._send = send
        self._failed = failed
        self._owed: deque[Later[Sequence[Part] | None]] = deque()
        self._waiting: set[asyncio.Future[Sequence[Part] | None]] = set()
        self._sender: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._sent: asyncio.Future[None] | None = None
        self.awaits_replicas = False
        """Whether it waits for an answer, and not for the peer that is to take one."""

    def __len__(self) -> int:
        return len(self._owed)

    def add(self, answer: Later[Sequence[Part] | None]) -> None:
        """Owe one more answer."""
        if self._owed:
            # It tells what held when its wait ended, which may be long before its turn.
            waiting = asyncio.ensure_future(answer.wait())
            self._waiting.add(waiting)
            waiting.add_done_callback(self._waiting.discard)
            waiting.add_done_callback(_seen)
            answer = Later(lambda: waiting)
        self._owed.append(answer)
        if self._sender is None and self._error is None:
            self._sender = asyncio.create_task(self._send_all())

    async def until_owed(self, most: int) -> None:
        """Wait until at most so many are owed. Raises what sending raised."""
        while self._error is None and len(self._owed) > most:
            self._sent = asyncio.get_running_loop().create_future()
            await self._sent
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Send nothing more."""
        sender = self._sender
        if sender is not None:
            sender.cancel()
            await asyncio.wait((sender,))
        for waiting in self._waiting:
            waiting.cancel()
        self._error = None  # its frames would keep the connection until the collector comes

    async def _send_all(self) -> None:
        try:
            while self._owed:
                parts = await self._next()
                if parts is not None:
                    await self._send(parts)
                self._owed.popleft()
                self._wake()
        except Exception as error:
            self._error = error
            self._failed(error)
        finally:
            self._sender = None
            self._wake()

    async def _next(self) -> Sequence[Part] | None:
        self.awaits_replicas = True
        try:
            return await self._owed[0].wait()
        except OSError as error:
            # An error of this broker, as of a disk, must not look like a lost peer.
            raise RuntimeError("request failed") from error
        finally:
            self.awaits_replicas = False

    def _wake(self) -> None:
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)


def _seen(waiting: asyncio.Future[Sequence[Part] | None]) -> None:
    """Log no exception of an answer whose turn never comes."""
    if not waiting.cancelled():
        waiting.exception()
