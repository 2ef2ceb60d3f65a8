"""The health of a broker, as the kubelet's probes ask for it: /healthz and /readyz.

An open port says little: the kernel accepts connections of a process that hangs. So the event loop
itself notes the time each second, and the HTTP thread that answers a probe looks how old that is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus

HEARTBEAT_S = 1.0
LATEST_HEARTBEAT_S = 5.0


class Health:
    """Answers probes, from any thread, while the event loop runs `run`.

    `why_not_ready` returns why the broker does not serve, or nothing; it is called in the thread of
    the probe.
    """

    def __init__(
        self, why_not_ready: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._why_not_ready = why_not_ready
        self._clock = clock
        self._beat_at = clock()

    async def run(self) -> None:
        """Note each second that the event loop works, until cancelled."""
        while True:
            self._beat_at = self._clock()
            await asyncio.sleep(HEARTBEAT_S)

    def answer(self, path: str) -> tuple[HTTPStatus, str] | None:
        """Return the status and the text for a path, None if it is no probe's."""
        if path not in ("/healthz", "/readyz"):
            return None
        silent_s = self._clock() - self._beat_at
        reason = ""
        if silent_s > LATEST_HEARTBEAT_S:
            reason = f"the event loop has been blocked for {silent_s:.0f} s"
        elif path == "/readyz":
            reason = self._why_not_ready()
        if reason:
            return HTTPStatus.SERVICE_UNAVAILABLE, reason
        return HTTPStatus.OK, "ok"
