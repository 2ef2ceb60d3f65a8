"""What each client with an admin part does to a topic: make, describe, grow, configure, shorten,
delete. And what it is told of ACLs."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import aiokafka
import confluent_kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AiokafkaPartitions
from aiokafka.admin import NewTopic as AiokafkaTopic
from aiokafka.admin import RecordsToDelete as AiokafkaRecords
from aiokafka.admin.config_resource import ConfigResource as AiokafkaResource
from aiokafka.admin.config_resource import ConfigResourceType as AiokafkaResourceType
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.support.broker import Cluster, wait_until
from tests.support.clients import QUIET, kafka, kafka_admin, produce_all

# kafka-python reads its message definitions by a function that Python 3.11 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")

T = TypeVar("T")


class Admin(Protocol):
    """What the scenario needs of a client; each method returns when the broker has answered."""

    def create(self, topic: str, partitions: int, config: dict[str, str]) -> None: ...
    def topics(self) -> set[str]: ...
    def partitions(self, topic: str) -> int: ...
    def grow(self, topic: str, partitions: int) -> None: ...
    def configure(self, topic: str, name: str, value: str) -> None: ...
    def setting(self, topic: str, name: str) -> str: ...
    def shorten(self, topic: str, offset: int) -> int: ...
    def delete(self, topic: str) -> None: ...


class Librdkafka:
    """confluent-kafka."""

    def __init__(self, bootstrap: str) -> None:
        self._client = AdminClient({"bootstrap.servers": bootstrap, **QUIET})

    def create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        wanted = NewTopic(topic, partitions, 1, config=config)
        self._client.create_topics([wanted])[topic].result(60)

    def topics(self) -> set[str]:
        return set(self._client.list_topics(timeout=60).topics)

    def partitions(self, topic: str) -> int:
        return len(self._client.list_topics(topic, timeout=60).topics[topic].partitions)

    def grow(self, topic: str, partitions: int) -> None:
        self._client.create_partitions([NewPartitions(topic, partitions)])[topic].result(60)

    def configure(self, topic: str, name: str, value: str) -> None:
        change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        self._client.incremental_alter_configs([resource])[resource].result(60)

    def setting(self, topic: str, name: str) -> str:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return str(self._client.describe_configs([resource])[resource].result(60)[name].value)

    def shorten(self, topic: str, offset: int) -> int:
        part = confluent_kafka.TopicPartition(topic, 0, offset)
        return int(self._client.delete_records([part])[part].result(60).low_watermark)

    def delete(self, topic: str) -> None:
        self._client.delete_topics([topic])[topic].result(60)


class KafkaPython:
    """kafka-python; a client for each call, so that none outlives the broker."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def _ask(self, question: Callable[[Any], T]) -> T:
        client = kafka_admin.KafkaAdminClient(bootstrap_servers=self._bootstrap)
        with contextlib.closing(client):
            return question(client)

    def create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        wanted = kafka_admin.NewTopic(topic, partitions, 1, topic_configs=config)
        self._ask(lambda client: client.create_topics([wanted]))

    def topics(self) -> set[str]:
        return set(self._ask(lambda client: client.list_topics()))

    def partitions(self, topic: str) -> int:
        [described] = self._ask(lambda client: client.describe_topics([topic]))
        return len(described["partitions"])

    def grow(self, topic: str, partitions: int) -> None:
        wanted = {topic: kafka_admin.NewPartitions(partitions)}
        self._ask(lambda client: client.create_partitions(wanted))

    def configure(self, topic: str, name: str, value: str) -> None:
        resource = kafka_admin.ConfigResource("TOPIC", topic, configs={name: value})
        self._ask(lambda client: client.alter_configs([resource]))

    def setting(self, topic: str, name: str) -> str:
        resource = kafka_admin.ConfigResource("TOPIC", topic)
        found = self._ask(lambda client: client.describe_configs([resource], config_filter="all"))
        return str(found["topic"][topic][name]["value"])

    def shorten(self, topic: str, offset: int) -> int:
        part = kafka.TopicPartition(topic, 0)
        answer = self._ask(lambda client: client.delete_records({part: offset}))
        return int(answer[part]["low_watermark"])

    def delete(self, topic: str) -> None:
        self._ask(lambda client: client.delete_topics([topic]))


