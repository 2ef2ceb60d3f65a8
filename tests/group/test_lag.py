"""The rule of lag, which tools, exporter, operator and jobs share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek import lag

OFFSET = st.integers(0, 9)
UNSURE = st.none() | OFFSET


@pytest.mark.parametrize(
    ("committed", "start", "end", "is_former", "expected"),
    [
        (5, 0, 8, False, 3),
        (8, 0, 8, False, 0),
        # Retention has overtaken the group.
        (5, 6, 8, False, 2),
        (5, 8, 8, False, 0),
        # A commit beyond the end says nothing of the records that are there.
        (90, 0, 8, False, 8),
        (90, 3, 8, False, 5),
        (90, None, 0, False, 0),
        # Of a former topic: also where it looks as if all were read.
        (8, 0, 8, True, 8),
        (5, 3, 8, True, 5),
        (5, None, 0, True, 0),
        # Records were deleted after the end was read.
        (5, 9, 8, False, 0),
        (90, 9, 8, False, 0),
        # Without a commit only an empty log has a lag.
        (None, 0, 8, False, None),
        (None, None, 8, False, None),
        (None, None, 0, False, 0),
        (None, 8, 8, False, 0),
        # No leader answers, or only for the end.
        (5, 0, None, False, None),
        (5, None, 8, False, None),
        (8, None, 8, False, 0),
        (8, None, 8, True, None),
        (90, None, 8, False, None),
    ],
)
def test_lag_counts_the_records_that_are_there_and_unread(
    committed: int | None, start: int | None, end: int | None, is_former: bool, expected: int | None
) -> None:
    assert lag.lag(committed, start, end, is_former=is_former) == expected
    first = lag.first_unread(committed, start, end, is_former=is_former)
    if committed is None or expected is None:
        assert first is None
    else:
        assert end is not None
        assert first == end - expected


@given(UNSURE, UNSURE, UNSURE, st.booleans())
def test_lag_is_never_negative_and_the_start_matters_only_where_it_is_asked_for(
    committed: int | None, start: int | None, end: int | None, is_former: bool
) -> None:
    found = lag.lag(committed, start, end, is_former=is_former)
    assert found is None or (end is not None and 0 <= found <= end)
    if not lag.needs_start(committed, end, is_former=is_former):
        assert found == lag.lag(committed, None, end, is_former=is_former)
    elif start is None:
        assert found is None


@pytest.mark.parametrize(("written", "expected"), [(70, True), (77, False), (80, False)])
def test_offset_that_is_older_than_its_topic_is_of_a_former_one(
    written: int, expected: bool
) -> None:
    assert lag.is_of_former_topic(written, 77) is expected
