"""Steps of TLS handshakes in threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from odradek.net.handshakes import Handshakes


async def test_error_of_a_step_reaches_its_waiter() -> None:
    handshakes = Handshakes()

    def fail() -> None:
        raise ValueError(threading.current_thread().name)

    with pytest.raises(ValueError, match="tls-handshake"):
        await handshakes.step(fail)
    handshakes.close()


async def test_cancelled_waiter_waits_for_the_end_of_its_step() -> None:
    handshakes = Handshakes()
    has_begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        has_begun.set()
        may_end.wait()

    waiting = asyncio.create_task(handshakes.step(work))
    await asyncio.to_thread(has_begun.wait)
    waiting.cancel()
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    handshakes.close()
