"""Limits on copying: what counts, who is held back, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek import dynamic_config, topic_config
from odradek.properties import ConfigError
from odradek.replica.quota import Rate, ReplicationQuota
from odradek.values import TopicPartition
from odradek.zk import znodes
from tests.support.replicas import KEY, TOPIC, Replicas


class Clock:
    now_ms = 5_000_000

    def __call__(self) -> int:
        return self.now_ms


def test_rate_is_that_of_the_last_windows() -> None:
    rate, now = Rate(), 0
    assert rate.per_second(now) == 0
    rate.record(3000, now)
    assert rate.per_second(now) == 3000, "what has only begun counts as a second"
    assert rate.per_second(now + 2000) == 1500
    for _ in range(60):
        now += 500
        rate.record(1000, now)
    assert rate.per_second(now + 500) == pytest.approx(2000, rel=0.1)
    assert rate.per_second(now + 60_000) == 0


def test_only_listed_replicas_beyond_the_limit_are_held_back() -> None:
    clock, limit = Clock(), [1000]
    listed = {"t": ("0:1", "1:2"), "every": ("*",)}
    quota = ReplicationQuota(1, lambda: limit[0], lambda topic: listed.get(topic, ()), clock)
    mine, of_another, free = (
        TopicPartition("t", 0),
        TopicPartition("t", 1),
        TopicPartition("free", 0),
    )
    quota.record(of_another, 10_000_000)
    quota.record(free, 10_000_000)
    assert not quota.holds_back(mine), "what is not throttled does not count"
    quota.record(mine, 5000)
    assert quota.holds_back(mine)
    assert quota.holds_back(TopicPartition("every", 7))
    assert not quota.holds_back(of_another)
    assert not quota.holds_back(free)
    limit[0] = 5000
    assert not quota.holds_back(mine), "a new limit holds at once"
    limit[0] = 1000
    clock.now_ms += 5000
    assert not quota.holds_back(mine), "5000 bytes in five seconds are allowed"
    listed["t"] = ("1:1",)
    assert quota.covers(of_another), "a new list holds at once"
    assert not quota.covers(mine)


def test_nothing_is_kept_of_a_topic_that_lost_its_throttle() -> None:
    listed: dict[str, tuple[str, ...]] = {TOPIC: ("0:1",)}
    quota = ReplicationQuota(1, lambda: 1, lambda topic: listed[topic], Clock())
    assert quota.covers(KEY)
    listed[TOPIC] = ()
    assert not quota.covers(KEY)
    assert not quota._listed


async def test_nothing_is_kept_of_the_throttle_of_a_topic_that_is_gone(tmp_path: Path) -> None:
    async with Replicas(tmp_path) as broker:
        throttle = znodes.encode_config({"leader.replication.throttled.replicas": "0:1"})
        broker.session.znodes[znodes.topic_config_path(TOPIC)] = throttle, 0
        await broker.lead()
        quota = broker.manager._reader._quota
        assert quota.covers(KEY)
        await broker.delete()
        assert not quota._listed


def test_throttles_are_settings_of_topics_and_of_running_brokers() -> None:
    side = "leader.replication.throttled"
    for text in ("0:1,12:3", "*", ""):
        topic_config.check_topic_entries({f"{side}.replicas": text})
    for text in ("0", "0:1,*", "a:1", "0:1:2"):
        with pytest.raises(ConfigError, match="literal"):
            topic_config.check_topic_entries({f"{side}.replicas": text})
    dynamic_config.check({f"{side}.rate": "1000000"})
    with pytest.raises(ConfigError, match="at least 0"):
        dynamic_config.check({f"{side}.rate": "-1"})
