"""A slow disk: a method of `Log` that waits in its thread until told to go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from odradek.log.partition.log import Log
from odradek.protocol.errors import KafkaError


class SlowDisk:
    """Stands before a method of `Log`: it waits in its thread until told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.go_on = threading.Event()
        self.entered = threading.Event()
        self.failure: KafkaError | None = None
        real: Callable[..., object] = getattr(Log, name)

        def slow(log: Log, *arguments: object, **options: object) -> object:
            self.entered.set()
            assert self.go_on.wait(30)
            if self.failure is not None:
                raise self.failure
            return real(log, *arguments, **options)

        monkeypatch.setattr(Log, name, slow)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 30)
