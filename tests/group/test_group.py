"""The group state machine on virtual time: members, generations, and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.group.group import LARGEST_GENERATION, MOST_PROTOCOLS, Group
from odradek.group.members import GroupMember, JoinResult, JoinSpec, Protocols, SyncResult
from odradek.group.states import (
    ALLOWED_PREVIOUS,
    GroupState,
    IllegalGroupTransitionError,
    check_transition,
)
from odradek.protocol.errors import ErrorCode

RANGE = (("range", b"topics"),)


@dataclass
class World:
    """A group, a clock, and all answers by the name of the member."""

    delay_ms: int = 0
    store_fails: ErrorCode = ErrorCode.NONE
    holds_stores: bool = False
    now: int = 0
    joined: dict[str, JoinResult] = field(default_factory=dict)
    synced: dict[str, SyncResult] = field(default_factory=dict)
    stored: list[dict[str, bytes]] = field(default_factory=list)
    held: list[Callable[[ErrorCode, int], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        ids = iter(range(1000))
        self.group = Group("g", self.store, self.delay_ms, 4, lambda: str(next(ids)))

    def store(
        self, group: Group, shares: Mapping[str, bytes], done: Callable[[ErrorCode, int], None]
    ) -> None:
        self.stored.append(dict(shares))
        if self.holds_stores:
            self.held.append(done)
        else:
            done(self.store_fails, self.now)

    def join(self, name: str, member_id: str = "", **changes: object) -> None:
        spec = {
            "member_id": member_id,
            "instance_id": None,
            "client_id": name,
            "client_host": "/h",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": RANGE,
            "requires_known_id": False,
            **changes,
        }
        self.joined.pop(name, None)
        self.group.join(
            JoinSpec(**spec),  # type: ignore[arg-type]
            self.now,
            lambda answer: self.joined.__setitem__(name, answer),
        )

    def sync(self, name: str, shares: Mapping[str, bytes] | None = None) -> None:
        answer = self.joined[name]
        self.group.sync(
            answer.member_id,
            None,
            answer.generation,
            (None, None),
            shares or {},
            self.now,
            lambda given: self.synced.__setitem__(name, given),
        )

    def advance(self, by_ms: int) -> None:
        """Advance the clock, and call `expire` at each deadline as the coordinator does."""
        end = self.now + by_ms
        for _ in range(1000):
            deadline = self.group.next_deadline_ms
            if deadline is None or deadline > end:
                self.now = end
                return
            self.now = max(deadline, self.now)
            self.group.expire(self.now)
        raise AssertionError("the group never comes to rest")

    def stable(self, *names: str) -> None:
        """Let these members form a stable group."""
        for name in names:
            self.join(name)
        self.rejoin_all()
        leader = self.group.leader
        for name in names:
            shares = {each: each.encode() for each in self.group.members}
            self.sync(name, shares if self.joined[name].member_id == leader else None)
        assert self.group.state is GroupState.STABLE

    def rejoin_all(self) -> None:
        for member_id, member in [*self.group.members.items()]:
            if member.join_reply is None and self.group.state is GroupState.PREPARING_REBALANCE:
                self.join(member.client_id, member_id)

    def id_of(self, name: str) -> str:
        return self.joined[name].member_id

    def beat(self, name: str) -> ErrorCode:
        answer = self.joined[name]
        return self.group.heartbeat(answer.member_id, None, answer.generation, self.now)

    def commit(self, name: str) -> ErrorCode:
        answer = self.joined[name]
        return self.group.commit(answer.member_id, None, answer.generation, self.now)


def test_lone_member_leads_and_gets_its_own_assignment() -> None:
    world = World()
    world.join("a")
    assert world.joined["a"].generation == 1
    assert world.joined["a"].leader == world.id_of("a")
    assert [each[0] for each in world.joined["a"].members] == [world.id_of("a")]
    world.sync("a", {world.id_of("a"): b"all"})
    assert world.synced["a"] == SyncResult(ErrorCode.NONE, "consumer", "range", b"all")
    assert world.stored == [{world.id_of("a"): b"all"}]


def test_only_the_leader_sees_the_members() -> None:
    world = World(delay_ms=3000)
    world.join("a")
    world.join("b")
    assert not world.joined
    world.advance(6000)
    leader, follower = world.joined["a"], world.joined["b"]
    assert {each[0] for each in leader.members} == {leader.member_id, follower.member_id}
    assert follower.members == ()
    assert follower.generation == leader.generation == 1


def test_new_members_extend_the_initial_delay_up_to_the_rebalance_timeout() -> None:
    world = World(delay_ms=3000)
    world.join("a", rebalance_timeout_ms=7000)
    world.advance(2000)
    world.join("b", rebalance_timeout_ms=7000)
    world.advance(2000)
    assert not world.joined
    world.join("c", rebalance_timeout_ms=7000)
    world.advance(2000)
    assert not world.joined
    world.advance(1000)
    assert {*world.joined} == {"a", "b", "c"}


def test_new_member_makes_the_others_rejoin() -> None:
    world = World()
    world.stable("a")
    world.join("b")
    assert "b" not in world.joined
    assert world.beat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    world.join("a", world.id_of("a") if "a" in world.joined else "")
    assert world.joined["a"].generation == world.joined["b"].generation == 2


def test_member_that_does_not_rejoin_in_time_is_removed() -> None:
    world = World()
    world.stable("a")
    gone = world.id_of("a")
    world.join("b", rebalance_timeout_ms=5000)
    for _ in range(13):
        world.group.heartbeat(gone, None, 1, world.now)
        world.advance(5000)
    assert world.joined["b"].leader == world.id_of("b")
    assert world.group.heartbeat(gone, None, 1, world.now) is ErrorCode.UNKNOWN_MEMBER_ID


def test_expired_session_causes_a_rebalance() -> None:
    world = World()
    world.stable("a", "b")
    for _ in range(4):
        world.advance(3000)
        last = world.beat("a")
    assert last is ErrorCode.REBALANCE_IN_PROGRESS
    assert len(world.group.members) == 1


def test_session_does_not_expire_while_waiting_for_the_assignment() -> None:
    world = World(delay_ms=10)
    world.join("a", session_timeout_ms=60_000)
    world.join("b", session_timeout_ms=6000)
    world.advance(20)
    world.sync("b")
    world.advance(20_000)
    assert len(world.group.members) == 2
    world.sync("a", {world.id_of("b"): b"share"})
    assert world.synced["b"].assignment == b"share"
    world.advance(5999)
    assert len(world.group.members) == 2
    world.advance(1)
    assert len(world.group.members) == 1


def test_commit_of_a_member_that_has_no_assignment_yet_does_not_extend_its_session() -> None:
    world = World()
    world.join("a", session_timeout_ms=6000)
    assert world.group.state is GroupState.COMPLETING_REBALANCE
    world.advance(5999)
    assert world.commit("a") is ErrorCode.REBALANCE_IN_PROGRESS
    world.advance(1)
    assert world.commit("a") is ErrorCode.UNKNOWN_MEMBER_ID


def test_commit_of_a_member_extends_its_session() -> None:
    world = World()
    world.join("a", session_timeout_ms=6000)
    world.sync("a", {})
    world.advance(5999)
    assert world.commit("a") is ErrorCode.NONE
    world.advance(5999)
    assert world.commit("a") is ErrorCode.NONE
    world.advance(6000)
    assert world.commit("a") is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_that_must_join_again_may_still_commit_in_its_generation() -> None:
    world = World()
    world.stable("a")
    world.join("b")
    assert world.beat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.commit("a") is ErrorCode.NONE
    member_id = world.id_of("a")
    assert world.group.commit(member_id, None, 7, world.now) is ErrorCode.ILLEGAL_GENERATION


def test_sync_of_an_interrupted_rebalance_must_rejoin() -> None:
    world = World(delay_ms=10)
    world.join("a", session_timeout_ms=60_000)
    world.join("b", session_timeout_ms=6000)
    world.advance(20)
    world.sync("b")
    world.advance(20_000)
    world.join("c")
    assert world.synced["b"].error is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.group.state is GroupState.PREPARING_REBALANCE
    world.advance(5999)
    assert len(world.group.members) == 3


def test_leader_that_never_assigns_is_removed_though_it_sends_heartbeats() -> None:
    world = World(delay_ms=10)
    world.join("a")
    world.join("b")
    world.advance(20)
    world.sync("b")
    for _ in range(59):
        world.advance(1000)
        assert world.beat("a") is ErrorCode.NONE
    assert not world.synced
    world.advance(1000)
    assert world.beat("a") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.synced["b"].error is ErrorCode.REBALANCE_IN_PROGRESS
    world.rejoin_all()
    assert world.group.leader == world.id_of("b")
    world.sync("b", {world.id_of("b"): b"all"})
    assert world.synced["b"].assignment == b"all"


def test_member_that_never_asks_for_its_assignment_is_removed_from_a_stable_group() -> None:
    world = World(delay_ms=10)
    world.join("a", rebalance_timeout_ms=5000)
    world.join("b", rebalance_timeout_ms=5000)
    world.advance(20)
    world.sync("a", {})
    assert world.group.state is GroupState.STABLE
    world.advance(4999)
    assert len(world.group.members) == 2
    world.advance(1)
    assert [*world.group.members] == [world.id_of("a")]
    assert world.beat("a") is ErrorCode.REBALANCE_IN_PROGRESS


def test_static_member_that_is_away_need_not_ask_for_an_assignment() -> None:
    world = World()
    for name in ("a", "b"):
        world.join(name, instance_id=name, session_timeout_ms=600_000, rebalance_timeout_ms=5000)
    world.advance(5000)
    assert world.joined["b"].generation == 2
    assert "a" in world.group.members.static_members
    world.sync("b", {})
    world.advance(100_000)
    assert len(world.group.members) == 2
    assert world.group.state is GroupState.STABLE


def test_assignment_counts_only_once_it_is_durable() -> None:
    world = World(holds_stores=True)
    world.join("a")
    world.sync("a", {world.id_of("a"): b"x"})
    assert not world.synced
    world.held.pop()(ErrorCode.NONE, world.now)
    assert world.synced["a"].assignment == b"x"


def test_failed_store_of_an_assignment_is_an_error_for_every_member() -> None:
    world = World(delay_ms=10, store_fails=ErrorCode.NOT_COORDINATOR)
    world.join("a")
    world.join("b")
    world.advance(20)
    world.sync("b")
    world.sync("a", {})
    assert world.synced["a"].error is world.synced["b"].error is ErrorCode.NOT_COORDINATOR
    assert world.group.state is GroupState.COMPLETING_REBALANCE


def test_late_store_of_an_old_generation_changes_nothing() -> None:
    world = World(holds_stores=True)
    world.join("a")
    world.sync("a", {})
    world.join("b")
    world.held[0](ErrorCode.NONE, world.now)
    assert world.group.state is GroupState.PREPARING_REBALANCE


def test_last_member_leaving_empties_the_group_durably() -> None:
    world = World()
    world.stable("a")
    assert world.group.leave(world.id_of("a"), None, world.now) is ErrorCode.NONE
    assert world.group.state is GroupState.EMPTY
    assert world.group.generation == 2
    assert world.stored[-1] == {}


def test_new_member_first_gets_an_id_if_its_client_supports_it() -> None:
    world = World()
    world.join("a", requires_known_id=True)
    answer = world.joined["a"]
    assert answer.error is ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("a-")
    world.join("a", answer.member_id, requires_known_id=True)
    assert world.joined["a"].error is ErrorCode.NONE
    world.join("b", requires_known_id=True)
    world.advance(10_000)
    world.join("b", world.id_of("b"))
    assert world.joined["b"].error is ErrorCode.UNKNOWN_MEMBER_ID


def test_ids_that_nobody_joins_with_expire_together() -> None:
    """Each expiry looks at all of them, and there may be very many."""
    world = World()
    for number in range(900):
        world.advance(1)
        world.join(str(number), requires_known_id=True)
    expiries = 0
    while (deadline := world.group.next_deadline_ms) is not None:
        world.group.expire(deadline)
        expiries += 1
    assert not world.group.pending
    assert expiries == 1


def test_restarted_static_member_keeps_its_assignment_without_a_rebalance() -> None:
    world = World()
    world.join("a", instance_id="i")
    old = world.id_of("a")
    world.group.sync(old, "i", 1, (None, None), {old: b"share"}, 0, lambda _: None)
    world.join("a", instance_id="i")
    answer = world.joined["a"]
    assert answer.error is ErrorCode.NONE
    assert answer.generation == 1
    assert answer.leader == old
    assert world.group.state is GroupState.STABLE
    assert world.group.heartbeat(old, "i", 1, 0) is ErrorCode.FENCED_INSTANCE_ID
    given: list[SyncResult] = []
    world.group.sync(answer.member_id, "i", 1, (None, None), {}, 0, given.append)
    assert given[0].assignment == b"share"


def _stable_static_pair(protocols: Protocols) -> World:
    """Return a stable group of leader "a" and "b", each with its own name as its assignment."""
    world = World(delay_ms=10)
    world.join("a", instance_id="a", protocols=protocols)
    world.join("b", instance_id="b", protocols=protocols)
    world.advance(20)
    shares = {world.id_of(name): name.encode() for name in "ab"}
    for name in "ba":
        answer = world.joined[name]
        world.group.sync(
            *(answer.member_id, name, answer.generation, (None, None)),
            *(shares if name == "a" else {}, world.now, lambda _: None),
        )
    assert world.group.state is GroupState.STABLE
    return world


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize(
    "restarted",
    [
        (("sticky", b"owns nothing"), ("range", b"")),
        (("sticky", b"owns both"),),
        (("sticky", b"owns both"), ("new", b""), ("range", b"")),
    ],
)
def test_restarted_static_member_may_change_its_metadata_if_the_strategy_stays(
    name: str, restarted: Protocols
) -> None:
    world = _stable_static_pair((("sticky", b"owns both"), ("range", b"")))
    former_leader, generation = world.group.leader, world.group.generation
    world.join(name, instance_id=name, protocols=restarted)
    answer = world.joined[name]
    assert answer.error is ErrorCode.NONE
    assert (answer.generation, answer.protocol_name) == (generation, "sticky")
    assert (answer.leader, answer.members) == (former_leader, ())
    assert world.group.state is GroupState.STABLE
    assert world.stored[-1] == {world.id_of(each): each.encode() for each in "ab"}
    member = world.group.members[answer.member_id]
    assert member.protocols == restarted


def test_restarted_static_member_that_changes_the_strategy_starts_a_rebalance() -> None:
    world = _stable_static_pair((("sticky", b""), ("range", b"")))
    world.join("b", instance_id="b", protocols=(("range", b""),))
    assert "b" not in world.joined
    assert world.group.state is GroupState.PREPARING_REBALANCE


def test_static_member_may_be_removed_by_its_instance_id() -> None:
    world = World()
    world.join("a", instance_id="i")
    assert world.group.leave("", "i", 0) is ErrorCode.NONE
    assert world.group.leave("", "i", 0) is ErrorCode.UNKNOWN_MEMBER_ID
    assert not world.group.members


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (
            {"protocols": (("range", b""),) * (MOST_PROTOCOLS + 1)},
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ),
        ({"protocols": (("sticky", b""),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody", "instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_invalid_join_is_refused(changes: dict[str, Any], error: ErrorCode) -> None:
    world = World()
    world.stable("a")
    world.join("b", **changes)
    assert world.joined["b"].error is error
    assert world.group.state is GroupState.STABLE


def test_group_accepts_no_more_members_than_its_maximum_size() -> None:
    world = World()
    world.stable(*"abcd")
    world.join("e")
    assert world.joined["e"].error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.group.state is GroupState.STABLE
    world.join("b", world.id_of("b"))
    assert world.joined["b"].error is ErrorCode.NONE


def test_rebalance_accepts_the_first_members_and_rejects_the_last() -> None:
    world = World()
    world.stable("a")
    for name in "bcde":
        world.join(name)
    world.join("f")
    assert world.joined["f"].error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.group.generation == 1
    world.join("a", world.id_of("a"))
    assert world.joined["a"] == JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert {world.joined[name].generation for name in "bcde"} == {2}
    assert len(world.group.members) == 4


def test_pending_member_ids_do_not_count_as_members() -> None:
    world = World(delay_ms=10)
    for name in "abcdef":
        world.join(name, requires_known_id=True)
        assert world.joined[name].error is ErrorCode.MEMBER_ID_REQUIRED
    ids = {name: world.id_of(name) for name in "abcdef"}
    for name in "abcd":
        world.join(name, ids[name], requires_known_id=True)
    world.join("a again", ids["a"], requires_known_id=True)
    for name in "ef":
        world.join(name, ids[name], requires_known_id=True)
        assert world.joined[name].error is ErrorCode.GROUP_MAX_SIZE_REACHED
    world.advance(20)
    assert {world.joined[name].generation for name in ("a again", *"bcd")} == {1}


def test_strategy_has_most_votes_of_those_that_all_members_support() -> None:
    world = World(delay_ms=10)
    world.join("a", protocols=(("sticky", b""), ("range", b"")))
    world.join("b", protocols=(("range", b""), ("sticky", b"")))
    world.join("c", protocols=(("other", b""), ("range", b""), ("sticky", b"")))
    world.advance(20)
    assert world.joined["a"].protocol_name == "range"


def test_wrong_generation_is_refused() -> None:
    world = World()
    world.stable("a")
    assert world.group.heartbeat(world.id_of("a"), None, 7, 0) is ErrorCode.ILLEGAL_GENERATION
    given: list[SyncResult] = []
    world.group.sync(world.id_of("a"), None, 0, (None, None), {}, 0, given.append)
    assert given[0].error is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize(
    ("protocol", "error"),
    [
        ((None, None), ErrorCode.NONE),
        (("consumer", "range"), ErrorCode.NONE),
        (("connect", "range"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (("", "range"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (("consumer", "sticky"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (("consumer", ""), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_who_asks_for_a_share_names_the_protocol_of_the_group_or_none(
    protocol: tuple[str | None, str | None], error: ErrorCode
) -> None:
    world = World()
    world.join("a")
    joined = world.joined["a"]
    given: list[SyncResult] = []
    world.group.sync(joined.member_id, None, joined.generation, protocol, {}, 0, given.append)
    assert [each.error for each in given] == [error]


def test_retired_group_answers_every_waiting_member() -> None:
    world = World(delay_ms=10)
    world.join("a")
    world.group.retire(ErrorCode.NOT_COORDINATOR)
    assert world.joined["a"].error is ErrorCode.NOT_COORDINATOR
    world.join("b")
    assert world.joined["b"].error is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("following", GroupState)
@pytest.mark.parametrize("previous", GroupState)
def test_only_listed_transitions_are_legal(previous: GroupState, following: GroupState) -> None:
    if previous in ALLOWED_PREVIOUS[following]:
        check_transition(previous, following)
    else:
        with pytest.raises(IllegalGroupTransitionError):
            check_transition(previous, following)


STEP = st.tuples(
    st.sampled_from(["join", "rejoin", "sync", "beat", "leave", "wait"]),
    st.sampled_from("abcd"),
    st.integers(0, 20_000),
)


@given(st.lists(STEP, max_size=60))
def test_group_always_becomes_stable_and_generations_only_rise(
    steps: list[tuple[str, str, int]],
) -> None:
    world = World(delay_ms=500)
    for action, name, number in steps:
        before = world.group.generation
        known = name in world.joined and world.joined[name].error is ErrorCode.NONE
        protocols = RANGE if number % 2 else (("sticky", b""), *RANGE)
        if action == "join" and name not in world.joined:
            world.join(name, protocols=protocols)
        elif action == "rejoin" and known:
            world.join(name, world.id_of(name), protocols=protocols)
        elif action == "sync" and known:
            world.sync(name, {world.id_of(name): b"x"})
        elif action == "beat" and known:
            world.beat(name)
        elif action == "leave" and known:
            world.group.leave(world.id_of(name), None, world.now)
            world.joined.pop(name, None)
        else:
            world.advance(number)
        assert world.group.generation >= before
        assert (world.group.leader is None) == (not world.group.members)
        members = world.group.members.values()
        assert all(each.is_alive(world.now) for each in members)
        assert world.group.members.all_joined == all(each.join_reply for each in members)
        assert world.group.members.all_support("sticky") == all(
            "sticky" in dict(each.protocols) for each in members
        )
    # Left alone, sessions end one by one and nobody stays.
    world.advance(2_000_000)
    assert not world.group.members
    assert world.group.state is GroupState.EMPTY


@pytest.mark.parametrize("name", ["x" * 32_767, "\u00e4" * 16_383])
@pytest.mark.parametrize("known_as", ["client_id", "instance_id"])
def test_id_of_a_member_with_the_longest_name_fits_into_a_string(name: str, known_as: str) -> None:
    world = World()
    world.join("one", **{known_as: name})
    member_id = world.joined["one"].member_id
    assert member_id.startswith(name[:1000])
    assert len(member_id.encode()) < 32_767


def test_generation_behind_the_largest_is_one_that_an_answer_can_hold() -> None:
    world = World()
    world.group.restore([], LARGEST_GENERATION, None)
    world.join("a")
    assert world.joined["a"].generation == world.group.generation == 0


def stored(member_id: str, instance_id: str | None = None) -> GroupMember:
    return GroupMember(
        member_id, instance_id, "c", "/h", 10_000, 10_000, "consumer", RANGE, deadline_ms=10_000
    )


def test_members_that_the_log_lists_twice_are_there_once() -> None:
    world = World()
    world.group.protocol_type, world.group.protocol_name = "consumer", "range"
    members = [stored("a"), stored("a"), stored("b", "i"), stored("c", "i")]
    world.group.restore(members, 7, "a")
    assert list(world.group.members) == ["a", "b"]
    world.advance(20_000)
    assert not world.group.members
    assert world.group.state is GroupState.EMPTY
