"""AlterConfigs and IncrementalAlterConfigs: what is written; what is refused, with which code."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError, NodeExistsError

from odradek.config import BrokerConfig
from odradek.handlers import alter_configs, configs
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from odradek.replica.metadata import PartitionInfo
from odradek.replica.topic_configs import TopicConfigs
from odradek.zk import znodes
from odradek.zk.operations import Create, Operation, SetData, TransactionFailedError
from tests.support.replicas import TOPIC, FakeSession, Replicas

CONTEXT = RequestContext(1, "c", "PLAINTEXT", "h", 1)
SET, DELETE, APPEND, SUBTRACT = range(4)
TOPICS, BROKERS = configs.TOPIC, configs.BROKER


@pytest.fixture
def session(replicas: Replicas, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    """Takes transactions; the topic exists."""
    fake = replicas.session
    broker.metadata.topics[TOPIC] = {0: PartitionInfo(1, 0, (1,), (1,), ())}

    async def multi(operations: Sequence[Operation]) -> None:
        change, notice = operations
        assert isinstance(change, Create | SetData)
        assert isinstance(notice, Create)
        assert notice.sequence
        present = fake.znodes.get(change.path, (b"", -1))[1]
        if isinstance(change, Create) and present >= 0:
            raise TransactionFailedError(change, 0, NodeExistsError())
        if isinstance(change, SetData) and change.version != present:
            raise TransactionFailedError(change, 0, BadVersionError())
        fake.znodes[change.path] = change.data, present + 1
        fake.znodes[f"{notice.path}{len(fake.znodes)}"] = notice.data, 0

    monkeypatch.setattr(fake, "multi", multi, raising=False)
    return fake


def entries(session: FakeSession, kind: str = "topics", name: str = TOPIC) -> dict[str, str] | None:
    path = znodes.config_path(kind, name)
    return znodes.decode_config(path, session.znodes[path][0]) if path in session.znodes else None


def notices(session: FakeSession) -> list[str]:
    return [
        znodes.decode_config_change(path, data).entity_path
        for path, (data, _) in session.znodes.items()
        if path.startswith(znodes.CONFIG_CHANGES_PATH)
    ]


async def change(
    broker: Broker,
    *changes: tuple[str, int, str | None],
    kind: int = TOPICS,
    name: str = TOPIC,
    validate_only: bool = False,
) -> tuple[int, str | None]:
    listed = [
        IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = IncrementalAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=listed
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    [answer] = (await alter_configs.incremental_alter_configs(broker, request, CONTEXT)).responses
    return answer.error_code, answer.error_message


async def test_single_settings_change_and_the_others_stay(
    broker: Broker, session: FakeSession
) -> None:
    assert (await change(broker, ("retention.ms", SET, "5"), ("segment.ms", SET, "7")))[0] == 0
    assert (await change(broker, ("retention.ms", DELETE, None), ("flush.ms", SET, "9")))[0] == 0
    assert entries(session) == {"segment.ms": "7", "flush.ms": "9"}
    assert notices(session) == [f"topics/{TOPIC}"] * 2


async def test_words_are_added_to_and_taken_from_a_list(
    broker: Broker, session: FakeSession
) -> None:
    assert (await change(broker, ("cleanup.policy", APPEND, "compact")))[0] == 0
    assert entries(session) == {"cleanup.policy": "delete,compact"}
    assert (await change(broker, ("cleanup.policy", SUBTRACT, "delete")))[0] == 0
    assert entries(session) == {"cleanup.policy": "compact"}


class CountedWord(str):
    """A word that counts what it is compared with."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedWord.compared += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


