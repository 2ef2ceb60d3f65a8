"""The pure rules of in-sync sets and high watermarks (rows R2, R3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.replica import isr as rules
from odradek.replica.isr import NEVER_MS, FollowerProgress, Isr

LAG_MS = 10_000


def progress(end: int, caught_up: int = 0) -> FollowerProgress:
    return FollowerProgress(end_offset=end, last_caught_up_ms=caught_up)


def test_high_watermark_is_the_least_end_of_the_in_sync_set() -> None:
    followers = {2: progress(7), 3: progress(5)}
    assert rules.high_watermark(0, Isr((1, 2, 3)), 1, followers, 9, 0, LAG_MS) == 5


def test_high_watermark_waits_for_a_removed_replica_until_zookeeper_confirmed() -> None:
    followers = {2: progress(9, NEVER_MS), 3: progress(5, NEVER_MS)}
    shrinking = Isr((1, 2, 3), pending=(1, 2))
    assert rules.high_watermark(5, shrinking, 1, followers, 9, 0, LAG_MS) == 5
    assert rules.high_watermark(5, Isr((1, 2)), 1, followers, 9, 0, LAG_MS) == 9


def test_high_watermark_waits_for_a_joining_replica_before_zookeeper_confirmed() -> None:
    followers = {2: progress(5, NEVER_MS)}
    joining = Isr((1,), pending=(1, 2))
    assert rules.high_watermark(5, joining, 1, followers, 9, 0, LAG_MS) == 5


def test_high_watermark_waits_for_a_follower_that_keeps_up_so_that_it_can_join() -> None:
    followers = {2: progress(5, caught_up=100)}
    assert rules.high_watermark(5, Isr((1,)), 1, followers, 9, 200, LAG_MS) == 5
    assert rules.high_watermark(5, Isr((1,)), 1, followers, 9, 100 + LAG_MS + 1, LAG_MS) == 9


@given(
    st.integers(0, 100),
    st.lists(st.integers(-1, 100), min_size=1, max_size=4),
    st.integers(0, 100),
)
def test_high_watermark_never_falls_and_no_in_sync_replica_is_behind_a_raised_one(
    current: int, ends: list[int], leader_end: int
) -> None:
    followers = {index + 2: progress(end, NEVER_MS) for index, end in enumerate(ends)}
    mark = rules.high_watermark(current, Isr((1, *followers)), 1, followers, leader_end, 0, LAG_MS)
    assert mark >= current
    assert mark == current or all(mark <= one.end_offset for one in followers.values())


def test_follower_at_the_log_end_does_not_lag_however_long_it_was_silent() -> None:
    assert not rules.lagging((1, 2), 1, {2: progress(9, NEVER_MS)}, 9, 10**9, LAG_MS)


@pytest.mark.parametrize(("now", "leaves"), [(LAG_MS, False), (LAG_MS + 1, True)])
def test_follower_behind_leaves_once_the_lag_time_is_over(now: int, leaves: bool) -> None:
    assert bool(rules.lagging((1, 2), 1, {2: progress(8, 0)}, 9, now, LAG_MS)) is leaves


@pytest.mark.parametrize(("limit", "leaves"), [(None, False), (4, False), (3, True)])
def test_follower_leaves_by_messages_only_where_that_limit_is_set(
    limit: int | None, leaves: bool
) -> None:
    slow = rules.lagging((1, 2), 1, {2: progress(5, 0)}, 9, 0, LAG_MS, limit)
    assert bool(slow) is leaves


def test_fetch_at_the_log_end_counts_as_caught_up_now() -> None:
    one = FollowerProgress()
    rules.record_fetch(one, 9, 0, leader_end=9, now_ms=50)
    assert one.last_caught_up_ms == 50


def test_fetch_at_the_former_log_end_counts_as_caught_up_at_the_former_fetch() -> None:
    one = FollowerProgress()
    rules.record_fetch(one, 5, 0, leader_end=9, now_ms=50)
    assert one.last_caught_up_ms == NEVER_MS
    rules.record_fetch(one, 9, 0, leader_end=20, now_ms=80)
    assert one.last_caught_up_ms == 50
    rules.record_fetch(one, 15, 0, leader_end=30, now_ms=90)
    assert one.last_caught_up_ms == 50


@pytest.mark.parametrize(
    ("end", "mark", "epoch_start", "joins"),
    [(9, 9, 0, True), (8, 9, 0, False), (9, 5, 9, True), (8, 5, 9, False)],
)
def test_follower_joins_with_every_committed_record_and_from_the_leaders_own_epoch_on(
    end: int, mark: int, epoch_start: int, joins: bool
) -> None:
    assert rules.may_join(Isr((1,)), 2, (1, 2), end, mark, epoch_start) is joins


def test_nobody_joins_while_a_change_is_under_way() -> None:
    assert not rules.may_join(Isr((1, 3), pending=(1,)), 2, (1, 2, 3), 9, 0, 0)


def test_stranger_does_not_join() -> None:
    assert not rules.may_join(Isr((1,)), 4, (1, 2), 9, 0, 0)
