"""A group's members, and what the coordinator answers to their joins and syncs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from odradek.protocol.errors import ErrorCode

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) of each assignment strategy a member can follow, best first."""


@dataclass(frozen=True, slots=True)
class JoinWish:
    """What a JoinGroup request says. Times in milliseconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_known_id: bool
    """Whether an unknown member is first given an id to come back with (KIP-394)."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a join. `members`, for the leader only, is (id, instance id, metadata)."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Synced:
    """The answer to a sync: the member's share."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(slots=True)
class Member:
    """One member; changed only by its group. `deadline_ms` is on the monotonic clock."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    deadline_ms: int
    assignment: bytes = b""
    is_new: bool = False
    join_reply: Callable[[Joined], None] | None = field(default=None, repr=False)
    sync_reply: Callable[[Synced], None] | None = field(default=None, repr=False)

    def metadata(self, protocol: str) -> bytes:
        """The member's metadata for a strategy, b"" if it does not know it."""
        return dict(self.protocols).get(protocol, b"")

    def vote(self, candidates: frozenset[str]) -> str:
        """The strategy that this member likes best out of those that all know."""
        return next(name for name, _ in self.protocols if name in candidates)

    def answer_join(self, answer: Joined) -> None:
        """Answer the waiting join, if one waits."""
        reply, self.join_reply = self.join_reply, None
        if reply is not None:
            reply(answer)

    def answer_sync(self, answer: Synced) -> None:
        """Answer the waiting sync, if one waits."""
        reply, self.sync_reply = self.sync_reply, None
        if reply is not None:
            reply(answer)

    def outlives(self, now_ms: int) -> bool:
        """Whether the session goes on: a heartbeat came in time, or the member waits for us."""
        waits = self.join_reply is not None or self.sync_reply is not None
        return now_ms < self.deadline_ms or (waits and not self.is_new)
