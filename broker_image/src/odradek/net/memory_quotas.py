"""Memory that all connections of a broker share: for requests and for answers.

Requests (`queued.max.request.bytes`) are counted if they do not fit into the first buffer of a
connection: each step by which the buffer grows is reserved before more of the request is read, and
all are released when it is answered. So a peer takes no memory by announcing a large request. While
no memory is left, only the request that began first is read on, and may exceed the limit: there is
no deadlock, and one that stalls is closed by the listener. Requests of the controller have as much
memory of their own.

Answers (`odradek.queued.max.response.bytes`) are counted from when they have to wait, as for a
socket that is full, until they are sent. Regions of files are not counted: they are in no memory of
this process. While answers fill the memory, requests with large answers wait (see the dispatcher),
and every RELIEF_S seconds the answers that did not move are given up, and of those that hardly did
the slowest, until it is not full any more. So a peer that reads is served later, and one that does
not is closed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

UNLIMITED: Final = -1
RELIEF_S: Final = 2.0
# While memory is short, an answer must move so many bytes per second, and be sent in so many
# seconds.
SHORT_LEAST_RATE: Final = 16 * 1024
SHORT_LONGEST_S: Final = 30


class RequestMemory:
    """Bytes of large requests that are being read or processed, at most about `limit`.

    There is no limit if it is 0 or less.
    """

    def __init__(self, limit: int = UNLIMITED) -> None:
        self._limit = limit
        self.limited = limit > 0
        # By the owner of the request, in the order in which requests began. The first of a plain
        # dictionary is slow to find once many before it are gone.
        self._taken: OrderedDict[object, int] = OrderedDict()
        self._total = 0
        self._waiting: OrderedDict[object, Callable[[], None]] = OrderedDict()

    @property
    def full(self) -> bool:
        """Return whether no memory is left."""
        return self.limited and self._total >= self._limit

    def take(self, owner: object, size: int) -> bool:
        """Reserve memory for a request, `size` bytes in all.

        Return False if none is left, unless the request of this owner began first.
        """
        taken = self._taken.get(owner, 0)
        if size <= taken:
            return True
        if self.full and owner is not next(iter(self._taken)):
            return False
        self._taken[owner] = size
        self._total += size - taken
        return True

    def give_back(self, owner: object) -> None:
        """Release the memory of a request, and let those retry for which there is some."""
        self._waiting.pop(owner, None)
        taken = self._taken.pop(owner, 0)
        if not taken:
            return
        self._total -= taken
        # Only the first may exceed the limit.
        first = next(iter(self._taken), None)
        if first in self._waiting:
            self._waiting.pop(first)()
        while self._waiting and not self.full:
            _, retry = self._waiting.popitem(last=False)
            retry()

    def when_free(self, owner: object, retry: Callable[[], None]) -> None:
        """Call `retry` once, when there is memory for the request of `owner`."""
        self._waiting[owner] = retry


class Answering(Protocol):
    """A connection whose answer waits for its peer."""

    def answered_bytes(self) -> int:
        """Return how much of the answer the peer has taken."""

    def give_up_answer(self) -> None:
        """Close the connection, unless its answer is hardly in memory: its peer reads too slowly
        while memory is short.
        """


@dataclass(slots=True)
class _Waiting:
    """An answer that waits, and how much of it was taken when it was last looked at."""

    size: int
    taken: int
    looked_at: float


class AnswerMemory:
    """Bytes of answers that their peers have not taken yet, at most about `limit`.

    There is no limit if it is 0 or less. Used from one event loop only.
    """

    def __init__(self, limit: int = UNLIMITED) -> None:
        self._limit = limit
        self.total = 0
        # Whether requests have to wait. A plain field: every request looks at it.
        self.full = False
        self._answers: dict[Answering, _Waiting] = {}
        self._turns: deque[asyncio.Future[None]] = deque()  # of those who wait
        self._has_turn = False  # one of them goes on in the next round of the event loop
        self._relief: asyncio.TimerHandle | None = None

    def hold(self, owner: Answering, size: int) -> None:
        """Count the answer of a connection that has to wait for its peer."""
        now = asyncio.get_running_loop().time()
        self._answers[owner] = _Waiting(size, owner.answered_bytes(), now)
        self.total += size
        self._update()

    def release(self, owner: Answering) -> None:
        """Count an answer no more: it is sent, or its connection is closed."""
        answer = self._answers.pop(owner, None)
        if answer is not None:
            self.total -= answer.size
            self._update()

    async def wait_for_room(self) -> None:
        """Return at once if the memory is not full, else when it is this caller's turn."""
        if not self.full:
            return
        turn = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise
        # The next one's turn comes when the answer to this one may have been counted.
        asyncio.get_running_loop().call_soon(self._pass_on)

    def _pass_on(self) -> None:
        self._has_turn = False
        self._update()

    def _update(self) -> None:
        is_over = self.total >= self._limit > 0
        while self._turns and not is_over and not self._has_turn:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                self._has_turn = True
        # Who comes now waits behind those who do already.
        self.full = is_over or self._has_turn or bool(self._turns)
        if is_over and self._relief is None:
            loop = asyncio.get_running_loop()
            self._relief = loop.call_later(RELIEF_S, self._relieve)

    def _relieve(self) -> None:
        """Give up answers that hardly moved, and look again later if that was not enough."""
        self._relief = None
        slow: list[tuple[float, Answering]] = []
        now = asyncio.get_running_loop().time()
        for owner, answer in self._answers.items():
            seconds = now - answer.looked_at
            if seconds < RELIEF_S / 2:
                continue
            taken = owner.answered_bytes()
            rate = (taken - answer.taken) / seconds
            if seconds > 2 * RELIEF_S:
                pass  # this process was stopped, which is no fault of the peer
            elif rate < max(SHORT_LEAST_RATE, answer.size / SHORT_LONGEST_S):
                slow.append((rate, owner))
            answer.taken, answer.looked_at = taken, now
        slow.sort(key=lambda found: found[0])
        surplus = self.total - self._limit
        for rate, owner in slow:
            if surplus < 0 and rate > 0:
                break
            surplus -= self._answers[owner].size
            owner.give_up_answer()
        self._update()
