"""One group's membership as a state machine: requests and the clock come in, answers go out.

No input or output happens here. Times are arguments (milliseconds of the monotonic clock), answers
leave through the reply functions that requests bring, and what must be durable goes through
`store`, which calls back once it is. A rebalance: `join` collects everybody until all have joined
or the deadline passes (`expire`), a new generation begins, the leader's `sync` brings the
assignment, it is stored, and every waiting `sync` is answered.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from uuid import uuid4

from odradek.group.members import Joined, JoinWish, Member, Members, Synced
from odradek.group.states import GroupState, check
from odradek.protocol.errors import ErrorCode

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long a new member may wait for its first rebalance before it is taken for gone."""

Store = Callable[["Group", Mapping[str, bytes], Callable[[ErrorCode, int], None]], None]
"""Make the group durable with these assignments, then call back with the outcome and the time."""


class Group:
    """A group's members, generation and state. Offsets are kept beside it, by the coordinator."""

    def __init__(
        self,
        group_id: str,
        store: Store,
        initial_delay_ms: int = 3000,
        max_size: int = 2**31 - 1,
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members = Members()
        self.pending: dict[str, int] = {}
        """Ids given out to members that have not come back yet: id -> when it is forgotten."""
        self.next_look_ms: int | None = None
        """Until when `expire` has nothing to do; None: for ever, as things are."""
        self._store = store
        self._initial_delay_ms = initial_delay_ms
        self._max_size = max_size
        self._new_id = new_id
        self._rebalance_deadline_ms = 0
        self._initial_until_ms: int | None = None
        self._initial_grew = False

    # --- joining ------------------------------------------------------------------------------

    def join(self, wish: JoinWish, now_ms: int, reply: Callable[[Joined], None]) -> None:
        """Take a member in, or ask a present one to take part in the next generation."""
        error = self._join_error(wish)
        if not self._has_room(wish):
            self._turn_away(wish.member_id, now_ms)
            reply(Joined(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
        elif error is not ErrorCode.NONE:
            reply(Joined(error, wish.member_id))
        elif not wish.member_id:
            self._join_unknown(wish, now_ms, reply)
        elif wish.member_id in self.pending:
            self._add(wish, wish.member_id, now_ms, reply)
        else:
            self._join_again(self.members[wish.member_id], wish, now_ms, reply)

    def _join_error(self, wish: JoinWish) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self._supports(wish):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not wish.member_id or (wish.member_id in self.pending and wish.instance_id is None):
            return ErrorCode.NONE
        return self.member_error(wish.member_id, wish.instance_id)

    def _has_room(self, wish: JoinWish) -> bool:
        """Whether the member is one of as many as the group may have.

        In a rebalance these are the first that come, whether they were members before or not.
        """
        if self.state in (GroupState.EMPTY, GroupState.DEAD):
            return True
        static_id = self.members.statics.get(wish.instance_id or "", "")
        member = self.members.get(wish.member_id or static_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            waits = member is not None and member.join_reply is not None
            return waits or self.members.joining < self._max_size
        return member is not None or len(self.members) < self._max_size

    def _turn_away(self, member_id: str, now_ms: int) -> None:
        """Wait no longer for a member that the group has no room for."""
        self.pending.pop(member_id, None)
        if member_id in self.members:
            self._drop(self.members[member_id])
        self._complete_if_all_joined(now_ms)

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """What is wrong with a member's identity: 25 unknown, 82 its instance has a new member."""
        if instance_id is not None:
            if instance_id not in self.members.statics:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if self.members.statics[instance_id] != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def _supports(self, wish: JoinWish) -> bool:
        if not wish.protocol_type or not wish.protocols:
            return False
        if not self.members:
            return True
        return wish.protocol_type == self.protocol_type and any(
            self.members.all_know(name) for name, _ in wish.protocols
        )

    def _join_unknown(self, wish: JoinWish, now_ms: int, reply: Callable[[Joined], None]) -> None:
        member_id = f"{wish.instance_id or wish.client_id}-{self._new_id()}"
        if wish.instance_id is not None and wish.instance_id in self.members.statics:
            self._replace_static(wish, member_id, now_ms, reply)
        elif wish.requires_known_id and wish.instance_id is None:
            self.pending[member_id] = now_ms + wish.session_timeout_ms
            self._look_by(self.pending[member_id])
            reply(Joined(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(wish, member_id, now_ms, reply)

    def _add(
        self, wish: JoinWish, member_id: str, now_ms: int, reply: Callable[[Joined], None]
    ) -> None:
        self.pending.pop(member_id, None)
        if not self.members:
            self.protocol_type = wish.protocol_type
        member = Member(
            member_id,
            wish.instance_id,
            wish.client_id,
            wish.client_host,
            wish.session_timeout_ms,
            wish.rebalance_timeout_ms,
            wish.protocol_type,
            wish.protocols,
            deadline_ms=now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS,
            is_new=True,
        )
        self.members.add(member)
        self.members.await_join(member, reply)
        self._look_by(member.deadline_ms)
        if self.leader is None:
            self.leader = member_id
        self._initial_grew = True
        self._rebalance(now_ms)

    def _join_again(
        self, member: Member, wish: JoinWish, now_ms: int, reply: Callable[[Joined], None]
    ) -> None:
        unchanged = member.protocols == wish.protocols
        leads = member.member_id == self.leader
        settled = self.state is GroupState.COMPLETING_REBALANCE or (
            self.state is GroupState.STABLE and not leads
        )
        if unchanged and settled:
            # The answer of the last rebalance got lost, or the member missed nothing.
            self._prolong(member, now_ms)
            show_members = self.state is GroupState.COMPLETING_REBALANCE
            reply(self._joined(member, show_members))
            return
        self.members.set_protocols(member, wish.protocols)
        member.session_timeout_ms = wish.session_timeout_ms
        member.rebalance_timeout_ms = wish.rebalance_timeout_ms
        again = Joined(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        self.members.answer_join(member, again)
        self.members.await_join(member, reply)
        self._rebalance(now_ms)

    def _replace_static(
        self, wish: JoinWish, member_id: str, now_ms: int, reply: Callable[[Joined], None]
    ) -> None:
        """A static member restarted: the new id takes the old one's place (KIP-345)."""
        assert wish.instance_id is not None
        old = self.members[self.members.statics[wish.instance_id]]
        fenced = ErrorCode.FENCED_INSTANCE_ID
        self.members.answer_join(old, Joined(fenced, old.member_id))
        old.answer_sync(Synced(fenced))
        former_leader = self.leader
        if self.leader == old.member_id:
            self.leader = member_id
        self.members.rename(old, member_id)
        self.members.set_protocols(old, wish.protocols)
        old.client_id, old.client_host = wish.client_id, wish.client_host
        old.session_timeout_ms = wish.session_timeout_ms
        old.rebalance_timeout_ms = wish.rebalance_timeout_ms
        self._prolong(old, now_ms)
        # Metadata may differ: a restarted member of the sticky strategy owns nothing any more.
        keeps_strategy = self.members.favourite() == self.protocol_name
        if self.state is not GroupState.STABLE or not keeps_strategy:
            self.members.await_join(old, reply)
            self._rebalance(now_ms)
            return

        def stored(error: ErrorCode, _: int) -> None:
            if error is not ErrorCode.NONE:
                reply(Joined(error, member_id))
                return
            # Told the former leader's id, a restarted leader takes its share and assigns nothing.
            reply(
                Joined(
                    ErrorCode.NONE,
                    member_id,
                    self.generation,
                    self.protocol_type,
                    self.protocol_name,
                    former_leader or "",
                )
            )

        self._store(
            self, {each.member_id: each.assignment for each in self.members.values()}, stored
        )

    # --- rebalancing --------------------------------------------------------------------------

    def _rebalance(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE:
            if self.state is GroupState.COMPLETING_REBALANCE:
                again = Synced(ErrorCode.REBALANCE_IN_PROGRESS)
                for member in self.members.values():
                    member.assignment = b""
                    self._answer_sync(member, again, now_ms)
            first = self.state is GroupState.EMPTY
            self._enter(GroupState.PREPARING_REBALANCE)
            self._rebalance_deadline_ms = now_ms + self._rebalance_timeout_ms()
            self._initial_until_ms = now_ms + self._initial_delay_ms if first else None
            self._initial_grew = False
            self._look_by(self._rebalance_look_ms())
        self._complete_if_all_joined(now_ms)

    def _rebalance_look_ms(self) -> int:
        """When a rebalance has waited enough, or the first wait of an empty group is over."""
        first = self._initial_until_ms
        return self._rebalance_deadline_ms if first is None else first

    def _rebalance_timeout_ms(self) -> int:
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0)

    def _complete_if_all_joined(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        if self._initial_until_ms is not None and now_ms < self._initial_until_ms:
            return
        everybody = not self.pending and self.members.all_join
        if everybody or now_ms >= self._rebalance_deadline_ms:
            self._complete(now_ms)

    def _complete(self, now_ms: int) -> None:
        for member in [*self.members.values()]:
            if member.join_reply is None and member.instance_id is None:
                self._drop(member)
        joined = [each for each in self.members.values() if each.join_reply is not None]
        if self.members and not joined:
            # Only static members that have not come back: their sessions decide.
            self._rebalance_deadline_ms = now_ms + max(self._rebalance_timeout_ms(), 1)
            self._look_by(self._rebalance_deadline_ms)
            return
        if joined and all(each.member_id != self.leader for each in joined):
            self.leader = joined[0].member_id
        self._initial_until_ms = None
        self.generation += 1
        if not joined:
            self.protocol_name = None
            self._enter(GroupState.EMPTY)
            self._store(self, {}, lambda *_: None)
            return
        self.protocol_name = self.members.favourite()
        self._enter(GroupState.COMPLETING_REBALANCE)
        for member in joined:
            member.is_new = False
            self._prolong(member, now_ms)
            self.members.answer_join(member, self._joined(member, show_members=True))

    def _joined(self, member: Member, show_members: bool) -> Joined:
        protocol = self.protocol_name or ""
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if show_members and member.member_id == self.leader:
            members = tuple(
                (each.member_id, each.instance_id, each.metadata(protocol))
                for each in self.members.values()
            )
        return Joined(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.leader or "",
            members,
        )

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol: tuple[str | None, str | None],
        assignments: Mapping[str, bytes],
        now_ms: int,
        reply: Callable[[Synced], None],
    ) -> None:
        """Hand out a member's share; the leader's call brings everybody's."""
        error = self._sync_error(member_id, instance_id, generation, protocol)
        if error is not ErrorCode.NONE:
            reply(Synced(error))
            return
        member = self.members[member_id]
        self._prolong(member, now_ms)
        if self.state is GroupState.STABLE:
            reply(self._synced(member))
            return
        member.answer_sync(Synced(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        if member_id != self.leader:
            return
        shares = {each: assignments.get(each, b"") for each in self.members}
        self._store(self, shares, lambda *outcome: self._assigned(generation, shares, *outcome))

    def _sync_error(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol: tuple[str | None, str | None],
    ) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.member_error(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        asked_type, asked_name = protocol
        if (asked_type or self.protocol_type) != self.protocol_type or (
            asked_name or self.protocol_name
        ) != self.protocol_name:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _assigned(
        self, generation: int, shares: Mapping[str, bytes], outcome: ErrorCode, now_ms: int
    ) -> None:
        """The assignment of that generation is durable, or could not be made so."""
        if self.state is not GroupState.COMPLETING_REBALANCE or generation != self.generation:
            return
        if outcome is not ErrorCode.NONE:
            for member in self.members.values():
                self._answer_sync(member, Synced(outcome), now_ms)
            return
        self._enter(GroupState.STABLE)
        for member_id, member in self.members.items():
            member.assignment = shares.get(member_id, b"")
            self._answer_sync(member, self._synced(member), now_ms)

    def _answer_sync(self, member: Member, answer: Synced, now_ms: int) -> None:
        """Answer a member that may have waited for longer than its session."""
        if member.sync_reply is not None:
            self._prolong(member, now_ms)
            member.answer_sync(answer)

    def _synced(self, member: Member) -> Synced:
        return Synced(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)

    # --- staying and leaving ------------------------------------------------------------------

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Prolong a member's session; 27 tells it to join again."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.member_error(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._prolong(self.members[member_id], now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> ErrorCode:
        """Take a member out at its own wish; a static one may be named by its instance only."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if instance_id is not None and not member_id:
            member_id = self.members.statics.get(instance_id, "")
        if instance_id is None and self.pending.pop(member_id, None) is not None:
            self._complete_if_all_joined(now_ms)
            return ErrorCode.NONE
        error = self.member_error(member_id, instance_id)
        if error is ErrorCode.NONE:
            self._remove(self.members[member_id], now_ms)
        return error

    def _drop(self, member: Member) -> None:
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        self.members.answer_join(member, Joined(unknown, member.member_id))
        member.answer_sync(Synced(unknown))
        self.members.drop(member)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _remove(self, member: Member, now_ms: int) -> None:
        self._drop(member)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._rebalance(now_ms)
        else:
            self._complete_if_all_joined(now_ms)

    def expire(self, now_ms: int) -> None:
        """Let go of members whose session is over, and end a rebalance that has waited enough."""
        self.pending = {each: until for each, until in self.pending.items() if now_ms < until}
        for member in [*self.members.values()]:
            if not member.outlives(now_ms) and member.member_id in self.members:
                self._remove(member, now_ms)
        if self._initial_until_ms is not None and now_ms >= self._initial_until_ms:
            # Members that still come in prolong the wait, but not past the rebalance time-out.
            longer = min(now_ms + self._initial_delay_ms, self._rebalance_deadline_ms)
            self._initial_until_ms = longer if self._initial_grew and longer > now_ms else None
            self._initial_grew = False
        self._complete_if_all_joined(now_ms)
        self.next_look_ms = self._next_deadline_ms()

    def _prolong(self, member: Member, now_ms: int) -> None:
        member.deadline_ms = now_ms + member.session_timeout_ms
        self._look_by(member.deadline_ms)

    def _look_by(self, at_ms: int) -> None:
        if self.next_look_ms is None or at_ms < self.next_look_ms:
            self.next_look_ms = at_ms

    def _next_deadline_ms(self) -> int | None:
        deadlines = [*self.pending.values()]
        for member in self.members.values():
            if member.is_new or (member.join_reply is None and member.sync_reply is None):
                deadlines.append(member.deadline_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            deadlines.append(self._rebalance_look_ms())
        return min(deadlines, default=None)

    def subscribed_topics(self) -> frozenset[str]:
        """Topics that members of the consumer protocol read: what their metadata begin with."""
        topics: set[str] = set()
        for member in self.members.values():
            topics.update(_topics(member.metadata(self.protocol_name or "")))
        return frozenset(topics)

    def restore(self, members: list[Member], generation: int, leader: str | None) -> None:
        """Take the members of a group that was read back from the log; once, before any request."""
        self.generation = generation
        self.leader = leader
        for member in members:
            self.members.add(member)
            self._look_by(member.deadline_ms)
        if members:
            self.state = GroupState.STABLE

    def retire(self, error: ErrorCode) -> None:
        """The coordinator moved away or the group was deleted: everybody who waits is told."""
        self._enter(GroupState.DEAD)
        for member in self.members.values():
            self.members.answer_join(member, Joined(error, member.member_id))
            member.answer_sync(Synced(error))

    def _enter(self, following: GroupState) -> None:
        check(self.state, following)
        self.state = following


def _topics(metadata: bytes) -> list[str]:
    """The topics of a consumer's subscription: i16 version, then an array of strings."""
    try:
        (count,) = struct.unpack_from(">i", metadata, 2)
        position, topics = 6, []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            if length < 0:
                # It would lead back: a few bytes could keep the loop busy for minutes.
                return []
            topics.append(metadata[position + 2 : position + 2 + length].decode())
            position += 2 + length
    except (struct.error, UnicodeDecodeError):
        # Not the consumer protocol's layout: nothing is known of its topics.
        return []
    return topics
