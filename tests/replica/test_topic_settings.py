"""Which settings a log works with: those of its topic, not of one that had its name before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from odradek.config import BrokerConfig, TopicConfig
from odradek.protocol.messages.control import StopReplicaRequest, StopReplicaTopicV1
from odradek.zk import znodes
from tests.support.replicas import KEY, TOPIC, Replicas

CONFIG = znodes.topic_config_path(TOPIC)
DEFAULTS = znodes.broker_config_path("<default>")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path) as replicas:
        yield replicas


def write(broker: Replicas, path: str, **entries: str) -> None:
    settings = {name.replace("_", "."): text for name, text in entries.items()}
    broker.session.znodes[path] = znodes.encode_config(settings), 0


def settings_of_the_log(broker: Replicas) -> TopicConfig:
    log = broker.logs.get(*KEY)
    assert log is not None
    return log.config


async def delete(broker: Replicas) -> None:
    _, errors = await broker.manager.stop_replicas(
        StopReplicaRequest(
            controller_id=1,
            controller_epoch=1,
            delete_partitions=True,
            topics=[StopReplicaTopicV1(name=TOPIC, partition_indexes=[0])],
        )
    )
    assert not any(errors.values())


async def test_topic_made_anew_does_not_inherit_what_its_former_self_had(broker: Replicas) -> None:
    write(broker, CONFIG, retention_ms="1000")
    await broker.lead()
    assert settings_of_the_log(broker).retention_ms == 1000
    await delete(broker)
    write(broker, CONFIG, cleanup_policy="compact")
    await broker.lead()
    assert settings_of_the_log(broker).retention_ms != 1000
    assert settings_of_the_log(broker).cleanup_policy == ("compact",)


async def test_what_was_known_before_the_first_log_is_looked_up_again(broker: Replicas) -> None:
    write(broker, CONFIG, retention_ms="1000")
    await broker.topic_configs.read([TOPIC])
    del broker.session.znodes[CONFIG]
    await broker.lead()
    assert settings_of_the_log(broker).retention_ms != 1000


async def test_nothing_is_kept_of_topics_that_have_no_log_here(broker: Replicas) -> None:
    write(broker, CONFIG, retention_ms="1000")
    await broker.lead()
    await delete(broker)
    assert broker.topic_configs(TOPIC).retention_ms != 1000


async def test_topics_that_a_new_default_changes_are_told_at_once(broker: Replicas) -> None:
    told: list[Mapping[str, TopicConfig]] = []
    topics = [f"t{number}" for number in range(3)]
    write(broker, znodes.topic_config_path("t1"), max_message_bytes="5")
    await broker.topic_configs.read(topics)
    broker.topic_configs.on_change(told.append)
    write(broker, DEFAULTS, message_max_bytes="7")
    await broker.topic_configs.read_broker()
    sizes = [{topic: one.max_message_bytes for topic, one in each.items()} for each in told]
    assert sizes == [{"t0": 7, "t2": 7}]


async def test_settings_that_could_not_be_applied_are_applied_when_they_are_read_again(
    broker: Replicas,
) -> None:
    applied: list[int] = []

    async def apply(config: BrokerConfig) -> None:
        applied.append(config.max_connections)
        if len(applied) == 1:
            raise RuntimeError("not now")

    broker.topic_configs.on_broker_change(apply)
    write(broker, DEFAULTS, max_connections="70")
    with pytest.raises(RuntimeError):
        await broker.topic_configs.read_broker()
    await broker.topic_configs.read_broker()
    await broker.topic_configs.read_broker()
    assert applied == [70, 70]


async def test_later_settings_are_applied_last(broker: Replicas) -> None:
    applied: list[int] = []
    may_go_on = asyncio.Event()

    async def apply(config: BrokerConfig) -> None:
        if not applied and config.max_connections == 70:
            await may_go_on.wait()  # as for the addresses of hosts
        applied.append(config.max_connections)

    broker.topic_configs.on_broker_change(apply)
    reading = []
    for most in ("70", "80"):
        write(broker, DEFAULTS, max_connections=most)
        reading.append(asyncio.create_task(broker.topic_configs.read_broker()))
        for _ in range(20):
            await asyncio.sleep(0)
    may_go_on.set()
    await asyncio.gather(*reading)
    assert applied == [70, 80]
