"""A member of a group as a process of its own, to be killed: prints each record's value at once.

    python -m tests.support.group_member LIBRARY '{"bootstrap": ..., "group": ..., ...}'

LIBRARY is confluent, kafka-python, aiokafka or java. With `commit` sync the offsets of each batch
are committed before the next one is asked for; with auto they would be after a minute.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from tests.support import kafka_peer

SESSION_MS = 2000
HEARTBEAT_MS = 300
AUTO_COMMIT_MS = 60_000
JAVA_CLIENT = "3.9.1"
ASSIGNORS = {"range": "RangeAssignor", "cooperative-sticky": "CooperativeStickyAssignor"}


def tell(value: bytes) -> None:
    """Deliver one record."""
    print(value.decode(), flush=True)


def confluent(settings: dict[str, Any]) -> None:
    """librdkafka."""
    import confluent_kafka

    by_hand = settings["commit"] == "sync"
    config = {
        "bootstrap.servers": settings["bootstrap"],
        "group.id": settings["group"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": not by_hand,
        "auto.commit.interval.ms": AUTO_COMMIT_MS,
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "partition.assignment.strategy": settings["strategy"],
        "log_level": 0,
    }
    if settings["instance"] is not None:
        config["group.instance.id"] = settings["instance"]
    consumer = confluent_kafka.Consumer(config)
    consumer.subscribe([settings["topic"]])
    while True:
        messages = consumer.consume(100, 0.1)
        for message in messages:
            if message.error() is None:
                tell(message.value())
        if by_hand and messages:
            consumer.commit(asynchronous=False)


def in_python(settings: dict[str, Any]) -> dict[str, Any]:
    """What kafka-python and aiokafka call by the same names."""
    return {
        "bootstrap_servers": settings["bootstrap"],
        "group_id": settings["group"],
        "auto_offset_reset": "earliest",
        "enable_auto_commit": settings["commit"] == "auto",
        "auto_commit_interval_ms": AUTO_COMMIT_MS,
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": HEARTBEAT_MS,
        "group_instance_id": settings["instance"],
    }


def kafka_python(settings: dict[str, Any]) -> None:
    """kafka-python."""
    from tests.support.clients import kafka

    by_hand = settings["commit"] == "sync"
    consumer = kafka.KafkaConsumer(settings["topic"], **in_python(settings))
    while True:
        records = consumer.poll(timeout_ms=100)
        for batch in records.values():
            for record in batch:
                tell(record.value)
        if by_hand and records:
            consumer.commit()


async def aio(settings: dict[str, Any]) -> None:
    """aiokafka."""
    import aiokafka

    by_hand = settings["commit"] == "sync"
    consumer = aiokafka.AIOKafkaConsumer(settings["topic"], **in_python(settings))
    await consumer.start()
    while True:
        records = await consumer.getmany(timeout_ms=100)
        for batch in records.values():
            for record in batch:
                tell(record.value)
        if by_hand and records:
            await consumer.commit()


def java(settings: dict[str, Any]) -> None:
    """Kafka's own client; the process becomes its."""
    config = {
        "bootstrap.servers": settings["bootstrap"],
        "group.id": settings["group"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": str(settings["commit"] == "auto").lower(),
        "auto.commit.interval.ms": AUTO_COMMIT_MS,
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer."
        + ASSIGNORS[settings["strategy"]],
    }
    if settings["instance"] is not None:
        config["group.instance.id"] = settings["instance"]
    classpath = kafka_peer.classpath(kafka_peer.clients(JAVA_CLIENT))
    program = str(Path(__file__).with_name("GroupMember.java"))
    command = [*kafka_peer.JAVA, "-Xmx128m", "-cp", classpath, program]
    given = [f"{key}={value}" for key, value in config.items()]
    os.execvp(command[0], [*command, settings["topic"], settings["commit"], *given])


def main() -> None:
    """Run until killed."""
    library, settings = sys.argv[1], json.loads(sys.argv[2])
    warnings.simplefilter("ignore")
    if library == "confluent":
        confluent(settings)
    elif library == "kafka-python":
        kafka_python(settings)
    elif library == "java":
        java(settings)
    else:
        asyncio.run(aio(settings))


if __name__ == "__main__":
    main()
