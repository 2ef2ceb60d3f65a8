"""Makes the topics of the resources, and brings those that exist to what the resources say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from odradek_local.errors import LocalError
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.topic.topic_spec import TopicSpec
from odradek_spark.client_errors import starting_threads

_ANSWER_S: Final = 5.0
# Brokers that have just come up may not take them yet.
_RETRIED: Final = (
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.NOT_CONTROLLER,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
)


class TopicMaker:
    """Applies topics through the brokers at `bootstrap`; `wait` waits for a condition to hold."""

    def __init__(self, bootstrap: str, wait: Callable[[Callable[[], bool], str], None]) -> None:
        with starting_threads():
            self._client = AdminClient(
                {
                    "bootstrap.servers": bootstrap,
                    "client.id": "odradek-local",
                    "log_level": 0,
                    "reconnect.backoff.max.ms": 500,
                    "socket.timeout.ms": 30_000,
                }
            )
        self._wait = wait

    def apply(self, cluster: ClusterSpec, topics: Iterable[TopicSpec]) -> None:
        """Make each topic as its spec says, and wait for its leaders. Raises LocalError."""
        for topic in topics:
            self._wait(lambda topic=topic: self._applied(cluster, topic), f"topic {topic.topic}")  # type: ignore[misc]

    def _applied(self, cluster: ClusterSpec, wanted: TopicSpec) -> bool:
        try:
            found = self._client.list_topics(timeout=_ANSWER_S).topics.get(wanted.topic)
            if found is None:
                self._create(cluster, wanted)
                return False
            if any(one.leader < 0 for one in found.partitions.values()) or not found.partitions:
                return False
            return self._as_wanted(wanted, len(found.partitions))
        except KafkaException as error:
            failure = error.args[0]
            if failure.code() in _RETRIED:
                return False
            raise LocalError(f"Topic {wanted.topic}: {failure.str()}", 1) from error

    def _create(self, cluster: ClusterSpec, wanted: TopicSpec) -> None:
        topic = NewTopic(
            wanted.topic,
            num_partitions=wanted.partitions or cluster.default_partitions,
            replication_factor=wanted.replication_factor or cluster.default_replication_factor,
            config=dict(wanted.config),
        )
        _finish(self._client.create_topics([topic]))

    def _as_wanted(self, wanted: TopicSpec, count: int) -> bool:
        """Return whether a topic that exists needs no more partitions; its configs are set."""
        if wanted.partitions is not None and wanted.partitions < count:
            raise LocalError(
                f"Topic {wanted.topic} has {count} partitions, which cannot become "
                f"{wanted.partitions}: delete it, or give another folder with --data"
            )
        if wanted.partitions is not None and wanted.partitions > count:
            more = NewPartitions(wanted.topic, wanted.partitions)
            _finish(self._client.create_partitions([more]))
            return False
        entries = [
            ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET)
            for name, text in wanted.config.items()
        ]
        if entries:
            place = ConfigResource(ResourceType.TOPIC, wanted.topic, incremental_configs=entries)
            _finish(self._client.incremental_alter_configs([place]))
        return True


def _finish(answers: dict[Any, Future[Any]]) -> None:
    """Wait for the answers. Raises KafkaException."""
    for answer in answers.values():
        try:
            answer.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
