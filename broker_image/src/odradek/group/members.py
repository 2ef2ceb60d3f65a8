"""The members of a group, and the results of their JoinGroup and SyncGroup requests.

Each rebalance has one request per member, so a request must not loop over all members: `Members`
keeps counts instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from odradek.protocol.errors import ErrorCode

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) of each assignment strategy that a member supports, preferred first."""


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """The contents of a JoinGroup request. Times in milliseconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_known_id: bool
    """Whether a new member first receives an id to join again with (KIP-394)."""


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The result of a join. `members`, for the leader only, is (id, instance id, metadata)."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The result of a sync: the member's assignment."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(slots=True)
class GroupMember:
    """One member. Only its group changes it; only `Members` changes its id, protocols, join_reply.

    `deadline_ms` is of the monotonic clock.
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
    owes_sync: bool = False
    """Whether the member has joined the generation and not asked for its assignment yet."""
    join_reply: Callable[[JoinResult], None] | None = field(default=None, repr=False)
    sync_reply: Callable[[SyncResult], None] | None = field(default=None, repr=False)

    def metadata(self, protocol: str) -> bytes:
        """Return the member's metadata for a strategy, b"" if it does not support it."""
        return dict(self.protocols).get(protocol, b"")

    def vote(self, candidates: frozenset[str]) -> str:
        """Return the first of the candidates in this member's order."""
        return next(name for name, _ in self.protocols if name in candidates)

    def answer_sync(self, answer: SyncResult) -> None:
        """Answer the waiting sync, if there is one."""
        reply, self.sync_reply = self.sync_reply, None
        if reply is not None:
            reply(answer)

    def is_alive(self, now_ms: int) -> bool:
        """Return whether the session has not expired, or the member waits for an answer."""
        waits = self.join_reply is not None or self.sync_reply is not None
        return now_ms < self.deadline_ms or (waits and not self.is_new)


class Members(Mapping[str, GroupMember]):
    """The members of a group by id, in the order in which they joined."""

    def __init__(self) -> None:
        self._by_id: dict[str, GroupMember] = {}
        self.static_members: dict[str, str] = {}
        """Member ids by instance id."""
        self._supporters: Counter[str] = Counter()
        """The number of members that support each protocol."""
        self._joining = 0

    def __getitem__(self, member_id: str) -> GroupMember:
        return self._by_id[member_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, member: GroupMember) -> None:
        """Add a member that does not wait for an answer yet."""
        self._by_id[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._supporters.update({name for name, _ in member.protocols})

    def remove(self, member: GroupMember) -> None:
        """Remove a member that does not wait for an answer any more."""
        del self._by_id[member.member_id]
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        self._uncount(member.protocols)

    def rename(self, member: GroupMember, member_id: str) -> None:
        """Give a static member the id of its new process."""
        self.remove(member)
        member.member_id = member_id
        self.add(member)

    def set_protocols(self, member: GroupMember, protocols: Protocols) -> None:
        """Replace the protocols that a member supports."""
        self._uncount(member.protocols)
        member.protocols = protocols
        self._supporters.update({name for name, _ in protocols})

    def _uncount(self, protocols: Protocols) -> None:
        """Remove a member's votes; forget names without votes, since members choose any names."""
        for name in {name for name, _ in protocols}:
            self._supporters[name] -= 1
            if not self._supporters[name]:
                del self._supporters[name]

    def all_support(self, protocol: str) -> bool:
        """Return whether every member supports a strategy."""
        return self._supporters[protocol] == len(self._by_id)

    def select_protocol(self) -> str:
        """Return the strategy with most votes, of those that all members support."""
        candidates = frozenset(name for name in self._supporters if self.all_support(name))
        votes = Counter(member.vote(candidates) for member in self._by_id.values())
        return votes.most_common(1)[0][0]

    @property
    def joining(self) -> int:
        """Return the number of members that wait for the next generation."""
        return self._joining

    @property
    def all_joined(self) -> bool:
        """Return whether every member waits for the next generation."""
        return self._joining == len(self._by_id)

    def await_join(self, member: GroupMember, reply: Callable[[JoinResult], None]) -> None:
        """Let a member wait for the next generation; its last join was answered."""
        member.join_reply = reply
        self._joining += 1

    def answer_join(self, member: GroupMember, answer: JoinResult) -> None:
        """Answer a member's waiting join, if there is one."""
        reply, member.join_reply = member.join_reply, None
        if reply is not None:
            self._joining -= 1
            reply(answer)
