"""Which settings a log works with: those of its topic, not of one that had its name before."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from odradek import config as configuration
from odradek.config import BrokerConfig
from odradek.net import addresses
from odradek.protocol.messages.control import StopReplicaRequest, StopReplicaTopicV1
from odradek.replica import topic_configs
from odradek.replica.topic_configs import TopicConfigs
from odradek.topic_config import TopicConfig
from odradek.zk import znodes
from tests.support.replicas import KEY, TOPIC, Replicas

CONFIG = znodes.topic_config_path(TOPIC)
DEFAULTS = znodes.broker_config_path("<default>")
OWN = znodes.broker_config_path("1")
NOWHERE = "broker..example:5"


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


@pytest.mark.parametrize("path", [DEFAULTS, OWN])
@pytest.mark.parametrize(
    ("ignored", "field", "value"),
    [
        ({"max_connections": "0"}, "max_connections", 2**31 - 1),
        ({"max_connections": "-1"}, "max_connections", 2**31 - 1),
        ({"max_connections_per_ip": "0"}, "max_connections_per_ip", 2**31 - 1),
        ({"max_connection_creation_rate": "-1"}, "max_connection_creation_rate", 1000),
        ({"max_connections_per_ip_overrides": NOWHERE}, "max_connections_per_ip_overrides", ()),
        ({"log_cleaner_threads": "0"}, "log_cleaner_threads", 1),
        ({"log_cleaner_dedupe_buffer_size": "9"}, "log_cleaner_dedupe_buffer_size", 134_217_728),
    ],
)
async def test_what_is_out_of_range_in_zookeeper_is_ignored_and_named(
    broker: Replicas,
    caplog: pytest.LogCaptureFixture,
    path: str,
    ignored: dict[str, str],
    field: str,
    value: object,
) -> None:
    write(broker, path, **ignored, num_io_threads="9")
    await broker.topic_configs.read_broker()
    effective = broker.topic_configs.broker.effective
    assert (getattr(effective, field), effective.num_io_threads) == (value, 9)
    [(name, text)] = ignored.items()
    assert f"{path}: {name.replace('_', '.')}={text}: " in caplog.text


async def test_contradiction_of_two_znodes_takes_nothing_but_the_upper_ones_part(
    broker: Replicas,
) -> None:
    write(broker, DEFAULTS, max_connections_per_ip_overrides="127.0.0.1:5")
    write(broker, OWN, max_connections_per_ip="0")
    await broker.topic_configs.read_broker()
    assert broker.topic_configs.broker.effective.max_connections_per_ip == 0
    write(broker, DEFAULTS, max_connections_per_ip="7")
    await broker.topic_configs.read_broker()
    assert broker.topic_configs.broker.effective.max_connections_per_ip == 7


async def test_limits_of_hosts_that_are_not_found_leave_the_former_ones(broker: Replicas) -> None:
    for overrides, in_force in (
        ("127.0.0.1:5", "127.0.0.1:5"),
        (NOWHERE, "127.0.0.1:5"),
        ("localhost:6", "localhost:6"),
    ):
        write(broker, OWN, max_connections_per_ip_overrides=overrides, num_io_threads="9")
        await broker.topic_configs.read_broker()
        assert broker.topic_configs.broker.effective.max_connections_per_ip_overrides == (in_force,)
        assert broker.topic_configs.broker.effective.num_io_threads == 9
        # What is described.
        assert broker.topic_configs.broker.own["max.connections.per.ip.overrides"] == in_force


async def test_name_server_that_does_not_answer_holds_up_no_other_setting(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # No name server here is slow.
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    monkeypatch.setattr(addresses, "LOOK_UP_LIMIT_S", 0.01)
    write(broker, OWN, max_connections_per_ip_overrides="slow.example:5", num_io_threads="9")
    async with asyncio.timeout(60):
        await broker.topic_configs.read_broker()
    assert broker.topic_configs.broker.effective.num_io_threads == 9
    assert "failed to look up slow.example in time" in caplog.text


async def test_hosts_that_are_not_found_at_the_start_are_looked_up_again(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_configs, "LOOK_UP_AGAIN_S", 0.01)
    loop = asyncio.get_running_loop()
    look_up = loop.getaddrinfo
    away = True

    async def answer(host: str, *more: Any, **options: Any) -> Any:
        if away:
            raise socket.gaierror(socket.EAI_AGAIN, "no name server")
        return await look_up("127.0.0.1", *more, **options)

    monkeypatch.setattr(loop, "getaddrinfo", answer)
    write(
        broker, OWN, max_connections_per_ip="0", max_connections_per_ip_overrides="late.example:5"
    )
    await broker.topic_configs.read_broker()
    effective = broker.topic_configs.broker.effective
    assert effective.max_connections_per_ip == 0, "nobody else gets in meanwhile"
    assert effective.max_connections_per_ip_overrides == ()
    away = False
    async with asyncio.timeout(60):
        while not broker.topic_configs.broker.effective.max_connections_per_ip_overrides:
            await asyncio.sleep(0.001)
    effective = broker.topic_configs.broker.effective
    assert effective.max_connections_per_ip_overrides == ("late.example:5",)
    assert effective.max_connections_per_ip == 0


@pytest.mark.parametrize("is_looking", [False, True])
async def test_hosts_are_not_looked_up_after_the_stop(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch, is_looking: bool
) -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    asking: list[asyncio.Task[None] | None] = []

    async def answer(host: str, *more: Any, **options: Any) -> Any:
        asking.append(asyncio.current_task())
        if len(asking) == 1:
            raise socket.gaierror(socket.EAI_AGAIN, "no name server")
        asked.set()
        await loop.create_future()

    monkeypatch.setattr(loop, "getaddrinfo", answer)
    monkeypatch.setattr(addresses, "LOOK_UP_LIMIT_S", 600)
    monkeypatch.setattr(topic_configs, "LOOK_UP_AGAIN_S", 0 if is_looking else 600)
    write(broker, OWN, max_connections_per_ip_overrides="late.example:5")
    running = asyncio.create_task(broker.topic_configs.run())
    await broker.topic_configs.read_broker()
    await asyncio.sleep(0)
    if is_looking:
        await asked.wait()
    else:
        assert broker.topic_configs._retry is not None
    running.cancel()
    await asyncio.wait((running,))
    if is_looking:
        assert asking[-1] is not None
        await asyncio.wait((asking[-1],))
        assert asking[-1].cancelled()
    assert broker.topic_configs._retry is None


@pytest.mark.parametrize(
    ("wanted", "in_force", "said"),
    [("1000", 500, True), ("2147483647", 500, False), ("70", 70, False)],
)
async def test_connections_beyond_the_descriptors_are_lowered_where_they_are_described(
    broker: Replicas, caplog: pytest.LogCaptureFixture, wanted: str, in_force: int, said: bool
) -> None:
    static = configuration.within_descriptors(broker.config, 500)
    settings = TopicConfigs(static, broker.session, most_connections=500)  # type: ignore[arg-type]
    write(broker, OWN, max_connections=wanted, max_connections_per_ip="2147483647")
    await settings.read_broker()
    effective = settings.broker.effective
    assert effective.max_connections == in_force
    assert effective.max_connections_per_ip == in_force // 2
    assert ("max.connections=1000 is lowered to 500" in caplog.text) == said
