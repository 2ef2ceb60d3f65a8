"""A sink's context without a group: its fence is in the test's hands."""

from __future__ import annotations

from dataclasses import dataclass

from odradek_spark.broker_access import BrokerAccess
from odradek_spark.errors import FencedError
from odradek_spark.sinks import SinkContext


@dataclass
class HandFence:
    """A fence that lets a driver pass until the test says that it is over."""

    epoch: int = 1
    is_over: bool = False

    def require(self) -> None:
        """Raise FencedError once it is over."""
        if self.is_over:
            raise FencedError(f"epoch {self.epoch} is over")


def sink_context(
    mode: str, epoch: int = 1, query_id: str = "q", bootstrap: str = ""
) -> SinkContext:
    """Return a context of group `g`."""
    return SinkContext(mode, query_id, "g", BrokerAccess(bootstrap), HandFence(epoch))
