"""The sensors of clients, and what one request takes of them."""

import asyncio
import contextlib
import gc
import weakref

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.quotas import client_quotas
from odradek.quotas.client_quotas import IDLE_MS, ClientQuotas
from odradek.quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from odradek.quotas.request_quota import CpuMeter, RequestQuota


class WatchedError(Exception):
    """One that can be watched by a weak reference."""


class Clock:
    """Virtual time in milliseconds."""

    now = 1_000_000

    def __call__(self) -> int:
        return self.now


class Processor:
    """A processor whose time passes when it works."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def __call__(self) -> float:
        return self.spent_s

    async def work(self, seconds: float) -> int:
        self.spent_s += seconds / 2
        await asyncio.sleep(0)
        self.spent_s += seconds / 2
        return 7


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quotas(clock: Clock) -> ClientQuotas:
    return ClientQuotas(clock_ms=clock)


def request(
    quotas: ClientQuotas, size: int = 0, client_id: str = "c", meter: CpuMeter | None = None
) -> RequestQuota:
    sensors = quotas.sensors("u", client_id)
    return RequestQuota(quotas, sensors, size, meter or CpuMeter(lambda: 0.0))


def produced(quotas: ClientQuotas, size: int, client_id: str = "c") -> int:
    return request(quotas, size, client_id).settle(produces=True, answered=True)


def test_a_producer_over_its_rate_is_throttled_until_the_rate_is_right(
    quotas: ClientQuotas, clock: Clock
) -> None:
    quotas.change(QuotaEntity("u"), {QuotaKey.PRODUCE: 100.0})
    assert quotas.enforced
    assert produced(quotas, 1000) == 0
    assert produced(quotas, 500) == 5000
    clock.now += 5000
    assert produced(quotas, 1) > 0
    throttled = quotas.throttled[QuotaKey.PRODUCE]
    assert (throttled.count, throttled.total_ms > 5000) == (2, True)
    assert quotas.throttled[QuotaKey.FETCH].count == 0


def test_a_default_gives_each_client_the_whole_limit_and_a_user_shares_one(
    quotas: ClientQuotas,
) -> None:
    quotas.change(QuotaEntity(client_id=DEFAULT), {QuotaKey.PRODUCE: 100.0})
    assert [produced(quotas, 1000, name) for name in ("a", "b", "")] == [0, 0, 0]
    quotas.change(QuotaEntity("u"), {QuotaKey.PRODUCE: 100.0})
    assert [produced(quotas, 1000, name) for name in ("a", "b")] == [0, 10_000]


def test_each_kind_of_quota_is_looked_for_by_itself(quotas: ClientQuotas) -> None:
    quotas.change(QuotaEntity("u"), {QuotaKey.PRODUCE: 100.0})
    quotas.change(QuotaEntity("u", "c"), {QuotaKey.FETCH: 100.0})
    sensors = quotas.sensors("u", "c")
    assert sensors.produce is not None
    assert sensors.fetch is not None
    assert sensors.request is None
    assert sensors.mutation is None


def test_a_change_counts_at_once_and_keeps_what_was_taken(quotas: ClientQuotas) -> None:
    quotas.change(QuotaEntity("u"), {QuotaKey.PRODUCE: 1000.0})
    assert produced(quotas, 5000) == 0
    quotas.change(QuotaEntity("u"), {QuotaKey.PRODUCE: 100.0})
    assert produced(quotas, 0) == 40_000
    quotas.change(QuotaEntity("u"), {})
    assert not quotas.enforced
    assert quotas.sensor_count == 0


def test_entities_that_are_gone_have_no_limit(quotas: ClientQuotas) -> None:
    quotas.change(QuotaEntity("u"), {QuotaKey.PRODUCE: 100.0})
    quotas.replace({QuotaEntity("v"): {QuotaKey.PRODUCE: 100.0}})
    assert quotas.enforced
    assert quotas.sensors("u", "c").produce is None


def test_a_fetch_over_the_rate_is_refused_and_not_counted(
    quotas: ClientQuotas, clock: Clock
) -> None:
    quotas.change(QuotaEntity("u"), {QuotaKey.FETCH: 100.0})
    assert request(quotas).most_fetch_bytes == 1000
    assert not request(quotas).refuses_fetch(600)
    for _ in range(3):
        over = request(quotas)
        assert over.refuses_fetch(500)
        assert over.settle(produces=False, answered=True) == 1000
    assert quotas.throttled[QuotaKey.FETCH].count == 3
    clock.now += 11_000
    assert not request(quotas).refuses_fetch(600)


def test_a_rate_that_nobody_reaches_limits_nothing(quotas: ClientQuotas) -> None:
    quotas.change(QuotaEntity("u"), dict.fromkeys(QuotaKey, 1e308))
    most = request(quotas).most_fetch_bytes
    assert most is not None
    assert most >= 2**31 - 1
    assert not request(quotas).refuses_fetch(2**31)
    changing = request(quotas)
    changing.mutate(10_000, strict=True)
    assert changing.settle(produces=True, answered=True) == 0


def test_a_batch_larger_than_a_window_is_sent_when_nothing_else_was(quotas: ClientQuotas) -> None:
    quotas.change(QuotaEntity("u"), {QuotaKey.FETCH: 100.0})
    first = request(quotas)
    assert not first.refuses_fetch(5000)
    assert first.settle(produces=False, answered=True) == 40_000
    assert request(quotas).refuses_fetch(10)


def test_mutations_are_refused_or_only_throttled(quotas: ClientQuotas, clock: Clock) -> None:
    quotas.change(QuotaEntity("u"), {QuotaKey.CONTROLLER_MUTATION: 2.0})
    first = request(quotas)
    first.mutate(32, strict=True)
    assert first.settle(produces=False, answered=True) == 0
    second = request(quotas)
    with pytest.raises(KafkaError) as refusal:
        second.mutate(1, strict=True)
    assert refusal.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert second.settle(produces=False, answered=True) == 5000
    old = request(quotas)
    old.mutate(2, strict=False)
    clock.now += 1500  # the change takes that long
    assert old.settle(produces=False, answered=True) == 4500
    assert quotas.throttled[QuotaKey.CONTROLLER_MUTATION].count == 2


async def test_time_of_a_request_is_that_of_its_steps(quotas: ClientQuotas) -> None:
    quotas.change(QuotaEntity("u"), {QuotaKey.REQUEST: 10.0})
    processor = Processor()
    meter = CpuMeter(processor)
    measured = meter.run(processor.work(2.0))
    other = asyncio.ensure_future(processor.work(100.0))  # in between
    assert await measured == 7
    await other
    # 200 % of a second in 10 seconds are 20 %.
    assert request(quotas, meter=meter).settle(produces=False, answered=True) == 1000, "bounded"
    assert request(quotas, meter=meter).settle(produces=True, answered=False) == 0, "acks=0"


async def test_work_that_is_cancelled_is_freed_at_once() -> None:
    held = Clock()  # anything that can be watched
    is_held = weakref.ref(held)

    async def wait_with(it: Clock) -> None:
        await asyncio.get_running_loop().create_future()
        it()

    async def run(it: Clock) -> None:
        await CpuMeter().run(wait_with(it))

    gc.collect()
    gc.disable()
    try:
        task = asyncio.create_task(run(held))
        del held
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        del task
        await asyncio.sleep(0)
        assert is_held() is None
    finally:
        gc.enable()


async def test_an_error_that_measured_work_survives_is_freed_at_once() -> None:
    raised: list[weakref.ref[WatchedError]] = []

    def fail(future: asyncio.Future[None]) -> None:
        error = WatchedError()
        raised.append(weakref.ref(error))
        future.set_exception(error)

    async def work() -> None:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(fail, future)
        with contextlib.suppress(WatchedError):
            await future
        del future

    gc.collect()
    gc.disable()
    try:
        await CpuMeter().run(work())
        await asyncio.sleep(0)
        assert [error() for error in raised] == [None]
    finally:
        gc.enable()


async def test_time_after_the_answer_is_made_counts_for_the_next_request(
    quotas: ClientQuotas,
) -> None:
    quotas.change(QuotaEntity("u"), {QuotaKey.REQUEST: 10.0})
    processor = Processor()

    async def send() -> None:
        await processor.work(2.0)

    first = request(quotas, meter=CpuMeter(processor))
    assert first.settle(produces=False, answered=True) == 0
    await first.send(send())
    assert request(quotas).settle(produces=False, answered=True) == 1000


async def test_a_measured_request_that_is_cancelled_ends() -> None:
    ended = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def measured() -> None:
        await CpuMeter().run(endless())

    task = asyncio.create_task(measured())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


def test_idle_sensors_are_dropped(quotas: ClientQuotas, clock: Clock) -> None:
    quotas.change(QuotaEntity(client_id=DEFAULT), {QuotaKey.PRODUCE: 100.0})
    for number in range(50):
        produced(quotas, 1, f"c{number}")
    assert quotas.sensor_count == 50
    clock.now += IDLE_MS
    produced(quotas, 1, "new")
    assert quotas.sensor_count == 1


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(client_quotas, "MOST_SENSORS", 100)
    return 100


def test_sensors_are_bounded_and_the_busiest_stay(
    quotas: ClientQuotas, clock: Clock, few: int
) -> None:
    quotas.change(QuotaEntity(client_id=DEFAULT), {QuotaKey.PRODUCE: 100.0})
    for number in range(20 * few):
        clock.now += 1
        produced(quotas, 500, "busy")
        produced(quotas, 1, f"c{number}" + "x" * 30_000 * (number % 2))
        assert quotas.sensor_count <= few
    assert produced(quotas, 0, "busy") > 0
