"""Where a reset moves a group."""

from __future__ import annotations

import time

import pytest

from odradek.tools import offset_plans as plans
from odradek.tools.errors import ToolError
from odradek.values import TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [(["t"], [T0, T1]), (["t:1"], [T1]), (["t:0,1", "u"], [T0, T1, U0]), (["u", "u:0"], [U0])],
)
def test_topics_with_and_without_partitions(
    texts: list[str], expected: list[TopicPartition]
) -> None:
    assert plans.parse_topics(texts, [T0, T1, U0]) == expected


@pytest.mark.parametrize("text", ["gone", "t:2", "t:x", "t:", "t:0;1"])
def test_topic_or_partition_that_is_not_there_is_named(text: str) -> None:
    with pytest.raises(ToolError):
        plans.parse_topics([text], [T0, T1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01.500", 1500),
        ("1970-01-01T01:00:01.500+01:00", 1500),
        ("1970-01-01T00:00:02Z", 2000),
        ("1970-01-02", 86_400_000),
    ],
)
def test_times_are_utc_unless_they_say_otherwise(
    text: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert plans.parse_datetime_ms(text) == expected
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("PT1.5S", 1500), ("P1D", 86_400_000), ("P1DT1H1M1S", 90_061_000), ("P2W", 1_209_600_000)],
)
def test_durations(text: str, expected: int) -> None:
    assert plans.parse_duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "P", "PT", "1D", "P1X", "P-1D", "P1H"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ToolError, match="is not a duration"):
        plans.parse_duration_ms(text)


def test_duration_that_no_clock_counts_is_refused() -> None:
    with pytest.raises(ToolError, match="is longer than all time"):
        plans.parse_duration_ms("P99999999999D")


def test_plan_survives_its_file_with_and_without_groups() -> None:
    plan = {T0: 5, U0: 7}
    assert plans.render_csv(None, plan) == "t,0,5\nu,0,7\n"
    assert plans.parse_csv(plans.render_csv(None, plan), "any") == plan
    both = plans.render_csv("g", plan) + plans.render_csv("h", {T1: 1})
    assert plans.parse_csv(both, "g") == plan
    assert plans.parse_csv(both, "h") == {T1: 1}


@pytest.mark.parametrize(
    "text", ["t,0", "t,x,1", "t,0,-1", "a,b,c,d,e", "t;0;1", f"t,0,{2**63}", f"t,{'9' * 5000},0"]
)
def test_line_that_is_no_offset_is_named(text: str) -> None:
    with pytest.raises(ToolError, match="line 2 is not"):
        plans.parse_csv(f"t,0,1\n{text}\n", "g")


def test_file_of_offsets_has_one_offset_per_partition() -> None:
    with pytest.raises(ToolError, match="line 2: t-0 is there twice"):
        plans.parse_csv("t,0,1\nt,0,2\n", "g")


def test_file_of_offsets_that_is_no_csv_is_refused() -> None:
    with pytest.raises(ToolError, match="it is not CSV"):
        plans.parse_csv("x" * 200_000, "g")


def test_offsets_outside_a_log_are_moved_to_its_nearest_end() -> None:
    bounds = {T0: plans.Bounds(10, 20), T1: plans.Bounds(0, 5), U0: plans.Bounds(3, 3)}
    plan, moved = plans.within({T0: 4, T1: 5, U0: 9}, bounds)
    assert plan == {T0: 10, T1: 5, U0: 3}
    assert moved == ["offset 4 of t-0 is moved to 10", "offset 9 of u-0 is moved to 3"]
    with pytest.raises(ToolError, match=r"log bounds of partition t-1"):
        plans.within({T1: 1}, {T0: plans.Bounds(0, 1)})


def test_shift_needs_an_offset_to_begin_with() -> None:
    assert plans.shifted([T0], {T0: 5, T1: 1}, -2) == {T0: 3}
    with pytest.raises(ToolError, match="t-1 has no committed offset"):
        plans.shifted([T0, T1], {T0: 5}, 1)


def test_copy_leaves_out_what_does_not_exist_and_what_went_on_in_the_target() -> None:
    plan, left = plans.copyable({T0: 5, T1: 5, U0: 5}, {T0: 5, T1: 6}, [T0, T1])
    assert plan == {T0: 5}
    assert left == [
        "t-1 is at 6 already, its offset 5 is left out",
        "u-0 does not exist, its offset 5 is left out",
    ]
