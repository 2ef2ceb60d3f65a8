"""What one request takes of its client's quotas, and how long the client is throttled for it.

The time of a request is the processor time of the event loop: the steps that its coroutines run,
not their waits. 100 % of `request_percentage` is the whole event loop. What is spent after the
throttle time is known, on encoding and sending the answer, counts for the next request, as the time
of Kafka's network threads does.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, Generic, TypeVar

from odradek.properties import INT_MAX
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.quotas.client_quotas import ClientQuotas, ClientSensors
from odradek.quotas.entities import QuotaKey

_PERCENT_PER_SECOND: Final = 100
# Kafka's words of error 89.
_EXCEEDED: Final = "The throttling quota has been exceeded."

T = TypeVar("T")


class _Metered(Generic[T]):
    """Awaits some work and adds the time of its steps to a meter."""

    __slots__ = ("_meter", "_work")

    def __init__(self, meter: CpuMeter, work: Awaitable[T]) -> None:
        self._meter = meter
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        value: Any = None
        error: BaseException | None = None
        while True:
            self._meter.begin()
            try:
                waits_for = steps.send(value) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self._meter.end()
                error = None  # it would be in its own traceback
            try:
                value, error = (yield waits_for), None
            except BaseException as thrown:  # as a cancellation
                value, error = None, thrown
            del waits_for  # a future whose error has this frame in its traceback


class CpuMeter:
    """The processor time that was spent on one request."""

    __slots__ = ("_began_s", "_clock_s", "_spent_s")

    def __init__(self, clock_s: Callable[[], float] = time.thread_time) -> None:
        self._clock_s = clock_s
        self._spent_s = 0.0
        self._began_s: float | None = None

    def run(self, work: Awaitable[T]) -> Awaitable[T]:
        """Return an awaitable that does the work and measures it."""
        return _Metered(self, work)

    def begin(self) -> None:
        """Begin a step."""
        self._began_s = self._clock_s()

    def end(self) -> None:
        """End the step."""
        if self._began_s is not None:
            self._spent_s += self._clock_s() - self._began_s
            self._began_s = None

    def take_s(self) -> float:
        """Return the seconds that were spent since the last call, also in the present step."""
        if self._began_s is not None:
            now_s = self._clock_s()
            self._spent_s += now_s - self._began_s
            self._began_s = now_s
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s


class RequestQuota:
    """The quotas of one request of a client. `size` is that of its frame."""

    __slots__ = (
        "_key",
        "_meter",
        "_mutated_until_ms",
        "_quotas",
        "_sensors",
        "_settled",
        "_size",
        "_throttle_ms",
    )

    def __init__(
        self, quotas: ClientQuotas, sensors: ClientSensors, size: int, meter: CpuMeter
    ) -> None:
        self._quotas = quotas
        self._sensors = sensors
        self._size = size
        self._meter = meter
        self._throttle_ms = 0
        self._key = QuotaKey.REQUEST
        self._settled = False
        self._mutated_until_ms = 0

    @property
    def most_fetch_bytes(self) -> int | None:
        """Return how much may be fetched at once, None if nothing limits it."""
        fetch = self._sensors.fetch
        return None if fetch is None else int(min(fetch.most_per_window, INT_MAX))

    def refuses_fetch(self, size: int) -> bool:
        """Count an answer with records; return whether an empty one must be sent instead.

        What is not sent is not counted. Other than in Kafka, an answer that is larger than a whole
        window allows, as a single batch may be, is sent if nothing else was: it would never be.
        """
        self._count_time()
        fetch = self._sensors.fetch
        if fetch is not None and size:
            now_ms = self._quotas.clock_ms()
            fetch.add(size, now_ms)
            self._throttle(QuotaKey.FETCH, fetch.throttle_ms(now_ms))
            if fetch.has_only(size) and self._key is QuotaKey.FETCH:
                return False
            if self._throttle_ms:
                fetch.add(-size, now_ms)
        return bool(self._throttle_ms)

    def mutate(self, partitions: int, *, strict: bool) -> None:
        """Count partitions that are to be created or deleted (KIP-599).

        Raises THROTTLING_QUOTA_EXCEEDED if `strict` and too many were before.
        """
        bucket = self._sensors.mutation
        if bucket is None:
            return
        now_ms = self._quotas.clock_ms()
        if strict:
            wait_ms = bucket.throttle_ms(now_ms)
            if wait_ms:
                self._throttle(QuotaKey.CONTROLLER_MUTATION, wait_ms)
                raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _EXCEEDED)
        bucket.take(partitions, now_ms)
        if not strict:
            self._mutated_until_ms = now_ms + bucket.throttle_ms(now_ms)

    def settle(self, *, produces: bool, answered: bool) -> int:
        """Count the request; return for how many milliseconds its client is throttled.

        As in Kafka, the time of a request without an answer is not limited.
        """
        if produces and self._sensors.produce is not None:
            now_ms = self._quotas.clock_ms()
            self._sensors.produce.add(self._size, now_ms)
            self._throttle(QuotaKey.PRODUCE, self._sensors.produce.throttle_ms(now_ms))
        if answered:
            self._count_time()
        if self._mutated_until_ms:
            # The change itself took a part of that time.
            left_ms = self._mutated_until_ms - self._quotas.clock_ms()
            self._throttle(QuotaKey.CONTROLLER_MUTATION, left_ms)
        if self._throttle_ms:
            self._quotas.note_throttle(self._key, self._throttle_ms)
        return self._throttle_ms

    async def send(self, work: Awaitable[None]) -> None:
        """Send the answer; count the time that this takes."""
        try:
            await self._meter.run(work)
        finally:
            if self._sensors.request is not None:
                spent = self._meter.take_s() * _PERCENT_PER_SECOND
                self._sensors.request.add(spent, self._quotas.clock_ms())

    def _count_time(self) -> None:
        request = self._sensors.request
        if request is None or self._settled:
            return
        self._settled = True
        now_ms = self._quotas.clock_ms()
        request.add(self._meter.take_s() * _PERCENT_PER_SECOND, now_ms)
        self._throttle(QuotaKey.REQUEST, request.throttle_ms(now_ms))

    def _throttle(self, key: QuotaKey, throttle_ms: int) -> None:
        if throttle_ms > self._throttle_ms:
            self._throttle_ms, self._key = throttle_ms, key
