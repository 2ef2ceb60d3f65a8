"""Members of groups in a process of their own, to be killed: prints "GROUP VALUE" of each record at
once. SIGTERM makes all of them leave.

    python -m tests.support.group_members LIBRARY '{"bootstrap": "", "topic": "", "members": []}'

LIBRARY is confluent, kafka-python, aiokafka or java; a member is one of `Wish`. With `commit` sync
the offsets of each batch are committed before the next one is asked for, with async meanwhile; with
auto they would be after ten minutes.
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
class Wish:
    """One member: its group, assignment strategy, instance id if it is static, way to commit, and
    how long it may be unheard.
    """

    group: str
    strategy: str
    instance: str | None
    commit: str
    session_ms: int = SESSION_MS

    @property
    def by_hand(self) -> bool:
        """Whether this program commits."""
        return self.commit != "auto"


class Members:
    """Such a process, started; `output` takes what it delivers."""

    def __init__(
        self, output: Path, library: str, bootstrap: str, topic: str, wishes: list[Wish]
    ) -> None:
        self._output = output
        members = [asdict(one) for one in wishes]
        document = {"bootstrap": bootstrap, "topic": topic, "members": members}
        command = [sys.executable, "-m", __name__, library, json.dumps(document)]
        environment = {**os.environ, "TMPDIR": str(output.parent)}
        with output.open("wb") as said, output.with_suffix(".log").open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=said, stderr=errors, env=environment)

    def values(self) -> dict[str, Counter[str]]:
        """What was delivered to each group's member."""
        found: dict[str, Counter[str]] = {}
        for line in self._output.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                group, value = line.rstrip("\n").split(" ", 1)
                found.setdefault(group, Counter())[value] += 1
        return found

    def leave(self) -> None:
        """Have every member leave its group."""
        self.process.terminate()
        self.process.wait(120)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()


def tell(wish: Wish, value: bytes) -> None:
    """Deliver one record."""
    # One write for a line: members are threads.
    sys.stdout.write(f"{wish.group} {value.decode()}\n")
    sys.stdout.flush()


def confluent(bootstrap: str, topic: str, wish: Wish, stop: threading.Event) -> None:
    """librdkafka."""
    import confluent_kafka

    refused = threading.Event()

    def committed(error: confluent_kafka.KafkaError | None, _: object) -> None:
        if error is not None and error.code() != confluent_kafka.KafkaError._NO_OFFSET:
            refused.set()

    config = {
        "on_commit": committed,
        "bootstrap.servers": bootstrap,
        "group.id": wish.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": not wish.by_hand,
        "auto.commit.interval.ms": AUTO_COMMIT_MS,
        "session.timeout.ms": wish.session_ms,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "partition.assignment.strategy": wish.strategy,
        "log_level": 0,
    }
    if wish.instance is not None:
        config["group.instance.id"] = wish.instance
    consumer = confluent_kafka.Consumer(config)
    consumer.subscribe([topic])
    due = False
    while not stop.is_set():
        messages = consumer.consume(100, 0.1)
        for message in messages:
            if message.error() is None:
                tell(wish, message.value() or b"")
        due |= wish.by_hand and (bool(messages) or refused.is_set())
        refused.clear()
        if due:
            try:
                if wish.commit == "async":
                    consumer.commit(asynchronous=True)
                else:
                    consumer.commit(asynchronous=False)
                due = False
            except confluent_kafka.KafkaException:
                continue  # a rebalance goes on
    consumer.close()


def in_python(bootstrap: str, wish: Wish) -> dict[str, Any]:
    """What kafka-python and aiokafka call by the same names."""
    return {
        "bootstrap_servers": bootstrap,
        "group_id": wish.group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": not wish.by_hand,
        "auto_commit_interval_ms": AUTO_COMMIT_MS,
        "session_timeout_ms": wish.session_ms,
        "heartbeat_interval_ms": HEARTBEAT_MS,
        "group_instance_id": wish.instance,
    }


