"""The keys that sign the tokens of one listener: fetched at the start, and again and again.

One task fetches, in a thread that the event loop does not wait for: every
`sasl.oauthbearer.jwks.endpoint.refresh.ms`, and with growing pauses after a failure. What was
fetched last counts, however long the endpoint is away; before the first time no token is taken.

A token with an unknown key asks for an early look, and waits for its end. Anybody can make up names
of keys, so early looks have a minimal distance, whoever asks for them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from odradek import https_request, tls_errors
from odradek.https_request import MOST_BYTES
from odradek.net.rare_log import RareLog
from odradek.oauth_settings import OauthSettings
from odradek.security import tokens
from odradek.security.tokens import Key, TokenHeader

# Between the beginnings of early looks.
APART_S: Final = 10.0
# A token waits no longer for one.
WAIT_S: Final = 5.0
# Looks that still go on in their threads, though nobody waits for them any more.
MOST_LOOKS: Final = 4

logger = logging.getLogger(__name__)


class Jwks:
    """The keys of one endpoint. `failed` counts fetches without success."""

    def __init__(
        self,
        listener: str,
        settings: OauthSettings,
        context: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failed = 0
        self._listener = listener
        self._settings = settings
        self._context = context
        self._clock = clock
        self._keys: tuple[Key, ...] = ()
        self._fetched_s: float | None = None
        self._looked_s = -APART_S
        # The first look is to come: who asks before may wait for it.
        self._is_looking = True
        self._unfinished = 0
        self._wanted = asyncio.Event()
        self._looked = asyncio.Event()
        self._log = RareLog(logger)

    @property
    def age_s(self) -> float:
        """Return how old the keys are; infinite before the first time."""
        return float("inf") if self._fetched_s is None else self._clock() - self._fetched_s

    async def find(self, header: TokenHeader) -> list[Key]:
        """Return the keys that may have signed a token; wait for new ones if that may help."""
        found = tokens.fitting(self._keys, header)
        if found:
            return found
        if not self._is_looking:
            if header.kid is None or self._clock() - self._looked_s < APART_S:
                return found
            self._wanted.set()
        try:
            async with asyncio.timeout(WAIT_S):
                await self._looked.wait()
        except TimeoutError:
            return []
        return tokens.fitting(self._keys, header)

    async def run(self) -> None:
        """Fetch keys until cancelled."""
        backoff_ms = self._settings.backoff_ms
        while True:
            self._wanted.clear()
            self._is_looking = True
            is_done = await self._look()
            self._is_looking = False
            if is_done:
                pause_ms, backoff_ms = self._settings.refresh_ms, self._settings.backoff_ms
            else:
                pause_ms = backoff_ms
                backoff_ms = min(2 * backoff_ms, self._settings.backoff_max_ms)
            looked, self._looked = self._looked, asyncio.Event()
            looked.set()
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def _look(self) -> bool:
        """Fetch keys once; return whether that succeeds."""
        self._looked_s = self._clock()
        try:
            async with asyncio.timeout(https_request.LIMIT_S):
                keys = await self._in_thread(lambda: fetch(self._settings, self._context))
        except Exception as error:  # as for want of memory or of a thread, too
            self.failed += 1
            self._log.log(
                logging.WARNING,
                "failed to fetch the keys of listener %s from %s: %.200s; retrying",
                self._listener,
                self._settings.url,
                tls_errors.describe(error),
            )
            return False
        if self._fetched_s is None or {one.kid for one in keys} != {one.kid for one in self._keys}:
            logger.info(
                "listener %s takes tokens signed by %d keys of %s",
                self._listener,
                len(keys),
                self._settings.url,
            )
        self._keys, self._fetched_s = keys, self._clock()
        return True

    async def _in_thread(self, work: Callable[[], tuple[Key, ...]]) -> tuple[Key, ...]:
        """Return the result of work in a thread of its own.

        Neither the end of the process nor other work waits for it: a name server may be silent.
        Raises OSError while earlier ones go on and on.
        """
        if self._unfinished >= MOST_LOOKS:
            raise OSError(f"{self._unfinished} earlier tries have no answer yet")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Key, ...]] = loop.create_future()

        def settle(keys: tuple[Key, ...], error: Exception | None) -> None:
            self._unfinished -= 1
            if done.cancelled():
                return
            if error is None:
                done.set_result(keys)
            else:
                done.set_exception(error)

        def run() -> None:
            keys: tuple[Key, ...] = ()
            failure: Exception | None = None
            try:
                keys = work()
            except Exception as error:
                failure = error
            try:
                loop.call_soon_threadsafe(settle, keys, failure)
            except RuntimeError:
                return  # the broker has stopped

        threading.Thread(target=run, name="keys", daemon=True).start()
        self._unfinished += 1
        return await done


def fetch(settings: OauthSettings, context: ssl.SSLContext | None) -> tuple[Key, ...]:
    """Return the keys of an endpoint or of a file. Raises OSError, ValueError or HTTPException."""
    path = settings.path
    if path is None:
        status, data = https_request.fetch(settings.url, context)
        if status != HTTPStatus.OK:
            raise ValueError(f"HTTP status {status}")
    else:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return tokens.read_keys(json.loads(data))
