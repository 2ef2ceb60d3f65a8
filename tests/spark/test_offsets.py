from __future__ import annotations

import json
from pathlib import Path

import pytest

from odradek.zk.znodes import TopicPartition
from odradek_spark import config, offsets, sources
from tests.spark.test_config import ENVIRONMENT, job_file

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795254846676,"conf":{}}'


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


def test_checkpoint_is_new_until_a_batch_was_planned(tmp_path: Path) -> None:
    assert offsets.is_new(tmp_path)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / ".0.crc").touch()
    assert offsets.is_new(tmp_path)
    (tmp_path / "offsets" / "0").touch()
    assert not offsets.is_new(tmp_path)


def options(start: str, committed: dict[TopicPartition, int]) -> dict[str, str]:
    job = config.parse_job(job_file(job__startingOffsets=start), ENVIRONMENT)
    return sources.source_options(job, [TopicPartition("t", 0), TopicPartition("t", 1)], committed)


def test_group_starts_at_its_commits_and_at_the_earliest_record_elsewhere() -> None:
    found = options("group", {TopicPartition("t", 1): 42})["startingOffsets"]
    assert json.loads(found) == {"t": {"0": -2, "1": 42}}


def test_time_stamp_becomes_milliseconds() -> None:
    assert options("2026-11-21T09:00:00Z", {})["startingTimestamp"] == "1795251600000"


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_named_start_is_spark_s_own(start: str) -> None:
    found = options(start, {})
    assert found["startingOffsets"] == start
    assert found["failOnDataLoss"] == "true"
    assert found["subscribe"] == "t"


def test_pattern_is_subscribed_as_a_pattern() -> None:
    job = config.parse_job(job_file(topics=None, topicPattern="logs-.*"), ENVIRONMENT)
    found = sources.source_options(job, [], {})
    assert found["subscribePattern"] == "logs-.*"
    assert "subscribe" not in found


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
