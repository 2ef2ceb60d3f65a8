from __future__ import annotations

import json
from pathlib import Path

import pytest

from odradek.values import TopicPartition
from odradek_spark import offsets, sources
from odradek_spark.broker_access import BrokerAccess
from odradek_spark.storage import LocalFolder
from tests.support.spark_checkpoint import METADATA, checkpoint


def test_end_offsets_of_a_batch_are_read_from_the_offset_log() -> None:
    text = f'v1\n{METADATA}\n{{"t":{{"0":200,"1":800}},"u":{{"0":3}}}}'
    assert offsets.parse_offset_log(text) == {
        TopicPartition("t", 0): 200,
        TopicPartition("t", 1): 800,
        TopicPartition("u", 0): 3,
    }


def test_topic_in_two_sources_is_done_up_to_the_smaller_end() -> None:
    text = f'v1\n{METADATA}\n{{"t":{{"0":7}}}}\n-\n{{"t":{{"0":5,"1":2}}}}'
    assert offsets.parse_offset_log(text) == {TopicPartition("t", 0): 5, TopicPartition("t", 1): 2}


@pytest.mark.parametrize(
    "text", ["", "v1", f"v2\n{METADATA}\n{{}}", f"v1\n{METADATA}\n[1]", f"v1\n{METADATA}\n{{"]
)
def test_other_offset_log_is_refused(text: str) -> None:
    with pytest.raises(offsets.CheckpointError):
        offsets.parse_offset_log(text)


T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def test_progress_is_the_newest_batch_and_the_one_before_while_it_is_not_done(
    tmp_path: Path,
) -> None:
    assert offsets.progress(LocalFolder(tmp_path)) is None
    folder = checkpoint(tmp_path, [{"0": 5}, {"0": 9, "1": 2}], finished=1)
    known = offsets.progress(LocalFolder(folder))
    assert known == offsets.CheckpointProgress(1, {T0: 9, T1: 2}, pending=True, starts={T0: 5})
    (folder / "commits" / "1").touch()
    assert offsets.progress(LocalFolder(folder)) == offsets.CheckpointProgress(1, {T0: 9, T1: 2})


@pytest.mark.parametrize(
    ("assigned", "committed", "pending", "expected"),
    [
        ({T0, T1}, {T0: 9, T1: 2}, False, True),
        ({T0, T1}, {}, False, True),
        ({T0}, {T0: 9}, False, False),
        ({T0, T1, T2}, {T0: 9, T1: 2}, False, False),
        ({T0, T1}, {T0: 8, T1: 2}, False, False),
        ({T0, T1}, {T0: 12, T1: 2}, True, False),
        ({T0, T1}, {T0: 5, T1: 0}, True, True),
        ({T0, T1}, {T0: 9, T1: 0}, True, True),
        ({T0, T1}, {T0: 7, T1: 0}, True, False),
        ({T0, T1}, {T0: 5, T1: 1}, True, False),
    ],
)
def test_query_goes_on_where_the_group_left_it_alone(
    assigned: set[TopicPartition],
    committed: dict[TopicPartition, int],
    pending: bool,
    expected: bool,
) -> None:
    known = offsets.CheckpointProgress(
        1, {T0: 9, T1: 2}, pending, {T0: 5, T1: 0} if pending else {}
    )
    assert offsets.can_resume(known, assigned, committed, stateful=False) is expected


def test_first_batch_is_repeated_only_from_where_it_began(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, [{"0": 9, "1": 2}], finished=0, start={"0": 4, "1": 0})
    known = offsets.progress(LocalFolder(folder))
    assert known == offsets.CheckpointProgress(
        0, {T0: 9, T1: 2}, pending=True, starts={T0: 4, T1: 0}
    )
    assert offsets.can_resume(known, {T0, T1}, {T0: 4, T1: 0}, stateful=False)
    # Somebody set the group's offset back, or onward.
    for moved in (0, 6):
        assert not offsets.can_resume(known, {T0, T1}, {T0: moved, T1: 0}, stateful=False)


def test_batch_that_is_committed_whole_is_repeated_for_the_state_only() -> None:
    known = offsets.CheckpointProgress(1, {T0: 9, T1: 2}, pending=True, starts={T0: 5, T1: 2})
    assert not offsets.can_resume(known, {T0, T1}, {T0: 9, T1: 2}, stateful=False)
    assert offsets.can_resume(known, {T0, T1}, {T0: 9, T1: 2}, stateful=True)


def test_reading_goes_on_at_the_group_s_offsets_before_the_checkpoint_s() -> None:
    known = offsets.CheckpointProgress(1, {T0: 9, T1: 2})
    assert offsets.resume_offsets(known, {T0, T1, T2}, {T0: 20}) == {T0: 20, T1: 2}
    pending = offsets.CheckpointProgress(1, {T0: 9, T1: 2}, pending=True, starts={T0: 5})
    assert offsets.resume_offsets(pending, {T0, T1}, {}) == {T0: 5}
    assert offsets.resume_offsets(None, {T0}, {T1: 3}) == {}


