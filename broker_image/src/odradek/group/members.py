"""A group's members, and what the coordinator answers to their joins and syncs.

In a rebalance every member comes back, so a request must not look at all of them: `Members` counts
along what would have to be asked of everybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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
    """One member; changed only by its group, and its id, protocols and `join_reply` by `Members`.

    `deadline_ms` is on the monotonic clock.
    """

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

    def answer_sync(self, answer: Synced) -> None:
        """Answer the waiting sync, if one waits."""
        reply, self.sync_reply = self.sync_reply, None
        if reply is not None:
            reply(answer)

    def outlives(self, now_ms: int) -> bool:
        """Whether the session goes on: a heartbeat came in time, or the member waits for us."""
        waits = self.join_reply is not None or self.sync_reply is not None
        return now_ms < self.deadline_ms or (waits and not self.is_new)


class Members(Mapping[str, Member]):
    """The members of a group by their ids, in the order in which they came."""

    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self.statics: dict[str, str] = {}
        """The member id of each instance id."""
        self._knowing: Counter[str] = Counter()
        """How many members know each protocol."""
        self._joining = 0

    def __getitem__(self, member_id: str) -> Member:
        return self._by_id[member_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, member: Member) -> None:
        """Take a member in that does not wait for anything yet."""
        self._by_id[member.member_id] = member
        if member.instance_id is not None:
            self.statics[member.instance_id] = member.member_id
        self._knowing.update({name for name, _ in member.protocols})

    def drop(self, member: Member) -> None:
        """Let a member go that waits for nothing any more."""
        del self._by_id[member.member_id]
        if member.instance_id is not None:
            del self.statics[member.instance_id]
        self._uncount(member.protocols)

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member the id of the process that took its place."""
        self.drop(member)
        member.member_id = member_id
        self.add(member)

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        """Note what a member can follow from now on."""
        self._uncount(member.protocols)
        member.protocols = protocols
        self._knowing.update({name for name, _ in protocols})

    def _uncount(self, protocols: Protocols) -> None:
        """Members make up names; those that nobody knows any more are not kept."""
        for name in {name for name, _ in protocols}:
            self._knowing[name] -= 1
            if not self._knowing[name]:
                del self._knowing[name]

    def all_know(self, protocol: str) -> bool:
        """Whether every member can follow a strategy."""
        return self._knowing[protocol] == len(self._by_id)

    def favourite(self) -> str:
        """The strategy that most members like best out of those that all know."""
        candidates = frozenset(name for name in self._knowing if self.all_know(name))
        votes = Counter(member.vote(candidates) for member in self._by_id.values())
        return votes.most_common(1)[0][0]

    @property
    def joining(self) -> int:
        """How many members wait for the next generation."""
        return self._joining

    @property
    def all_join(self) -> bool:
        """Whether every member waits for the next generation."""
        return self._joining == len(self._by_id)

    def await_join(self, member: Member, reply: Callable[[Joined], None]) -> None:
        """Have a member, whose last join was answered, wait for the next generation."""
        member.join_reply = reply
        self._joining += 1

    def answer_join(self, member: Member, answer: Joined) -> None:
        """Answer a member's waiting join, if one waits."""
        reply, member.join_reply = member.join_reply, None
        if reply is not None:
            self._joining -= 1
            reply(answer)
