"""What a connection and the dispatcher of its frames exchange: who the client is, and answers."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from odradek.net.next_request import NextRequest
from odradek.net.owed_answers import Later
from odradek.net.unasked import Unasked
from odradek.protocol.regions import Part
from odradek.values import ANONYMOUS, Principal


@dataclass(slots=True)
class Throttling:
    """What quotas ask of the connection of a request: a `mute_s` in seconds after its answer.

    `send` sends the answer of a request whose time is measured.
    """

    mute_s: float = 0.0
    send: Callable[[Awaitable[None]], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """The client of an accepted connection; `connection_id` is never reused."""

    host: str
    port: int
    connection_id: int
    # False once the client sends no more, also if what it sent before was not read yet.
    is_connected: Callable[[], bool] = lambda: True
    principal: Principal = ANONYMOUS
    # True while nobody knows who the client is: it has no quota, and uses up none.
    is_stranger: bool = False
    throttling: Throttling = field(default_factory=Throttling)
    next_request: NextRequest = field(default_factory=NextRequest)
    unasked: Unasked = field(default_factory=Unasked)
    # Whether an answer to a Produce may be one that is there later.
    takes_later: bool = False
    listener: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port} on listener {self.listener}"


Answer: TypeAlias = Sequence[Part] | Later[Sequence[Part] | None] | None

# Answers a frame: returns parts with response header but without size, None for no answer, or where
# they come from later. The memory of the frame is valid until then. ProtocolViolation closes the
# connection.
Dispatch: TypeAlias = Callable[[memoryview, ClientInfo], Awaitable[Answer]]