async def test_words_that_are_taken_are_not_looked_for_one_by_one(
    broker: Broker, session: FakeSession
) -> None:
    key, count = "leader.replication.throttled.replicas", 2000
    words = [f"{number}:1" for number in range(count)]
    assert (await change(broker, (key, SET, ",".join(words))))[0] == 0
    # Words that are not in the list at all take longest to look for.
    taken: Any = SimpleNamespace(
        split=lambda _: [CountedWord(f"{number}:1") for number in range(1, 2 * count)]
    )
    assert (await change(broker, (key, SUBTRACT, taken)))[0] == 0
    assert entries(session) == {key: "0:1"}
    assert CountedWord.compared <= 2 * count


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ([("x", SET, "1")], ErrorCode.INVALID_CONFIG, "Unknown topic config name: x"),
        ([("x", APPEND, "1")], ErrorCode.INVALID_CONFIG, "Unknown topic config name: x"),
        ([("retention.ms", SET, "x")], ErrorCode.INVALID_REQUEST, "Invalid config value"),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST, "Null value not supported"),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_REQUEST, "append is not allowed"),
        ([("cleanup.policy", 9, "1")], ErrorCode.INVALID_REQUEST, "Unknown operation 9"),
        ([("retention.ms", SET, "1_000")], ErrorCode.INVALID_REQUEST, "Not a number"),
        (
            [("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "9")],
            ErrorCode.INVALID_CONFIG,
            "larger",
        ),
        (
            [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)],
            ErrorCode.INVALID_REQUEST,
            "duplicate config keys : retention.ms",
        ),
    ],
)
async def test_changes_that_make_no_sense_are_refused(
    broker: Broker,
    session: FakeSession,
    changes: list[tuple[str, int, str | None]],
    code: ErrorCode,
    message: str,
) -> None:
    answer = await change(broker, *changes)
    assert answer[0] == code
    assert message in (answer[1] or "")
    assert entries(session) is None


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPICS, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPICS, "not a name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKERS, "2", ErrorCode.INVALID_REQUEST),
        (BROKERS, "one", ErrorCode.INVALID_REQUEST),
        (BROKERS, "9" * 5000, ErrorCode.INVALID_REQUEST),
        (3, "x", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_resources_that_are_not_here_are_refused(
    broker: Broker, session: FakeSession, kind: int, name: str, code: ErrorCode
) -> None:
    assert (await change(broker, ("retention.ms", SET, "1"), kind=kind, name=name))[0] == code


async def test_settings_that_fit_no_znode_are_refused(broker: Broker, session: FakeSession) -> None:
    replicas = ",".join(f"{partition}:1" for partition in range(100_000))
    key = "leader.replication.throttled.replicas"
    assert (await change(broker, (key, SET, replicas)))[0] == ErrorCode.INVALID_CONFIG
    assert entries(session) is None


async def test_a_setting_is_held_against_the_one_it_must_agree_with(
    broker: Broker, session: FakeSession
) -> None:
    least, most = "min.compaction.lag.ms", "max.compaction.lag.ms"
    assert (await change(broker, (most, SET, "9")))[0] == 0
    assert (await change(broker, (least, SET, "10")))[0] == ErrorCode.INVALID_CONFIG
    assert (await change(broker, (least, SET, "9")))[0] == 0
    assert (await change(broker, (most, SET, "8")))[0] == ErrorCode.INVALID_CONFIG
    assert (await change(broker, (most, DELETE, None), (least, SET, "10")))[0] == 0
    assert entries(session) == {least: "10"}


async def test_of_a_resource_named_twice_the_last_counts(
    broker: Broker, session: FakeSession
) -> None:
    resources = [
        IncrementalAlterConfigsResource(
            resource_type=TOPICS,
            resource_name=TOPIC,
            configs=[IncrementalAlterableConfig(name=name, config_operation=SET, value="7000")],
        )
        for name in ["retention.ms", "flush.ms", "segment.ms"] * 10
    ]
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
    answer = await alter_configs.incremental_alter_configs(broker, request, CONTEXT)
    assert [one.error_code for one in answer.responses] == [ErrorCode.NONE]
    assert entries(session) == {"segment.ms": "7000"}
    assert notices(session) == [f"topics/{TOPIC}"]


async def test_validation_writes_nothing(broker: Broker, session: FakeSession) -> None:
    assert (await change(broker, ("retention.ms", SET, "5"), validate_only=True))[0] == 0
    assert entries(session) is None
    bad = await change(broker, ("retention.ms", SET, "x"), validate_only=True)
    assert bad[0] == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("kind", "name", "there", "setting"),
    [
        (
            BROKERS,
            "1",
            {"log.retention.hours": "2", "metric.reporters": "a.B"},
            "leader.replication.throttled.rate",
        ),
        (BROKERS, "", {"log.segment.bytes": "none"}, "leader.replication.throttled.rate"),
        (TOPICS, TOPIC, {"remote.storage.enable": "true", "retention.ms": "-2"}, "segment.ms"),
    ],
    ids=["broker", "all brokers", "topic"],
)
async def test_what_kafka_left_there_does_not_stand_in_the_way_of_a_change(
    broker: Broker,
    session: FakeSession,
    kind: int,
    name: str,
    there: dict[str, str],
    setting: str,
) -> None:
    folder = ("topics", TOPIC) if kind == TOPICS else ("brokers", name or "<default>")
    session.znodes[znodes.config_path(*folder)] = znodes.encode_config(there), 0
    assert await change(broker, (setting, SET, "7000"), kind=kind, name=name) == (0, None)
    assert entries(session, *folder) == {**there, setting: "7000"}
    for left in there:
        bad = await change(broker, (left, SET, there[left]), kind=kind, name=name)
        assert bad[0] in (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG)
        assert await change(broker, (left, DELETE, None), kind=kind, name=name) == (0, None)
    assert entries(session, *folder) == {setting: "7000"}


