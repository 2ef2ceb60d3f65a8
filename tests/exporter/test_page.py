"""The page for Prometheus, as Prometheus's own parser reads it."""

import gzip

from prometheus_client.parser import text_string_to_metric_families

from odradek.values import TopicPartition
from odradek_operator.exporter import page
from odradek_operator.exporter.lags import GroupRead, Lags, Moment
from odradek_operator.exporter.logs import LogBounds, Topic


def test_names_are_escaped_and_offsets_are_exact() -> None:
    name, partition, committed = 'a "group"\\of\nours', TopicPartition("orders", 3), 1234567890123
    topics, bounds = {"orders": Topic(1, [3])}, {partition: LogBounds(0, committed + 2)}
    lags = Lags()
    lags.keep_ends(topics, bounds, 1.0)
    read = GroupRead(1, False, True, {partition: committed})
    lags.update(name, read, topics, (), bounds, Moment(1.0, 2.0))
    text = gzip.decompress(page.render(lags, page.Rounds({"group": 2}, 0.5))).decode()
    assert f" {committed}\n" in text
    found = {one.name: one for one in text_string_to_metric_families(text)}
    (sample,) = found["kafka_consumergroup_current_offset"].samples
    assert sample.labels == {"consumergroup": name, "topic": "orders", "partition": "3"}
    assert [one.value for one in found["kafka_consumergroup_lag_sum"].samples] == [2]
    (sample,) = found["kafka_topic_partition_current_offset"].samples
    assert (sample.labels, sample.value) == ({"topic": "orders", "partition": "3"}, committed + 2)
    assert [one.value for one in found["kafka_topic_partitions"].samples] == [1]
    assert found["odradek_exporter_round_failures"].type == "counter"
