"""Groups whose topics are made anew and whose logs are truncated, and queries of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from odradek.values import TopicPartition
from odradek.zk import consumers
from odradek.zk.consumers import TopicIncarnation
from odradek_spark import config, config_loading, group_znodes, membership, show
from odradek_spark.broker_access import BrokerAccess
from odradek_spark.broker_client import DriverClient
from odradek_spark.errors import JobError
from odradek_spark.kafka_offsets import KafkaOffsets
from odradek_spark.query import Query
from odradek_spark.storage import LocalFolder
from odradek_spark.topic_guard import AdmittedStart, TopicChangedError, TopicGuard
from tests.support import broker
from tests.support.clients import QUIET, create_topic, produce_all


class Group:
    """One group's member, with a topic of the group's name."""

    def __init__(
        self, cluster: broker.Cluster, group: str, store: str = config.ZOOKEEPER, pattern: str = ""
    ) -> None:
        self.cluster = cluster
        self.name = group
        self.stop = threading.Event()
        self.kafka = None
        if store != config.ZOOKEEPER:
            self.kafka = KafkaOffsets(BrokerAccess(cluster.bootstrap), group)
        self.client = DriverClient(BrokerAccess(cluster.bootstrap), group)
        self.zookeeper = group_znodes.connect(cluster.zookeeper.connect, 20_000, 60)
        self.topics = [group]
        self._pattern = pattern
        self.member: membership.GroupMembership | None = None

    def join(self) -> frozenset[TopicPartition]:
        """Take the group's share as a new member, as a driver does when it starts."""
        self.leave()
        subscription = {self._pattern: 1} if self._pattern else dict.fromkeys(self.topics, 1)
        kind = "white_list" if self._pattern else "static"
        self.member = membership.GroupMembership(
            self.zookeeper, self.name, "pod", subscription, kind, self.kafka
        )
        self.member.join()
        return self.member.acquire_assignment(120, self.stop)

    def leave(self) -> None:
        """Leave the group, as a driver does when it ends."""
        if self.member is not None:
            self.member.leave()
            self.member = None

    def guard(self) -> TopicGuard:
        """Return the guard of a new driver."""
        assert self.member is not None
        return TopicGuard(self.member, self.client, self.stop)

    def start(self, own: Mapping[TopicPartition, int] | None = None) -> AdmittedStart:
        """Start a driver whose checkpoint ends at `own`, as far as its first commit."""
        assigned = self.join()
        guard = self.guard()
        admission = guard.admit(assigned, own or {})
        guard.record()
        return admission

    def commit(self, ends: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of this member."""
        assert self.member is not None
        self.member.commit(ends, 120)

    def reset(self, ends: Mapping[TopicPartition, int], request: bytes = b"r") -> None:
        """Move the offsets as the operator does, once the members have left."""
        self.commit(ends)
        self.zookeeper.set(consumers.incarnations_path(self.name), request)

    def incarnation(self, topic: str | None = None) -> TopicIncarnation:
        """Return what is recorded of a topic."""
        path = consumers.incarnation_path(self.name, topic or self.name)
        return consumers.decode_incarnation(path, self.zookeeper.get(path)[0])

    def offset_znodes(self) -> set[str]:
        """Return the partitions with an offset in ZooKeeper."""
        return set(self.zookeeper.get_children(consumers.offsets_path(self.name, self.name)))

    def produce(self, count: int, partitions: int = 1) -> None:
        """Write records, spread over the partitions."""
        values = [b'{"n": %d}' % number for number in range(count)]
        produce_all(self.cluster.bootstrap, self.name, values, partitions)

    def delete_topic(self, topic: str | None = None) -> None:
        """Delete a topic, and wait until it is gone."""
        self.cluster.delete_topic(topic or self.name)

    def make_anew(self, partitions: int = 1, records: int = 0, topic: str | None = None) -> None:
        """Delete a topic and create it again, with other records."""
        self.delete_topic(topic)
        create_topic(self.cluster.bootstrap, topic or self.name, partitions=partitions)
        if records:
            self.produce(records, partitions)

    def delete_records(self, before: int) -> None:
        """Move the log start of partition 0."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, **QUIET})
        place = ClientPartition(self.name, 0, before)
        assert admin.delete_records([place])[place].result(120).low_watermark == before

    def close(self) -> None:
        """Leave the group."""
        self.stop.set()
        self.leave()
        if self.kafka is not None:
            self.kafka.close()
        self.client.close()
        # An admin client looks for its brokers until nobody holds it.
        del self.client._admin
        self.zookeeper.stop()
        self.zookeeper.close()


def part(group: Group, number: int = 0) -> TopicPartition:
    return TopicPartition(group.name, number)


class Run:
    """Queries of one group after the other, each as a driver starts it."""

    def __init__(self, one: Group, spark: SparkSession, folder: Path, **job: object) -> None:
        self.one = one
        self.folder = folder
        self.out = folder / "out"
        self.checkpoint = folder / "checkpoint"
        self._spark = spark
        text = {
            "group": one.name,
            "bootstrap": one.cluster.bootstrap,
            "zookeeper": "z:1",
            "topics": [one.name],
            "job": {
                "trigger": "availableNow",
                "schema": "n int",
                "sql": "select n, _offset from records",
                "sink": {"parquet": {"path": str(self.out)}},
                **job,
            },
        }
        variables = {"ODRADEK_SPARK_MASTER": "local[2]", "ODRADEK_DATA": str(folder)}
        environment = config_loading.parse_environment(variables, uid=1, gid=1)
        self._job = config_loading.parse_job(json.dumps(text), environment)
        self._query: Query | None = None

    def start(self) -> Query:
        """Start the query over the whole share."""
        assigned = self.one.join()
        assert self.one.member is not None
        self._query = Query(
            self._job,
            LocalFolder(self.checkpoint),
            self._spark,
            self.one.member,
            self.one.client,
            lambda *_: None,
            threading.Event(),
        )
        self._query.start(assigned)
        return self._query

    def read_all(self) -> None:
        """Run until all records are read."""
        query = self.start()
        while not query.await_end(1):
            pass
        query.finish()

    def fails_with(self, query: Query) -> BaseException:
        """Return how the query ends that should not go on."""
        try:
            while not query.await_end(1):
                pass
        except (TopicChangedError, JobError) as error:
            query.finish()
            return error
        pytest.fail("the query read all records")

    def finish(self) -> None:
        """End the last query."""
        if self._query is not None:
            self._query.finish()

    def rows(self) -> list[int]:
        """Return the offsets in the result, with duplicates."""
        names, rows = show.read(self.out)
        return sorted(row[names.index("_offset")] for row in rows)


def committed(one: Group) -> int:
    """Return the offset of partition 0 in ZooKeeper."""
    path = consumers.offset_path(one.name, one.name, 0)
    return int(one.zookeeper.get(path)[0]) if one.zookeeper.exists(path) else 0
