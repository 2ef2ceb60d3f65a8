"""Waits for what a cluster lacks for a moment: a leader, a coordinator, a controller.

What fails (status 1) is tried again for up to half a minute, as Kafka's AdminClient does with
retriable errors. stderr says so once per wait that takes longer than a second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, TypeVar

from odradek.protocol.errors import ErrorCode
from odradek.protocol.schema import Request
from odradek.terminal_text import tell
from odradek.tools.client import ToolClient
from odradek.tools.errors import FAILURES, NothingDoneError, ToolError, refused
from odradek.values import TopicPartition

T = TypeVar("T")
ResponseT = TypeVar("ResponseT")

LONGEST_WAIT_S = 30.0
_SILENT_S: Final = 1.0
_PAUSE_S: Final = 0.3
# A broker that has just come back may not know the topics yet.
_MISSED: Final = 10
# Names of partitions in one line.
_MOST_NAMES: Final = 5


class Retries:
    """Tries in a row of one command; each success ends a wait."""

    def __init__(self, brokers: ToolClient) -> None:
        self._brokers = brokers
        self._failure: BaseException | None = None
        self._until = 0.0
        self._announced = False
        self._missed = 0

    async def run(
        self, attempt: Callable[[], Awaitable[T]], error: type[ToolError] = ToolError
    ) -> T:
        """Return what an attempt returns; repeat it while it fails with this kind of error.

        Raises ToolError: at once for a mistake, and the last failure after `LONGEST_WAIT_S`.
        """
        while True:
            try:
                done = await attempt()
            except error as failure:
                await self.wait(failure)
            else:
                await self.wait(None)
                return done

    async def wait(self, failure: BaseException | None, topics: Iterable[str] = ()) -> None:
        """Pause after a failure, and read the brokers, topics and leaders anew; None: it went well.

        Raises the failure if it is a mistake, or has lasted for `LONGEST_WAIT_S`; ToolError if one
        of the topics is deleted meanwhile.
        """
        loop = asyncio.get_running_loop()
        if failure is None:
            self._failure, self._announced, self._missed = None, False, 0
            return
        if self._failure is None:
            self._until = loop.time() + LONGEST_WAIT_S
        self._failure = failure
        left_s = self._until - loop.time()
        if left_s <= 0 or getattr(failure, "status", 1) == 2:
            raise failure
        silent_s = max(0.0, _SILENT_S - (LONGEST_WAIT_S - left_s))
        announcing = loop.call_later(silent_s, self._announce)
        try:
            await asyncio.sleep(min(_PAUSE_S, left_s))
            # They may come back: a restart takes a moment.
            with contextlib.suppress(ToolError, TimeoutError):
                async with asyncio.timeout_at(self._until):
                    await self._brokers.connect()
                self._look_for(topics)
        finally:
            announcing.cancel()
        if self._missed >= _MISSED:
            missing = sorted(set(topics) - {one.topic for one in self._brokers.leaders})
            raise ToolError(f"topic {', '.join(missing)} does not exist any more", 1)

    def _look_for(self, topics: Iterable[str]) -> None:
        known = {one.topic for one in self._brokers.leaders}
        self._missed = 0 if known.issuperset(topics) else self._missed + 1

    def _announce(self) -> None:
        if not self._announced:
            self._announced = True
            tell(f"{self._failure}; retrying for up to {LONGEST_WAIT_S:g} s")

    def leave_out(self, seconds: float) -> None:
        """Take time that was spent on something else for no part of the wait."""
        self._until += seconds

    async def every_offset(
        self, partitions: Collection[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int]:
        """Return offsets as `ToolClient.offsets` does; wait for leaders. Raises ToolError."""
        return await self._offsets(partitions, timestamp, needs_all=True)

    async def offsets_of_led(
        self, partitions: Collection[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int]:
        """Return offsets as `every_offset` does, without partitions that have no leader now."""
        return await self._offsets(partitions, timestamp, needs_all=False)

    async def _offsets(
        self, partitions: Collection[TopicPartition], timestamp: int, *, needs_all: bool
    ) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        # Once known they stay: what is written while others lack a leader is read, too.
        while missing := [
            one for one in partitions if one not in found and (needs_all or self._is_led(one))
        ]:
            answers = await asyncio.gather(
                *(
                    self._brokers.offsets_or_errors(some, timestamp)
                    for some in by_leader(self._brokers, missing).values()
                ),
                return_exceptions=True,
            )
            failure: BaseException | None = None
            for answer in answers:
                if isinstance(answer, ToolError):
                    failure = answer
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    found |= answer[0]
                    _check(answer[1])
            left = [one for one in missing if one not in found]
            await self.wait(
                failure or (no_leader(left) if left else None), {one.topic for one in left}
            )
        return found

    def _is_led(self, partition: TopicPartition) -> bool:
        return self._brokers.leaders.get(partition, -1) in self._brokers.nodes


def _check(errors: dict[TopicPartition, int]) -> None:
    """Raise ToolError for an error that does not pass by itself."""
    for partition, code in errors.items():
        if code not in FAILURES and code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise refused(str(partition), code, None)


def by_leader(
    brokers: ToolClient, partitions: Iterable[TopicPartition]
) -> dict[int, list[TopicPartition]]:
    """Return partitions by the broker that leads them, -1 for none."""
    found: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        found.setdefault(brokers.leaders.get(partition, -1), []).append(partition)
    return found


def no_leader(waiting: Collection[TopicPartition]) -> NothingDoneError:
    """Return the error for partitions without a leader."""
    names = [str(one) for one in sorted(waiting)]
    some = ", ".join(names[:_MOST_NAMES]) or "a partition"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return NothingDoneError(f"{some}{more} {'have' if len(names) > 1 else 'has'} no leader")


async def call_controller(
    brokers: ToolClient,
    request: Request[ResponseT],
    version: int,
    codes: Callable[[ResponseT], Iterable[int]],
) -> ResponseT:
    """Send a request as `ToolClient.call_controller` does, and again while there is no controller.

    What a controller may have received is not sent again. Raises ToolError.
    """
    return await Retries(brokers).run(
        lambda: brokers.call_controller(request, version, codes), NothingDoneError
    )
