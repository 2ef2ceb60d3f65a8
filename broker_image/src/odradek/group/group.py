"""One group's membership as a pure state machine: requests and times in, answers out.

There is no I/O here. Times are arguments (milliseconds of the monotonic clock), answers go to the
reply functions of the requests, and `store` makes the group durable and calls back. A rebalance:
`join` collects members until all have joined or the deadline passes (`expire`). Then a new
generation starts. The leader's `sync` brings the assignments; they are stored, and every waiting
`sync` is answered. Members that do not send theirs within another rebalance timeout are removed: a
leader that only sends heartbeats would hold up the others forever (KAFKA-12890).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import uuid4

from odradek.group.members import GroupMember, JoinResult, JoinSpec, Members, SyncResult
from odradek.group.states import GroupState, check_transition
from odradek.protocol import consumer_protocol
from odradek.protocol.errors import ErrorCode

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""The session timeout of a new member while it waits for its first rebalance."""

PENDING_STEP_MS = 1000
"""Ids that nobody has joined with yet expire together, once per second at most: each time all ids
and members are looked at, and anybody may ask for any number of ids, each at another moment.
"""

LARGEST_GENERATION = 2**31 - 1

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups whose members read topics: of their metadata the topics are known."""

# A member id has to fit into a string of the protocol (int16), with what is made unique behind it.
LONGEST_NAME_BYTES = 32_000
# Clients offer a few. Each is kept, and counted in every rebalance.
MOST_PROTOCOLS = 1000

StoreGroup = Callable[["Group", Mapping[str, bytes], Callable[[ErrorCode, int], None]], None]
"""Make the group durable with these assignments, then call back with outcome and time."""


class Group:
    """A group's members, generation and state. The shard has its offsets."""

    def __init__(
        self,
        group_id: str,
        store: StoreGroup,
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
        """Ids of members that have not joined with them yet, and when each id expires."""
        self.next_deadline_ms: int | None = None
        """When `expire` must be called next; None: never, unless a request comes."""
        self._store = store
        self._initial_delay_ms = initial_delay_ms
        self._max_size = max_size
        self._new_id = new_id
        self._rebalance_deadline_ms = 0
        # Of the members of the last generation, which may be nobody; None before the first one.
        self._subscriptions: tuple[bytes, ...] | None = None
        self._sync_deadline_ms: int | None = None
        self._initial_until_ms: int | None = None
        self._initial_grew = False

    # --- joining ------------------------------------------------------------------------------

    def join(self, spec: JoinSpec, now_ms: int, reply: Callable[[JoinResult], None]) -> None:
        """Add a member, or let a present one join the next generation."""
        error = self._join_error(spec)
        if not self._accepts(spec):
            self._reject(spec.member_id, now_ms)
            reply(JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
        elif error is not ErrorCode.NONE:
            reply(JoinResult(error, spec.member_id))
        elif not spec.member_id:
            self._join_unknown(spec, now_ms, reply)
        elif spec.member_id in self.pending:
            self._add(spec, spec.member_id, now_ms, reply)
        else:
            self._rejoin(self.members[spec.member_id], spec, now_ms, reply)

    def _join_error(self, spec: JoinSpec) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self._supports(spec):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not spec.member_id or (spec.member_id in self.pending and spec.instance_id is None):
            return ErrorCode.NONE
        return self.member_error(spec.member_id, spec.instance_id)

    def _accepts(self, spec: JoinSpec) -> bool:
        """Return whether the group has room for the member.

        In a rebalance the first to join have room, whether they were members before or not.
        """
        if self.state in (GroupState.EMPTY, GroupState.DEAD):
            return True
        static_id = self.members.static_members.get(spec.instance_id or "", "")
        member = self.members.get(spec.member_id or static_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            waits = member is not None and member.join_reply is not None
            return waits or self.members.joining < self._max_size
        return member is not None or len(self.members) < self._max_size

    def _reject(self, member_id: str, now_ms: int) -> None:
        """Remove a member for which the group has no room."""
        self.pending.pop(member_id, None)
        if member_id in self.members:
            self._drop(self.members[member_id])
        self._complete_if_all_joined(now_ms)

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if its instance has a new member."""
        if instance_id is not None:
            if instance_id not in self.members.static_members:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if self.members.static_members[instance_id] != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def transaction_error(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Return why a producer may not commit for a member (KIP-447): FENCED_INSTANCE_ID,
        UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION. No member id and no generation need none.
        """
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self.members.static_members.get(instance_id or "", member_id) != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if member_id and member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation >= 0 and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    def _supports(self, spec: JoinSpec) -> bool:
        if not spec.protocol_type or not 0 < len(spec.protocols) <= MOST_PROTOCOLS:
            return False
        if not self.members:
            return True
        return spec.protocol_type == self.protocol_type and any(
            self.members.all_support(name) for name, _ in spec.protocols
        )

    def _join_unknown(
        self, spec: JoinSpec, now_ms: int, reply: Callable[[JoinResult], None]
    ) -> None:
        name = (spec.instance_id or spec.client_id).encode()[:LONGEST_NAME_BYTES]
        member_id = f"{name.decode(errors='ignore')}-{self._new_id()}"
        if spec.instance_id is not None and spec.instance_id in self.members.static_members:
            self._replace_static(spec, member_id, now_ms, reply)
        elif spec.requires_known_id and spec.instance_id is None:
            until_ms = now_ms + spec.session_timeout_ms
            self.pending[member_id] = until_ms + -until_ms % PENDING_STEP_MS
            self._note_deadline(self.pending[member_id])
            reply(JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(spec, member_id, now_ms, reply)

    def _add(
        self, spec: JoinSpec, member_id: str, now_ms: int, reply: Callable[[JoinResult], None]
    ) -> None:
        self.pending.pop(member_id, None)
        if not self.members:
            self.protocol_type = spec.protocol_type
        member = GroupMember(
            member_id,
            spec.instance_id,
            spec.client_id,
            spec.client_host,
            spec.session_timeout_ms,
            spec.rebalance_timeout_ms,
            spec.protocol_type,
            spec.protocols,
            deadline_ms=now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS,
            is_new=True,
        )
        self.members.add(member)
        self.members.await_join(member, reply)
        self._note_deadline(member.deadline_ms)
        if self.leader is None:
            self.leader = member_id
        self._initial_grew = True
        self._rebalance(now_ms)

    def _rejoin(
        self, member: GroupMember, spec: JoinSpec, now_ms: int, reply: Callable[[JoinResult], None]
    ) -> None:
        unchanged = member.protocols == spec.protocols
        leads = member.member_id == self.leader
        settled = self.state is GroupState.COMPLETING_REBALANCE or (
            self.state is GroupState.STABLE and not leads
        )
        if unchanged and settled:
            # The answer of the last rebalance was lost, or nothing has changed.
            self._extend_session(member, now_ms)
            show_members = self.state is GroupState.COMPLETING_REBALANCE
            reply(self._joined(member, show_members))
            return
        self.members.set_protocols(member, spec.protocols)
        member.session_timeout_ms = spec.session_timeout_ms
        member.rebalance_timeout_ms = spec.rebalance_timeout_ms
        again = JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        self.members.answer_join(member, again)
        self.members.await_join(member, reply)
        self._rebalance(now_ms)

    def _replace_static(
        self, spec: JoinSpec, member_id: str, now_ms: int, reply: Callable[[JoinResult], None]
    ) -> None:
        """Replace the id of a static member that restarted (KIP-345)."""
        assert spec.instance_id is not None
        old = self.members[self.members.static_members[spec.instance_id]]
        fenced = ErrorCode.FENCED_INSTANCE_ID
        self.members.answer_join(old, JoinResult(fenced, old.member_id))
        old.answer_sync(SyncResult(fenced))
        former_leader = self.leader
        if self.leader == old.member_id:
            self.leader = member_id
        self.members.rename(old, member_id)
        self.members.set_protocols(old, spec.protocols)
        old.client_id, old.client_host = spec.client_id, spec.client_host
        old.session_timeout_ms = spec.session_timeout_ms
        old.rebalance_timeout_ms = spec.rebalance_timeout_ms
        self._extend_session(old, now_ms)
        # The metadata may differ: a restarted member of the sticky strategy owns nothing.
        keeps_strategy = self.members.select_protocol() == self.protocol_name
        if self.state is not GroupState.STABLE or not keeps_strategy:
            self.members.await_join(old, reply)
            self._rebalance(now_ms)
            return

        def stored(error: ErrorCode, _: int) -> None:
            if error is not ErrorCode.NONE:
                reply(JoinResult(error, member_id))
                return
            # With the former leader's id, a restarted leader keeps its assignment and assigns none.
            reply(
                JoinResult(
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
                again = SyncResult(ErrorCode.REBALANCE_IN_PROGRESS)
                for member in self.members.values():
                    member.assignment = b""
                    self._answer_sync(member, again, now_ms)
            first = self.state is GroupState.EMPTY
            self._enter(GroupState.PREPARING_REBALANCE)
            self._sync_deadline_ms = None
            self._rebalance_deadline_ms = now_ms + self._rebalance_timeout_ms()
            self._initial_until_ms = now_ms + self._initial_delay_ms if first else None
            self._initial_grew = False
            self._note_deadline(self._join_phase_deadline_ms())
        self._complete_if_all_joined(now_ms)

    def _join_phase_deadline_ms(self) -> int:
        """Return when a rebalance stops waiting, or when the initial delay is over."""
        first = self._initial_until_ms
        return self._rebalance_deadline_ms if first is None else first

    def _rebalance_timeout_ms(self) -> int:
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0)

    def _complete_if_all_joined(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        if self._initial_until_ms is not None and now_ms < self._initial_until_ms:
            return
        everybody = not self.pending and self.members.all_joined
        if everybody or now_ms >= self._rebalance_deadline_ms:
            self._complete(now_ms)

    def _complete(self, now_ms: int) -> None:
        for member in [*self.members.values()]:
            if member.join_reply is None and member.instance_id is None:
                self._drop(member)
        joined = [each for each in self.members.values() if each.join_reply is not None]
        if self.members and not joined:
            # Only static members that have not joined again: wait until their sessions expire.
            self._rebalance_deadline_ms = now_ms + max(self._rebalance_timeout_ms(), 1)
            self._note_deadline(self._rebalance_deadline_ms)
            return
        if joined and all(each.member_id != self.leader for each in joined):
            self.leader = joined[0].member_id
        self._initial_until_ms = None
        # The largest may be in the log, if not by a coordinator.
        self.generation = (self.generation + 1) & LARGEST_GENERATION
        if not joined:
            self.protocol_name = None
            self._note_subscriptions()
            self._enter(GroupState.EMPTY)
            self._store(self, {}, lambda *_: None)
            return
        self.protocol_name = self.members.select_protocol()
        self._note_subscriptions()
        self._enter(GroupState.COMPLETING_REBALANCE)
        self._sync_deadline_ms = now_ms + self._rebalance_timeout_ms()
        self._note_deadline(self._sync_deadline_ms)
        for member in self.members.values():
            member.owes_sync = member.join_reply is not None
        for member in joined:
            member.is_new = False
            self._extend_session(member, now_ms)
            self.members.answer_join(member, self._joined(member, show_members=True))

    def _joined(self, member: GroupMember, show_members: bool) -> JoinResult:
        protocol = self.protocol_name or ""
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if show_members and member.member_id == self.leader:
            members = tuple(
                (each.member_id, each.instance_id, each.metadata(protocol))
                for each in self.members.values()
            )
        return JoinResult(
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
        reply: Callable[[SyncResult], None],
    ) -> None:
        """Answer with a member's assignment; the leader's call brings all assignments."""
        error = self._sync_error(member_id, instance_id, generation, protocol)
        if error is not ErrorCode.NONE:
            reply(SyncResult(error))
            return
        member = self.members[member_id]
        member.owes_sync = False
        self._extend_session(member, now_ms)
        if self.state is GroupState.STABLE:
            reply(self._synced(member))
            return
        member.answer_sync(SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        if member_id != self.leader:
            return
        complete = {each: assignments.get(each, b"") for each in self.members}
        self._store(self, complete, lambda *outcome: self._assigned(generation, complete, *outcome))

    def _sync_error(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol: tuple[str | None, str | None],
    ) -> ErrorCode:
        error = self._generation_error(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        agreed = self.protocol_type, self.protocol_name
        if any(
            said is not None and said != known for said, known in zip(protocol, agreed, strict=True)
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _assigned(
        self, generation: int, assignments: Mapping[str, bytes], outcome: ErrorCode, now_ms: int
    ) -> None:
        """Answer waiting syncs: the generation's assignments are durable, or failed to be."""
        if self.state is not GroupState.COMPLETING_REBALANCE or generation != self.generation:
            return
        if outcome is not ErrorCode.NONE:
            for member in self.members.values():
                self._answer_sync(member, SyncResult(outcome), now_ms)
            return
        self._enter(GroupState.STABLE)
        for member_id, member in self.members.items():
            member.assignment = assignments.get(member_id, b"")
            self._answer_sync(member, self._synced(member), now_ms)

    def _answer_sync(self, member: GroupMember, answer: SyncResult, now_ms: int) -> None:
        """Answer a member that may have waited longer than its session timeout."""
        if member.sync_reply is not None:
            self._extend_session(member, now_ms)
            member.answer_sync(answer)

    def _synced(self, member: GroupMember) -> SyncResult:
        return SyncResult(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)

    # --- staying and leaving ------------------------------------------------------------------

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Extend a member's session; REBALANCE_IN_PROGRESS makes it join again."""
        error = self._generation_error(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        self._extend_session(self.members[member_id], now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Return why a member may not commit offsets now. If it may, extend its session.

        One that must join again may still commit its progress. One that has joined and waits for
        its assignment may not: REBALANCE_IN_PROGRESS, and its session goes on as it is.
        """
        error = self._generation_error(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        if self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._extend_session(self.members[member_id], now_ms)
        return ErrorCode.NONE

    def _generation_error(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Return why this is no member of the present generation."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.member_error(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> ErrorCode:
        """Remove a member that leaves; a static one may be named by its instance id only."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if instance_id is not None and not member_id:
            member_id = self.members.static_members.get(instance_id, "")
        if instance_id is None and self.pending.pop(member_id, None) is not None:
            self._complete_if_all_joined(now_ms)
            return ErrorCode.NONE
        error = self.member_error(member_id, instance_id)
        if error is ErrorCode.NONE:
            self._remove(self.members[member_id], now_ms)
        return error

    def _drop(self, member: GroupMember) -> None:
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        self.members.answer_join(member, JoinResult(unknown, member.member_id))
        member.answer_sync(SyncResult(unknown))
        self.members.remove(member)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _remove(self, member: GroupMember, now_ms: int) -> None:
        self._drop(member)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._rebalance(now_ms)
        else:
            self._complete_if_all_joined(now_ms)

    def _remove_unsynced(self, now_ms: int) -> None:
        """Let the others rebalance without the members that never asked for their assignment."""
        self._sync_deadline_ms = None
        late = [each for each in self.members.values() if each.owes_sync]
        for member in late:
            self._drop(member)
        if late:
            self._rebalance(now_ms)

    def expire(self, now_ms: int) -> None:
        """Remove members whose session has expired, and end a rebalance at its deadlines."""
        self.pending = {each: until for each, until in self.pending.items() if now_ms < until}
        for member in [*self.members.values()]:
            if not member.is_alive(now_ms) and member.member_id in self.members:
                self._remove(member, now_ms)
        if self._sync_deadline_ms is not None and now_ms >= self._sync_deadline_ms:
            self._remove_unsynced(now_ms)
        if self._initial_until_ms is not None and now_ms >= self._initial_until_ms:
            # New members extend the initial delay, but not beyond the rebalance timeout.
            longer = min(now_ms + self._initial_delay_ms, self._rebalance_deadline_ms)
            self._initial_until_ms = longer if self._initial_grew and longer > now_ms else None
            self._initial_grew = False
        self._complete_if_all_joined(now_ms)
        self.next_deadline_ms = self._earliest_deadline_ms()

    def _extend_session(self, member: GroupMember, now_ms: int) -> None:
        member.deadline_ms = now_ms + member.session_timeout_ms
        self._note_deadline(member.deadline_ms)

    def _note_deadline(self, at_ms: int) -> None:
        if self.next_deadline_ms is None or at_ms < self.next_deadline_ms:
            self.next_deadline_ms = at_ms

    def _earliest_deadline_ms(self) -> int | None:
        deadlines = [*self.pending.values()]
        for member in self.members.values():
            if member.is_new or (member.join_reply is None and member.sync_reply is None):
                deadlines.append(member.deadline_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            deadlines.append(self._join_phase_deadline_ms())
        elif self._sync_deadline_ms is not None:
            deadlines.append(self._sync_deadline_ms)
        return min(deadlines, default=None)

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that the members of the last generation read, by their metadata; none
        for an empty group. Members that join meanwhile, and what they read, come with the next one.

        None if nobody can tell: before the first generation, and where the group, or the metadata
        of a member, is not of the consumer protocol.
        """
        if self.state is GroupState.EMPTY:
            return frozenset()
        if self._subscriptions is None:
            return None
        topics: set[str] = set()
        for metadata in self._subscriptions:
            told = consumer_protocol.subscribed(metadata)
            if told is None:
                return None
            topics.update(told)
        return frozenset(topics)

    def _note_subscriptions(self) -> None:
        """Keep what the members of a new generation read, as Kafka's `computeSubscribedTopics`."""
        protocol = self.protocol_name or ""
        self._subscriptions = (
            tuple(member.metadata(protocol) for member in self.members.values())
            if self.protocol_type == CONSUMER_PROTOCOL
            else None
        )

    def restore(self, members: list[GroupMember], generation: int, leader: str | None) -> None:
        """Set the members of a group that was read from the log; once, before any request, and
        after its protocol.
        """
        self.generation = generation
        self.leader = leader
        for member in members:
            is_known = member.member_id in self.members
            if is_known or member.instance_id in self.members.static_members:
                continue  # a coordinator lists each once
            self.members.add(member)
            self._note_deadline(member.deadline_ms)
        self._note_subscriptions()
        if members:
            self.state = GroupState.STABLE

    def retire(self, error: ErrorCode) -> None:
        """Answer all waiting members: the coordinator moved, or the group was deleted."""
        self._enter(GroupState.DEAD)
        for member in self.members.values():
            self.members.answer_join(member, JoinResult(error, member.member_id))
            member.answer_sync(SyncResult(error))

    def _enter(self, following: GroupState) -> None:
        check_transition(self.state, following)
        self.state = following