class Aiokafka:
    """aiokafka; a client for each call, since each has an event loop of its own."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def _ask(self, question: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
        async def ask() -> T:
            client = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
            await client.start()
            try:
                return await question(client)
            finally:
                await client.close()

        return asyncio.run(ask())

    def create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        wanted = AiokafkaTopic(topic, partitions, 1, topic_configs=config)
        answer = self._ask(lambda client: client.create_topics([wanted]))
        assert [error for _, error, *_ in answer.topic_errors] == [0]

    def topics(self) -> set[str]:
        return set(self._ask(lambda client: client.list_topics()))

    def partitions(self, topic: str) -> int:
        [described] = self._ask(lambda client: client.describe_topics([topic]))
        return len(described["partitions"])

    def grow(self, topic: str, partitions: int) -> None:
        wanted = {topic: AiokafkaPartitions(partitions)}
        answer = self._ask(lambda client: client.create_partitions(wanted))
        assert [error for _, error, *_ in answer.topic_errors] == [0]

    def configure(self, topic: str, name: str, value: str) -> None:
        resource = AiokafkaResource(AiokafkaResourceType.TOPIC, topic, {name: value})
        [answer] = self._ask(lambda client: client.alter_configs([resource]))
        assert [error for error, *_ in answer.resources] == [0]

    def setting(self, topic: str, name: str) -> str:
        resource = AiokafkaResource(AiokafkaResourceType.TOPIC, topic)
        [answer] = self._ask(lambda client: client.describe_configs([resource]))
        [(error, _, _, _, entries)] = answer.resources
        assert error == 0
        return str({entry[0]: entry[1] for entry in entries}[name])

    def shorten(self, topic: str, offset: int) -> int:
        part = aiokafka.TopicPartition(topic, 0)
        wanted = {part: AiokafkaRecords(offset)}
        return int(self._ask(lambda client: client.delete_records(wanted))[part])

    def delete(self, topic: str) -> None:
        answer = self._ask(lambda client: client.delete_topics([topic]))
        assert [error for _, error, *_ in answer.topic_error_codes] == [0]


@pytest.mark.parametrize("client", [Librdkafka, KafkaPython, Aiokafka])
def test_topic_is_created_described_grown_configured_shortened_and_deleted(
    cluster: Cluster, client: Callable[[str], Admin]
) -> None:
    admin = client(cluster.bootstrap)
    topic = f"administered-{uuid.uuid4().hex[:8]}"
    admin.create(topic, 2, {"retention.ms": "7000"})
    assert topic in admin.topics()
    assert admin.partitions(topic) == 2
    assert admin.setting(topic, "retention.ms") == "7000"
    admin.grow(topic, 3)
    assert admin.partitions(topic) == 3
    admin.configure(topic, "retention.ms", "9000000")
    assert admin.setting(topic, "retention.ms") == "9000000"
    produce_all(cluster.bootstrap, topic, [b"%d" % number for number in range(12)])
    assert admin.shorten(topic, 5) == 5
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "none", **QUIET}
    )
    part = confluent_kafka.TopicPartition(topic, 0)
    assert consumer.get_watermark_offsets(part, timeout=60) == (5, 12)
    consumer.close()
    admin.delete(topic)
    wait_until(lambda: topic not in admin.topics(), "the topic is gone")


def test_acls_are_refused_as_by_kafka_without_an_authorizer(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    resource = (ResourceType.TOPIC, "guarded", ResourcePatternType.LITERAL)
    allowed = (AclOperation.READ, AclPermissionType.ALLOW)
    wanted = [AclBinding(*resource, f"User:{name}", "*", *allowed) for name in ("a", "b")]
    unwanted = [AclBindingFilter(*resource, f"User:{name}", "*", *allowed) for name in ("a", "b")]
    answers = [
        *admin.create_acls(wanted, request_timeout=30).values(),
        *admin.delete_acls(unwanted, request_timeout=30).values(),
    ]
    assert len(answers) == 4
    for answer in answers:
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            answer.result(60)
        error = refused.value.args[0]
        assert error.code() == confluent_kafka.KafkaError.SECURITY_DISABLED
        assert error.str() == "No Authorizer is configured on the broker"
    # librdkafka does not pass the error of this answer on.
    assert admin.describe_acls(unwanted[0], request_timeout=30).result(60) == []


def test_listing_acls_says_that_there_is_no_authorizer(cluster: Cluster) -> None:
    every_resource = kafka_admin.ResourcePatternFilter(
        kafka_admin.ResourceType.ANY, None, kafka_admin.ACLResourcePatternType.ANY
    )
    every_acl = kafka_admin.ACLFilter(
        None, None, kafka_admin.ACLOperation.ANY, kafka_admin.ACLPermissionType.ANY, every_resource
    )
    client = kafka_admin.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    with contextlib.closing(client), pytest.raises(kafka.errors.SecurityDisabledError) as refused:
        client.describe_acls(every_acl)
    assert "No Authorizer is configured on the broker" in str(refused.value)


def test_many_topics_with_short_names_are_listed(cluster: Cluster) -> None:
    """Librdkafka gives an answer four times its bytes of memory, and calls it malformed beyond.

    That is too little for topics of one replica with names of up to ten characters, unless each
    has an id: Metadata from version 10 on.
    """
    names = {f"{number:02x}" for number in range(200)}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in sorted(names)]).values():
        made.result(60)
    assert names <= admin.list_topics(timeout=60).topics.keys()
    for gone in admin.delete_topics(sorted(names)).values():
        gone.result(60)
