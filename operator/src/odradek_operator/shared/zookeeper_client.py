"""A ZooKeeper client that fails what is asked while it has no connection.

kazoo keeps such a request until there is a connection again. Whoever waits for it would wait as
long as ZooKeeper is away, and everything behind it in its work queue, too. A write would then be
made by a process that may have lost its Lease meanwhile, and that nobody waits for any more.
"""

from __future__ import annotations

import threading
from typing import Any

from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.states import KeeperState

from odradek.zk.client import Client


class FailFastClient(Client):
    """A `Client` whose requests end with ConnectionLoss unless it is connected."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        # With the end of a connection kazoo fails what waits. Nothing may begin to wait after that.
        self._order = threading.RLock()
        super().__init__(*arguments, **settings)

    def _session_callback(self, state: str) -> None:
        with self._order:
            super()._session_callback(state)

    def _call(self, request: Any, answer: Any) -> Any:
        with self._order:
            if self._state == KeeperState.CONNECTING:
                answer.set_exception(ConnectionLoss())
                return False
            return super()._call(request, answer)
