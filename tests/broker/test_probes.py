"""The probes of a broker: healthy while its event loop works, ready while it serves."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from odradek.health import Health
from odradek.metrics import endpoint
from odradek.metrics.broker_metrics import BrokerMetrics
from tests.support.broker import STEADY, Broker, Cluster, wait_until
from tests.support.missing import require_ipv6
from tests.support.ports import free_port


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def answers(port: int, path: str, status: int) -> Callable[[], bool]:
    def asked() -> bool:
        with contextlib.suppress(urllib.error.URLError):
            return get(port, path)[0] == status
        return False

    return asked


async def test_blocked_event_loop_is_noticed_by_the_thread_that_answers() -> None:
    now = 100.0
    port = free_port()
    health = Health(lambda: "", lambda: now)
    stop = endpoint.serve(BrokerMetrics(), port, health)
    heartbeat = asyncio.create_task(health.run())
    try:
        await asyncio.sleep(0)
        now += 4
        # These requests block the loop themselves, so no heartbeat comes between.
        assert get(port, "/healthz") == (200, "ok\n")
        now += 2
        blocked = 503, "the event loop has been blocked for 6 s\n"
        assert get(port, "/healthz") == get(port, "/readyz") == blocked
        assert get(port, "/metrics")[0] == 200
    finally:
        heartbeat.cancel()
        await asyncio.to_thread(stop)


async def test_broker_that_does_not_serve_is_healthy_but_not_ready() -> None:
    port = free_port()
    stop = endpoint.serve(BrokerMetrics(), port, Health(lambda: "why"))
    try:
        assert get(port, "/healthz") == (200, "ok\n")
        assert get(port, "/readyz") == (503, "why\n")
    finally:
        await asyncio.to_thread(stop)


async def test_probes_are_answered_on_ipv6_too() -> None:
    require_ipv6()
    port = free_port()
    stop = endpoint.serve(BrokerMetrics(), port, Health(lambda: ""))
    try:
        assert get(port, "/readyz", "[::1]")[0] == 200
    finally:
        await asyncio.to_thread(stop)


def test_broker_is_ready_once_it_is_registered(tmp_path: Path) -> None:
    port = free_port()
    with Cluster(tmp_path, settings={**STEADY, "odradek.metrics.port": str(port)}):
        assert get(port, "/readyz") == (200, "ok\n")
        assert "odradek_broker_info{" in get(port, "/metrics")[1]


def test_broker_answers_probes_while_it_starts(tmp_path: Path) -> None:
    port = free_port()
    settings = {"odradek.metrics.port": str(port)}
    waiting = Broker(tmp_path, 0, f"127.0.0.1:{free_port()}", settings)
    waiting.spawn()
    try:
        wait_until(answers(port, "/healthz", 200), "the broker answers without a ZooKeeper")
        assert get(port, "/readyz") == (503, "the broker starts or stops\n")
        assert get(port, "/metrics")[0] == 200
    finally:
        waiting.kill()
