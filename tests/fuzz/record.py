"""Records the requests of real clients, as a start for the fuzzer.

    python -m tests.fuzz.record

The broker advertises the address of a proxy, which keeps one request per client, key and
version. The controller reaches its own broker through it too, so its requests are among them. A
line of `captures.txt` is: client id, key, version, the frame in hexadecimal.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
from confluent_kafka.admin import ConfigResource, NewPartitions

from odradek.protocol import headers
from odradek.protocol.primitives import LENGTH32
from tests.fuzz import corpus
from tests.support import clients, kafka_peer
from tests.support.broker import Cluster
from tests.support.ports import free_port

LONGEST_FRAME = 1500


class Proxy:
    """Forwards connections from one port of the loopback to another, in a thread of its own."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self._target = target
        self.kept: dict[tuple[str, int, int], bytes] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", port)
        asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._target)
            answers = asyncio.create_task(self._copy(other_reader, writer))
            try:
                while True:
                    size = await reader.readexactly(LENGTH32.size)
                    frame = await reader.readexactly(LENGTH32.unpack(size)[0])
                    self._keep(frame)
                    other_writer.write(size + frame)
            finally:
                answers.cancel()
                other_writer.close()
                writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    def _keep(self, frame: bytes) -> None:
        header, _ = headers.decode_request_header(frame)
        client = (header.client_id or "-").split("@")[0].rstrip("0123456789-") or "-"
        if len(frame) <= LONGEST_FRAME:
            self.kept[client, header.api_key, header.api_version] = frame


def _librdkafka(bootstrap: str) -> None:
    where: dict[str, Any] = {"bootstrap.servers": bootstrap, "client.id": "librdkafka"}
    admin = confluent_kafka.admin.AdminClient(where)
    clients.create_topic(bootstrap, "fuzzed-too", 2)
    plain: dict[str, Any] = {"enable.idempotence": False, "compression.type": "lz4"}
    clients.produce_all(bootstrap, corpus.TOPIC, [b"x"], **where)
    clients.produce_all(bootstrap, corpus.TOPIC, [b"x"], **where, **plain)
    consumer = confluent_kafka.Consumer(
        {**where, "group.id": "captured", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([corpus.TOPIC])
    assert consumer.poll(30) is not None
    consumer.commit(asynchronous=False)
    part = confluent_kafka.TopicPartition(corpus.TOPIC, 0, 1_700_000_000_000)
    consumer.offsets_for_times([part], 10)
    consumer.close()
    resource = ConfigResource("topic", corpus.TOPIC, {"retention.ms": "1000000"})
    asked = [
        *admin.describe_configs([resource]).values(),
        *admin.alter_configs([resource]).values(),
        *admin.create_partitions([NewPartitions("fuzzed-too", 3)]).values(),
        *admin.delete_records([confluent_kafka.TopicPartition(corpus.TOPIC, 0, 1)]).values(),
        *admin.describe_consumer_groups(["captured"]).values(),
        admin.list_consumer_groups(),
    ]
    for one in asked:
        one.result(30)
    for done in admin.delete_consumer_groups(["captured"]).values():
        done.result(30)
    admin.delete_topics(["fuzzed-too"])["fuzzed-too"].result(30)


def _kafka_python(bootstrap: str) -> None:
    kafka = clients.kafka
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, client_id="kafka-python")
    producer.send(corpus.TOPIC, b"x").get(30)
    producer.close()
    consumer = kafka.KafkaConsumer(
        corpus.TOPIC,
        bootstrap_servers=bootstrap,
        client_id="kafka-python",
        group_id="captured-too",
        auto_offset_reset="earliest",
    )
    assert consumer.poll(20_000)
    consumer.commit()
    consumer.close()


async def _aiokafka(bootstrap: str) -> None:
    where = {"bootstrap_servers": bootstrap, "client_id": "aiokafka"}
    producer = aiokafka.AIOKafkaProducer(**where)
    await producer.start()
    await producer.send_and_wait(corpus.TOPIC, b"x")
    await producer.stop()
    consumer = aiokafka.AIOKafkaConsumer(
        corpus.TOPIC, **where, group_id="captured-three", auto_offset_reset="earliest"
    )
    await consumer.start()
    await consumer.getone()
    await consumer.commit()
    await consumer.stop()


def _kcat(bootstrap: str) -> None:
    for arguments in (["-L"], ["-C", "-t", corpus.TOPIC, "-e", "-o", "s@1"]):
        command = ["kcat", "-b", bootstrap, "-X", "client.id=kcat", *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


def _java(bootstrap: str) -> None:
    for version in ("2.8.2", "3.9.1", "4.1.0"):
        classpath = kafka_peer.classpath(kafka_peer.clients(version))
        program = kafka_peer.POMS / "JavaClient.java"
        where = (bootstrap, "1", f"java-{version.replace('.', '-')}")
        command = [*kafka_peer.JAVA, "-cp", classpath, str(program), *where]
        subprocess.run(command, check=True, capture_output=True, timeout=300)


def main() -> None:
    """Run the clients and write the file anew."""
    port = free_port()
    settings = {
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
    }
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), settings=settings)
        proxy = Proxy(port, cluster.brokers[1].port)
        bootstrap = f"127.0.0.1:{port}"
        with cluster:
            clients.create_topic(bootstrap, corpus.TOPIC)
            _librdkafka(bootstrap)
            _kafka_python(bootstrap)
            asyncio.run(_aiokafka(bootstrap))
            _kcat(bootstrap)
            _java(bootstrap)
    lines = [
        f"{client} {key} {version} {frame.hex()}\n"
        for (client, key, version), frame in sorted(proxy.kept.items())
    ]
    corpus.CAPTURES.write_text("".join(lines))


if __name__ == "__main__":
    main()