async def test_a_change_made_meanwhile_is_kept(
    broker: Broker, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = znodes.topic_config_path(TOPIC)
    plain = session.get_all

    async def overtaken(paths: Sequence[str]) -> object:
        found = await plain(paths)
        if path not in session.znodes:
            session.znodes[path] = znodes.encode_config({"segment.ms": "7"}), 0
        return found

    monkeypatch.setattr(session, "get_all", overtaken)
    assert (await change(broker, ("retention.ms", SET, "5")))[0] == 0
    assert entries(session) == {"segment.ms": "7", "retention.ms": "5"}


async def test_the_older_request_replaces_everything(broker: Broker, session: FakeSession) -> None:
    await change(broker, ("retention.ms", SET, "5"))

    async def alter(**settings: str | None) -> int:
        listed = [
            AlterableConfig(name=name.replace("_", "."), value=value)
            for name, value in settings.items()
        ]
        resource = AlterConfigsResource(resource_type=TOPICS, resource_name=TOPIC, configs=listed)
        request = AlterConfigsRequest(resources=[resource], validate_only=False)
        [answer] = (await alter_configs.alter_configs(broker, request, CONTEXT)).responses
        return answer.error_code

    assert await alter(segment_ms="7") == ErrorCode.NONE
    assert entries(session) == {"segment.ms": "7"}
    assert await alter(segment_ms=None) == ErrorCode.INVALID_REQUEST
    assert await alter() == ErrorCode.NONE
    assert entries(session) == {}


async def test_settings_of_brokers_are_looked_up_from_the_nearest_to_the_farthest(
    replicas: Replicas, broker: Broker, session: FakeSession
) -> None:
    fixed = await change(broker, ("broker.rack", SET, "r"), kind=BROKERS, name="1")
    assert fixed[0] == ErrorCode.INVALID_REQUEST
    assert "Cannot update these configs dynamically: Set(broker.rack)" in (fixed[1] or "")
    for name, value in (("", "4000"), ("1", "3000")):
        assert (await change(broker, ("log.segment.bytes", SET, value), kind=BROKERS, name=name))[
            0
        ] == ErrorCode.NONE
    assert notices(session) == ["brokers/<default>", "brokers/1"]
    await replicas.topic_configs.read_broker()
    assert replicas.topic_configs("anything").segment_bytes == 3000

    resource = DescribeConfigsResource(
        resource_type=TOPICS, resource_name=TOPIC, configuration_keys=["segment.bytes"]
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    answer = await configs.describe_configs(broker, request, CONTEXT)
    assert isinstance(answer, DescribeConfigsResponse)
    [result] = answer.results
    [found] = result.configs
    assert (found.value, found.config_source) == ("3000", configs.DYNAMIC_BROKER)
    assert [(one.source, one.value) for one in found.synonyms] == [
        (configs.DYNAMIC_BROKER, "3000"),
        (configs.DYNAMIC_CLUSTER, "4000"),
        (configs.DEFAULT, "1073741824"),
    ]


async def to_broker(
    broker: Broker, name: str, value: str | None, operation: int = SET, of: str = "1"
) -> tuple[int, str]:
    code, message = await change(broker, (name, operation, value), kind=BROKERS, name=of)
    return code, message or ""


async def test_pools_and_limits_of_a_running_broker_change(
    replicas: Replicas, broker: Broker, session: FakeSession
) -> None:
    applied = []

    async def apply(config: BrokerConfig) -> None:
        applied.append((config.num_io_threads, config.max_connections, config.log_cleaner_threads))

    replicas.topic_configs.on_broker_change(apply)
    for name, value, of in (
        ("num.io.threads", "16", ""),
        ("max.connections", "70", "1"),
        ("log.cleaner.threads", "2", ""),
    ):
        assert await to_broker(broker, name, value, of=of) == (ErrorCode.NONE, "")
    await replicas.topic_configs.read_broker()
    assert applied == [(16, 70, 2)]
    await replicas.topic_configs.read_broker()
    assert len(applied) == 1, "nothing changed"
    # A pool grows by steps.
    assert await to_broker(broker, "num.io.threads", "32", of="") == (ErrorCode.NONE, "")
    code, message = await to_broker(broker, "num.io.threads", "65")
    assert code == ErrorCode.INVALID_REQUEST
    assert message == (
        "Invalid config value for resource ConfigResource(type=BROKER, name='1'): Dynamic thread "
        "count update validation failed for num.io.threads=65, value should not be greater than "
        "double the current value 16"
    )
    # The znodes are read at the start: after a restart all is as before.
    anew = TopicConfigs(replicas.config, session)  # type: ignore[arg-type]
    await anew.read_broker()
    effective = anew.broker.effective
    assert (effective.num_io_threads, effective.max_connections) == (32, 70)


@pytest.mark.parametrize(
    "name",
    [
        "listeners",
        "advertised.listeners",
        "listener.security.protocol.map",
        "ssl.keystore.location",
        "listener.name.plaintext.ssl.keystore.location",
        "sasl.enabled.mechanisms",
        "metric.reporters",
        "log.message.format.version",
        "log.retention.hours",
        "log.dirs",
        "broker.id",
    ],
)
async def test_other_settings_of_a_broker_cannot_be_changed(
    broker: Broker, session: FakeSession, name: str
) -> None:
    code, message = await to_broker(broker, name, "x")
    assert code == ErrorCode.INVALID_REQUEST
    assert message.endswith(f": Cannot update these configs dynamically: Set({name})")
    assert entries(session, "brokers", "1") is None


@pytest.mark.parametrize("of", ["", "1"])
async def test_limit_of_a_host_that_is_not_found_is_refused(
    broker: Broker, session: FakeSession, of: str
) -> None:
    overrides = "max.connections.per.ip.overrides"
    code, message = await to_broker(broker, overrides, "localhost:5,broker..example:5", of=of)
    assert code == ErrorCode.INVALID_REQUEST
    assert message.endswith("failed to look up broker..example: broker..example is not a host name")
    assert notices(session) == []
    assert await to_broker(broker, overrides, "localhost:5,[::1]:6", of=of) == (0, "")


async def test_only_lists_are_appended_to(broker: Broker, session: FakeSession) -> None:
    overrides = "max.connections.per.ip.overrides"
    assert await to_broker(broker, overrides, "127.0.0.1:5", APPEND) == (
        ErrorCode.INVALID_REQUEST,
        f"Config value append is not allowed for config key: {overrides}",
    )
    assert await to_broker(broker, "log.cleanup.policy", "compact", APPEND) == (0, "")
    assert await to_broker(broker, "log.cleanup.policy", "delete", SUBTRACT) == (0, "")
    assert entries(session, "brokers", "1") == {"log.cleanup.policy": "compact"}
    code, message = await to_broker(broker, "log.dirs", "/d", APPEND)
    assert code == ErrorCode.INVALID_REQUEST
    assert "Cannot update these configs dynamically: Set(log.dirs)" in message


async def test_a_null_is_named_with_its_operation(broker: Broker, session: FakeSession) -> None:
    assert await to_broker(broker, "log.retention.ms", None) == (
        ErrorCode.INVALID_REQUEST,
        "Null value not supported for : SET:log.retention.ms",
    )


async def test_a_broker_setting_that_is_only_validated_is_not_written(
    broker: Broker, session: FakeSession
) -> None:
    for value, code in (("16", ErrorCode.NONE), ("17", ErrorCode.INVALID_REQUEST)):
        found = await change(
            broker, ("num.io.threads", SET, value), kind=BROKERS, name="", validate_only=True
        )
        assert found[0] == code
    assert entries(session, "brokers", "<default>") is None
