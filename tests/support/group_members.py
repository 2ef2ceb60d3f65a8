"""Runs group members in a process of their own, which tests can kill.

Prints "GROUP VALUE" of each record at once. On SIGTERM all members leave their groups.

    python -m tests.support.group_members LIBRARY '{"bootstrap": "", "topic": "", "members": []}'

LIBRARY is confluent, kafka-python, aiokafka or java; each member is a `MemberSpec`. With `commit`
sync a member commits the offsets of each batch before it polls again, with async meanwhile; with
auto it would commit after ten minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.support import jvm, kafka_peer

# Longer than a busy machine keeps a living member from being heard.
SESSION_MS = 10_000
HEARTBEAT_MS = 300
# Later than any crash.
AUTO_COMMIT_MS = 600_000
JAVA_CLIENT = "3.9.1"
RANGE, COOPERATIVE = "range", "cooperative-sticky"


@dataclass(frozen=True)
class MemberSpec:
    """One member. `instance` is the id of a static member, `commit` sync, async or auto."""

    group: str
    strategy: str
    instance: str | None
    commit: str
    session_ms: int = SESSION_MS

    @property
    def by_hand(self) -> bool:
        """Whether this program commits offsets by itself."""
        return self.commit != "auto"


class Members:
    """Such a process, which writes the records to `output`."""

    def __init__(
        self, output: Path, library: str, bootstrap: str, topic: str, specs: list[MemberSpec]
    ) -> None:
        self._output = output
        members = [asdict(one) for one in specs]
        document = {"bootstrap": bootstrap, "topic": topic, "members": members}
        command = [sys.executable, "-m", __name__, library, json.dumps(document)]
        environment = {**os.environ, "TMPDIR": str(output.parent)}
        with output.open("wb") as said, output.with_suffix(".log").open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=said, stderr=errors, env=environment)

    def values(self) -> dict[str, Counter[str]]:
        """Return the delivered values per group."""
        found: dict[str, Counter[str]] = {}
        for line in self._output.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                group, value = line.rstrip("\n").split(" ", 1)
                found.setdefault(group, Counter())[value] += 1
        return found

    def leave(self) -> None:
        """Make every member leave its group."""
        self.process.terminate()
        self.process.wait(120)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        self.process.wait()


def tell(spec: MemberSpec, value: bytes) -> None:
    """Print one record."""
    # One write per line, because members are threads.
    sys.stdout.write(f"{spec.group} {value.decode()}\n")
    sys.stdout.flush()


def confluent(bootstrap: str, topic: str, spec: MemberSpec, stop: threading.Event) -> None:
    """Run a member with librdkafka."""
    import confluent_kafka

    refused = threading.Event()

    def committed(error: confluent_kafka.KafkaError | None, _: object) -> None:
        if error is not None and error.code() != confluent_kafka.KafkaError._NO_OFFSET:
            refused.set()

    config = {
        "on_commit": committed,
        "bootstrap.servers": bootstrap,
        "group.id": spec.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": not spec.by_hand,
        "auto.commit.interval.ms": AUTO_COMMIT_MS,
        "session.timeout.ms": spec.session_ms,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "partition.assignment.strategy": spec.strategy,
        "log_level": 0,
    }
    if spec.instance is not None:
        config["group.instance.id"] = spec.instance
    consumer = confluent_kafka.Consumer(config)
    consumer.subscribe([topic])
    due = False
    while not stop.is_set():
        messages = consumer.consume(100, 0.1)
        for message in messages:
            if message.error() is None:
                tell(spec, message.value() or b"")
        due |= spec.by_hand and (bool(messages) or refused.is_set())
        refused.clear()
        if due:
            try:
                if spec.commit == "async":
                    consumer.commit(asynchronous=True)
                else:
                    consumer.commit(asynchronous=False)
                due = False
            except confluent_kafka.KafkaException:
                continue  # a rebalance goes on
    consumer.close()


def in_python(bootstrap: str, spec: MemberSpec) -> dict[str, Any]:
    """Return the settings that kafka-python and aiokafka have in common."""
    return {
        "bootstrap_servers": bootstrap,
        "group_id": spec.group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": not spec.by_hand,
        "auto_commit_interval_ms": AUTO_COMMIT_MS,
        "session_timeout_ms": spec.session_ms,
        "heartbeat_interval_ms": HEARTBEAT_MS,
        "group_instance_id": spec.instance,
    }


def kafka_python(bootstrap: str, topic: str, spec: MemberSpec, stop: threading.Event) -> None:
    """Run a member with kafka-python."""
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    from tests.support.clients import kafka

    assignors = {RANGE: RangePartitionAssignor, COOPERATIVE: CooperativeStickyAssignor}
    consumer = kafka.KafkaConsumer(
        topic,
        partition_assignment_strategy=[assignors[spec.strategy]],
        **in_python(bootstrap, spec),
    )
    # A topic that it first hears of while it is a member makes it join again, and kafka-python 3.0
    # forgets the outcome of that, and all heartbeats with it, if a poll ends meanwhile.
    while not consumer.partitions_for_topic(topic):
        stop.wait(0.1)
    refused = threading.Event()

    def committed(_: object, answer: object) -> None:
        if isinstance(answer, Exception):
            refused.set()

    due = False
    while not stop.is_set():
        records = consumer.poll(timeout_ms=100)
        for batch in records.values():
            for record in batch:
                tell(spec, record.value)
        due |= spec.by_hand and (bool(records) or refused.is_set())
        refused.clear()
        if due:
            try:
                if spec.commit == "async":
                    consumer.commit_async(callback=committed)
                else:
                    consumer.commit()
                due = False
            except kafka.errors.KafkaError:
                continue  # a rebalance goes on
    consumer.close()


async def aio(bootstrap: str, topic: str, spec: MemberSpec, stop: asyncio.Event) -> None:
    """Run a member with aiokafka, which has no cooperative strategy and one way to commit."""
    import aiokafka

    consumer = aiokafka.AIOKafkaConsumer(topic, **in_python(bootstrap, spec))
    await consumer.start()
    due = False
    while not stop.is_set():
        records = await consumer.getmany(timeout_ms=100)
        for batch in records.values():
            for record in batch:
                tell(spec, record.value)
        due |= spec.by_hand and bool(records)
        if due:
            try:
                await consumer.commit()
                due = False
            except aiokafka.errors.KafkaError:
                continue  # a rebalance goes on
    await consumer.stop()


def java(bootstrap: str, topic: str, specs: list[MemberSpec]) -> None:
    """Replace this process by one with Kafka's Java client."""
    assignors = {RANGE: "RangeAssignor", COOPERATIVE: "CooperativeStickyAssignor"}
    members = []
    for spec in specs:
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": spec.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": str(not spec.by_hand).lower(),
            "auto.commit.interval.ms": AUTO_COMMIT_MS,
            "session.timeout.ms": spec.session_ms,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "partition.assignment.strategy": "org.apache.kafka.clients.consumer."
            + assignors[spec.strategy],
        }
        if spec.instance is not None:
            config["group.instance.id"] = spec.instance
        given = " ".join(f"{key}={value}" for key, value in config.items())
        members.append(f"{spec.commit} {given}")
    classpath = kafka_peer.classpath(kafka_peer.clients(JAVA_CLIENT))
    classes = jvm.compiled(Path(__file__).with_name("GroupMembers.java"), classpath)
    own = ("-Xmx256m", kafka_peer.scratch(Path(tempfile.gettempdir())))
    everything = f"{classes}:{classpath}"
    line = [*kafka_peer.JAVA, *own, "-cp", everything, "GroupMembers", topic, *members]
    os.execvp(line[0], line)


def run_threads(
    member: Callable[[str, str, MemberSpec, threading.Event], None],
    bootstrap: str,
    topic: str,
    specs: list[MemberSpec],
) -> None:
    """Run one thread per member until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threads = [threading.Thread(target=member, args=(bootstrap, topic, one, stop)) for one in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def run_tasks(bootstrap: str, topic: str, specs: list[MemberSpec]) -> None:
    """Run one task per member until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncio.TaskGroup() as members:
        for one in specs:
            members.create_task(aio(bootstrap, topic, one, stop))


def main() -> None:
    """Run the members until SIGTERM or SIGKILL."""
    library, document = sys.argv[1], json.loads(sys.argv[2])
    bootstrap, topic = document["bootstrap"], document["topic"]
    specs = [MemberSpec(**one) for one in document["members"]]
    warnings.simplefilter("ignore")
    if library == "confluent":
        run_threads(confluent, bootstrap, topic, specs)
    elif library == "kafka-python":
        run_threads(kafka_python, bootstrap, topic, specs)
    elif library == "java":
        java(bootstrap, topic, specs)
    else:
        asyncio.run(run_tasks(bootstrap, topic, specs))


if __name__ == "__main__":
    main()
