"""Kafka's Java clients through its tools: produce, consume, groups, files (P1-P3, G, L1)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker import Cluster
from tests.support.clients import await_leaders
from tests.support.kafka_peer import PATIENT_PRODUCER, Tools

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
GROUPS = "kafka.admin.ConsumerGroupCommand"
RECORDS = 3000
RECORD_BYTES = 200
LATER, LATER_MS = "2100-01-01T00:00:00.000", 4_102_444_800_000
# By default brokers have five seconds for each answer.
PATIENT = ("--timeout", "60000")


def create(
    cluster: Cluster, admin: AdminClient, topic: str, partitions: int, **config: str
) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    wanted = NewTopic(topic, partitions, 2, config=settings)
    admin.create_topics([wanted], operation_timeout=60)[topic].result(120)
    # The console producer tries for half a second only.
    await_leaders(cluster.bootstrap, topic, partitions)


def group_rows(tools: Tools, cluster: Cluster, group: str) -> dict[int, tuple[str, str, str]]:
    """By partition: committed offset, log end, lag, as the tool prints them."""
    said = tools.run(
        *(GROUPS, "--bootstrap-server", cluster.bootstrap, *PATIENT),
        *("--describe", "--group", group),
    )
    rows = [line.split() for line in said.splitlines() if line.startswith(group + " ")]
    return {int(row[2]): (row[3], row[4], row[5]) for row in rows}


def test_console_clients_share_records_through_a_group(
    cluster: Cluster, admin: AdminClient, tools: Tools
) -> None:
    create(cluster, admin, "console", 2)
    sent = sorted(f"key{number}:value {number}" for number in range(50))
    tools.run(
        *(*PATIENT_PRODUCER, "--bootstrap-server", cluster.bootstrap),
        *("--topic", "console", "--request-required-acks", "all", "--compression-codec", "zstd"),
        *("--property", "parse.key=true", "--property", "key.separator=:"),
        stdin="\n".join(sent) + "\n",
    )

    def consume(count: int) -> list[str]:
        said = tools.run(
            *("kafka.tools.ConsoleConsumer", "--bootstrap-server", cluster.bootstrap),
            *("--topic", "console", "--group", "readers", "--from-beginning"),
            *("--max-messages", str(count), "--timeout-ms", "120000"),
            *("--property", "print.key=true", "--property", "key.separator=:"),
        )
        return sorted(said.splitlines())

    assert consume(50) == sent
    rows = group_rows(tools, cluster, "readers")
    assert rows.keys() == {0, 1}
    assert sum(int(committed) for committed, _, _ in rows.values()) == 50
    assert all(committed == end and lag == "0" for committed, end, lag in rows.values())

    at = (GROUPS, "--bootstrap-server", cluster.bootstrap, *PATIENT)
    listed = [line.split() for line in tools.run(*at, "--list", "--state").splitlines()]
    assert ["readers", "Empty"] in listed
    tools.run(
        *(*at, "--reset-offsets", "--group", "readers", "--topic", "console"),
        *("--to-earliest", "--execute"),
    )
    assert {row[0] for row in group_rows(tools, cluster, "readers").values()} == {"0"}
    assert consume(50) == sent
    assert "was successful" in tools.run(*at, "--delete", "--group", "readers")


@pytest.fixture(scope="module")
def spoken(cluster: Cluster, admin: AdminClient, tools: Tools) -> list[str]:
    """Lines of the topic `spoken`, ten of each codec by ConsoleProducer, and five that librdkafka
    wrote with headers and times."""
    create(cluster, admin, "spoken", 1)
    lines: list[str] = []
    for codec in CODECS:
        some = [f"NO_HEADERS|{codec}{number}|value {number} " + "x" * 50 for number in range(10)]
        tools.run(
            *(*PATIENT_PRODUCER, "--bootstrap-server", cluster.bootstrap),
            *("--topic", "spoken", "--compression-codec", codec),
            *("--property", "parse.key=true", "--property", "key.separator=|"),
            stdin="".join(line.split("|", 1)[1] + "\n" for line in some),
        )
        lines += some
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for number in range(5):
        headers: list[tuple[str, str | bytes | None]] = [("number", str(number)), ("more", "yes")]
        producer.produce("spoken", b"last", b"k", 0, timestamp=LATER_MS + number, headers=headers)
        lines.append(f"number:{number},more:yes|k|last")
    assert producer.flush(60) == 0
    return lines


def test_console_consumer_reads_every_codec_keys_and_headers_from_an_offset_on(
    cluster: Cluster, tools: Tools, spoken: list[str]
) -> None:
    for offset in (0, 13):
        said = tools.run(
            *("kafka.tools.ConsoleConsumer", "--bootstrap-server", cluster.bootstrap),
            *("--topic", "spoken", "--partition", "0", "--offset", str(offset)),
            *("--max-messages", str(len(spoken) - offset), "--timeout-ms", "60000"),
            *("--property", "print.key=true", "--property", "key.separator=|"),
            *("--property", "print.headers=true"),
        )
        assert said.splitlines() == spoken[offset:]


def test_tools_find_offsets_by_time(cluster: Cluster, tools: Tools, spoken: list[str]) -> None:
    shell = ("kafka.tools.GetOffsetShell", "--broker-list", cluster.bootstrap, "--topic", "spoken")
    assert tools.run(*shell, "--time", str(LATER_MS + 2)).split() == ["spoken:0:52"]
    said = tools.run(
        *(GROUPS, "--bootstrap-server", cluster.bootstrap, "--reset-offsets", "--execute"),
        *("--group", "by-time", "--topic", "spoken", "--to-datetime", LATER, *PATIENT),
    )
    assert ["by-time", "spoken", "0", "50"] in [line.split() for line in said.splitlines()], said


@pytest.fixture(scope="module")
def measured(cluster: Cluster, admin: AdminClient, tools: Tools) -> str:
    """A topic filled by ProducerPerformance with every codec."""
    create(cluster, admin, "measured", 1, segment_bytes="150000", index_interval_bytes="1000")
    for codec in CODECS:
        said = tools.run(
            *("org.apache.kafka.tools.ProducerPerformance", "--topic", "measured"),
            *("--num-records", str(RECORDS), "--record-size", str(RECORD_BYTES)),
            *("--throughput", "-1", "--producer-props", f"bootstrap.servers={cluster.bootstrap}"),
            *("acks=all", "enable.idempotence=true", f"compression.type={codec}"),
            "batch.size=4000",
        )
        assert f"{RECORDS} records sent" in said
    return "measured"


def test_every_codec_of_the_java_producer_reaches_the_java_consumer(
    cluster: Cluster, tools: Tools, measured: str
) -> None:
    total = RECORDS * len(CODECS)
    said = tools.run(
        *("kafka.tools.ConsumerPerformance", "--bootstrap-server", cluster.bootstrap),
        *("--topic", measured, "--messages", str(total), "--group", "measuring"),
        *("--timeout", "120000"),
    )
    consumed = said.splitlines()[-1].split(", ")
    assert int(consumed[4]) == total
    assert float(consumed[2]) == pytest.approx(total * RECORD_BYTES / 2**20, abs=0.001)
    offsets = ("kafka.tools.GetOffsetShell", "--broker-list", cluster.bootstrap)
    assert tools.run(*offsets, "--topic", measured).split() == [f"{measured}:0:{total}"]


@pytest.mark.parametrize("broker_id", [1, 2])
def test_kafka_reads_the_files_of_leader_and_follower(
    cluster: Cluster, tools: Tools, measured: str, broker_id: int
) -> None:
    [folder] = cluster.brokers[broker_id].partition_folders(measured)

    def dump(paths: list[Path], *options: str) -> list[str]:
        files = ",".join(map(str, paths))
        return tools.run("kafka.tools.DumpLogSegments", "--files", files, *options).splitlines()

    logs = sorted(folder.glob("*.log"))
    assert len(logs) > 3
    lines = dump(logs, "--deep-iteration")
    found = [line for line in lines if line.startswith("| offset: ")]
    assert [int(line.split()[2]) for line in found] == list(range(RECORDS * len(CODECS)))
    batches = [line for line in lines if line.startswith("baseOffset: ")]
    assert all("isvalid: true" in line for line in batches)
    used = {line.split("compresscodec: ")[1].split()[0] for line in batches}
    assert used == {codec.upper() for codec in CODECS}
    indexes = sorted(folder.glob("*.index")) + sorted(folder.glob("*.timeindex"))
    said = dump(indexes, "--verify-index-only")
    # The newest entries of the segment that is being written may still be in memory.
    unwritten = f"{logs[-1].with_suffix('.index')} is empty."
    assert [line for line in said if line != unwritten] == [f"Dumping {path}" for path in indexes]


def test_log_directories_are_described(cluster: Cluster, tools: Tools, measured: str) -> None:
    said = tools.run(
        *("kafka.admin.LogDirsCommand", "--bootstrap-server", cluster.bootstrap),
        *("--describe", "--topic-list", measured),
    )
    described = json.loads(said.splitlines()[-1])["brokers"]
    assert [one["broker"] for one in described] == [1, 2]
    for one in described:
        broker = cluster.brokers[one["broker"]]
        [folder] = broker.partition_folders(measured)
        [directory] = one["logDirs"]
        assert (directory["logDir"], directory["error"]) == (str(broker.log_dir), None)
        assert directory["partitions"] == [
            {
                "partition": f"{measured}-0",
                "size": sum(path.stat().st_size for path in folder.glob("*.log")),
                "offsetLag": 0,
                "isFuture": False,
            }
        ]


def test_records_are_deleted_up_to_an_offset(
    cluster: Cluster, admin: AdminClient, tools: Tools
) -> None:
    create(cluster, admin, "shortened", 1)
    tools.run(
        *(*PATIENT_PRODUCER, "--bootstrap-server", cluster.bootstrap),
        *("--topic", "shortened", "--request-required-acks", "all"),
        stdin="\n".join(map(str, range(20))) + "\n",
    )
    entry = {"topic": "shortened", "partition": 0, "offset": 12}
    path = tools.file("records.json", json.dumps({"partitions": [entry], "version": 1}))
    said = tools.run(
        *("kafka.admin.DeleteRecordsCommand", "--bootstrap-server", cluster.bootstrap),
        *("--offset-json-file", path),
    )
    assert "partition: shortened-0\tlow_watermark: 12" in said
    offsets = ("kafka.tools.GetOffsetShell", "--broker-list", cluster.bootstrap)
    assert tools.run(*offsets, "--topic", "shortened", "--time", "-2").split() == ["shortened:0:12"]