def test_checkpoint_is_moved_to_other_partitions_and_its_open_batch_passed_over(
    tmp_path: Path,
) -> None:
    folder = checkpoint(tmp_path, [{"0": 5}, {"0": 9, "1": 2}], finished=1)
    (folder / "offsets" / ".1.crc").touch()
    known = offsets.progress(LocalFolder(folder))
    offsets.rewrite_start(LocalFolder(folder), known, {T1: 4, T2: 0})
    assert offsets.progress(LocalFolder(folder)) == offsets.CheckpointProgress(1, {T1: 4, T2: 0})
    assert (folder / "offsets" / "1").read_text().splitlines()[1] == METADATA
    assert (folder / "commits" / "1").read_text() == 'v1\n{"nextBatchWatermarkMs":7}'
    assert not (folder / "offsets" / ".1.crc").exists()
    assert offsets.batch_ends(LocalFolder(folder), 0) == {T0: 5}


def test_checkpoint_without_a_batch_forgets_where_it_would_have_begun(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, [], finished=0)
    offsets.rewrite_start(LocalFolder(folder), None, {T0: 3})
    assert not (folder / "sources").exists()


def test_source_reads_the_share_and_nothing_else() -> None:
    found = sources.source_options(BrokerAccess("b:1"), {T1: 42, TopicPartition("u", 0): 0}, "json")
    assert json.loads(found["assign"]) == {"t": [1], "u": [0]}
    assert json.loads(found["startingOffsets"]) == {"t": {"1": 42}, "u": {"0": 0}}
    assert found["failOnDataLoss"] == "true"


@pytest.mark.parametrize(
    ("topics", "views"),
    [
        (["cluster-logs"], {"cluster-logs": "cluster-logs", "cluster_logs": "cluster-logs"}),
        (["plain"], {"plain": "plain"}),
        (["a.b", "a_b"], {"a.b": "a.b", "a_b": "a_b"}),
        (["a.b", "a-b"], {"a.b": "a.b", "a-b": "a-b"}),
        (["records"], {}),
    ],
)
def test_each_topic_has_a_view_and_an_identifier_where_it_is_free(
    topics: list[str], views: dict[str, str]
) -> None:
    assert sources.view_names(topics) == views


@pytest.mark.parametrize(
    ("drop_pending", "expected"),
    [
        (False, offsets.CheckpointProgress(1, {T1: 3})),
        (True, offsets.CheckpointProgress(0, {T1: 3})),
    ],
)
def test_offsets_that_mean_nothing_are_forgotten_with_the_batch_that_reads_them(
    tmp_path: Path, drop_pending: bool, expected: offsets.CheckpointProgress
) -> None:
    folder = checkpoint(tmp_path, [{"0": 5, "1": 3}, {"0": 9, "1": 4}], finished=1)
    known = offsets.progress(LocalFolder(folder))
    assert known is not None
    assert offsets.forget(LocalFolder(folder), known, {T0}, drop_pending) == expected
    assert offsets.progress(LocalFolder(folder)) == expected


def test_first_batch_is_forgotten_with_its_start(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, [{"0": 5}], finished=0, start={"0": 2})
    known = offsets.progress(LocalFolder(folder))
    assert known is not None
    assert offsets.forget(LocalFolder(folder), known, {T0}, drop_pending=True) is None
    assert offsets.progress(LocalFolder(folder)) is None
    assert not (folder / "sources").exists()


class DyingFolder(LocalFolder):
    """A folder whose user dies before it has removed so many names."""

    def __init__(self, path: Path, removals: int) -> None:
        super().__init__(path)
        self._left = removals

    def remove(self, name: str) -> None:
        if not self._left:
            raise InterruptedError(name)
        self._left -= 1
        super().remove(name)


@pytest.mark.parametrize("removals", range(5))
def test_checkpoint_whose_discarding_was_cut_short_still_says_what_it_read(
    tmp_path: Path, removals: int
) -> None:
    """So the next start, too, sees that its group was deleted, and discards the rest."""
    folder = checkpoint(tmp_path, [{"0": 5}, {"0": 9}], finished=2)
    (folder / "state").mkdir()
    (folder / "metadata").write_text("{}")
    assert len(LocalFolder(folder).names("")) == 5
    with pytest.raises(InterruptedError):
        offsets.discard(DyingFolder(folder, removals))
    known = offsets.progress(LocalFolder(folder))
    assert known is not None
    assert known.ends == {T0: 9}
    offsets.discard(LocalFolder(folder))
    assert LocalFolder(folder).names("") == []