def kafka_python(bootstrap: str, topic: str, wish: Wish, stop: threading.Event) -> None:
    """kafka-python."""
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    from tests.support.clients import kafka

    assignors = {RANGE: RangePartitionAssignor, COOPERATIVE: CooperativeStickyAssignor}
    consumer = kafka.KafkaConsumer(
        topic,
        partition_assignment_strategy=[assignors[wish.strategy]],
        **in_python(bootstrap, wish),
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
                tell(wish, record.value)
        due |= wish.by_hand and (bool(records) or refused.is_set())
        refused.clear()
        if due:
            try:
                if wish.commit == "async":
                    consumer.commit_async(callback=committed)
                else:
                    consumer.commit()
                due = False
            except kafka.errors.KafkaError:
                continue  # a rebalance goes on
    consumer.close()


async def aio(bootstrap: str, topic: str, wish: Wish, stop: asyncio.Event) -> None:
    """aiokafka, which knows no cooperative strategy and one way to commit."""
    import aiokafka

    consumer = aiokafka.AIOKafkaConsumer(topic, **in_python(bootstrap, wish))
    await consumer.start()
    due = False
    while not stop.is_set():
        records = await consumer.getmany(timeout_ms=100)
        for batch in records.values():
            for record in batch:
                tell(wish, record.value)
        due |= wish.by_hand and bool(records)
        if due:
            try:
                await consumer.commit()
                due = False
            except aiokafka.errors.KafkaError:
                continue  # a rebalance goes on
    await consumer.stop()


def java(bootstrap: str, topic: str, wishes: list[Wish]) -> None:
    """Kafka's own client; the process becomes its."""
    assignors = {RANGE: "RangeAssignor", COOPERATIVE: "CooperativeStickyAssignor"}
    members = []
    for wish in wishes:
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": wish.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": str(not wish.by_hand).lower(),
            "auto.commit.interval.ms": AUTO_COMMIT_MS,
            "session.timeout.ms": wish.session_ms,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "partition.assignment.strategy": "org.apache.kafka.clients.consumer."
            + assignors[wish.strategy],
        }
        if wish.instance is not None:
            config["group.instance.id"] = wish.instance
        given = " ".join(f"{key}={value}" for key, value in config.items())
        members.append(f"{wish.commit} {given}")
    classpath = kafka_peer.classpath(kafka_peer.clients(JAVA_CLIENT))
    classes = jvm.compiled(Path(__file__).with_name("GroupMembers.java"), classpath)
    own = ("-Xmx256m", kafka_peer.scratch(Path(tempfile.gettempdir())))
    everything = f"{classes}:{classpath}"
    line = [*kafka_peer.JAVA, *own, "-cp", everything, "GroupMembers", topic, *members]
    os.execvp(line[0], line)


def run_threads(
    member: Callable[[str, str, Wish, threading.Event], None],
    bootstrap: str,
    topic: str,
    wishes: list[Wish],
) -> None:
    """One thread for each member, until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threads = [
        threading.Thread(target=member, args=(bootstrap, topic, one, stop)) for one in wishes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def run_tasks(bootstrap: str, topic: str, wishes: list[Wish]) -> None:
    """One task for each member, until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncio.TaskGroup() as members:
        for one in wishes:
            members.create_task(aio(bootstrap, topic, one, stop))


def main() -> None:
    """Run until killed or told to leave."""
    library, document = sys.argv[1], json.loads(sys.argv[2])
    bootstrap, topic = document["bootstrap"], document["topic"]
    wishes = [Wish(**one) for one in document["members"]]
    warnings.simplefilter("ignore")
    if library == "confluent":
        run_threads(confluent, bootstrap, topic, wishes)
    elif library == "kafka-python":
        run_threads(kafka_python, bootstrap, topic, wishes)
    elif library == "java":
        java(bootstrap, topic, wishes)
    else:
        asyncio.run(run_tasks(bootstrap, topic, wishes))


if __name__ == "__main__":
    main()
