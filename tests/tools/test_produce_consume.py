"""`odradek produce` and `odradek consume` against real brokers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from odradek.tools import key_partitions
from odradek.tools.client import EARLIEST, ToolClient, parse_addresses
from odradek.tools.consume import Found, OffsetGoneError, RecordReader
from odradek.values import TopicPartition
from tests.support import preloaded
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.clients import QUIET, await_leaders, create_topic

# The coordinator's topic has one replica here.
SETTINGS = {**STEADY, "offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "1"}

SHAPES = {
    "lines": 3,
    "ends": 1,
    "small": 1,
    "grouped": 2,
    "keys": 7,
    "typed": 1,
    "large": 1,
    "deleted": 1,
    "anew": 1,
    "few": 1,
    "files": 1,
    "empty": 1,
    "growing": 1,
}
# A leader hears later of what is changed later.
CONFIGS = {"small": {"max.message.bytes": "1000"}}
FIRST = ("--from-beginning", "--max-messages")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), 2, SETTINGS) as running:
        for topic, partitions in SHAPES.items():
            create_topic(running.bootstrap, topic, partitions, config=CONFIGS.get(topic))
        yield running


def produce(
    cluster: Cluster, lines: bytes, *arguments: str, status: int = 0
) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        [*command(cluster, "produce"), *arguments], input=lines, capture_output=True, check=False
    )
    assert done.returncode == status, done.stderr
    assert b"Traceback" not in done.stderr
    return done


def command(cluster: Cluster, name: str) -> list[str]:
    return [sys.executable, "-m", "odradek", name, "--bootstrap-server", cluster.bootstrap]


def consume(cluster: Cluster, *arguments: str, status: int = 0) -> str:
    done = preloaded.run(
        "odradek", "consume", *arguments, "--bootstrap-server", cluster.bootstrap, timeout=300
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if status else done.stdout


def consumed(cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in consume(cluster, *arguments, "-o", "json").splitlines()]


def test_keys_have_the_partitions_of_other_clients(cluster: Cluster) -> None:
    chosen: dict[bytes, int | None] = {}

    def told(error: object, message: Message) -> None:
        assert error is None, error
        key = message.key()
        assert isinstance(key, bytes)
        chosen[key] = message.partition()

    java_like = {"bootstrap.servers": cluster.bootstrap, "partitioner": "murmur2", **QUIET}
    producer = Producer(java_like)
    keys = [bytes([200, *range(size)]) for size in range(12)]
    for key in keys:
        producer.produce("keys", b"", key, on_delivery=told)
    assert producer.flush(300) == 0
    assert chosen == {key: key_partitions.partition_of(key, 7) for key in keys}


def test_lines_become_records_and_lines_again(cluster: Cluster) -> None:
    sent = [f"key-{number % 5}=value={number} \u00fc" for number in range(2000)]
    text = "\n".join(sent).encode()
    done = produce(cluster, text, "lines", "--key-separator", "=")
    assert done.stderr == b"2000 records written to topic lines\n"
    found = consumed(cluster, "lines", "--from-beginning", "--max-messages", "2000")
    assert sorted(f"{one['key']}={one['value']}" for one in found) == sorted(sent)
    for one in found:
        assert one["partition"] == key_partitions.partition_of(one["key"].encode(), 3)
    partition = found[0]["partition"]
    offsets = [one["offset"] for one in found if one["partition"] == partition]
    assert offsets == list(range(len(offsets)))
    one_partition = ("lines", "--partition", str(partition))
    later = consumed(cluster, *one_partition, "--offset", "3", "--max-messages", "1")
    assert later[0]["offset"] == 3
    value = consume(cluster, *one_partition, "--offset", "earliest", "--max-messages", "1")
    assert value == found[0]["value"] + "\n" or value.startswith("value=")


def test_groups_go_on_where_they_were(cluster: Cluster) -> None:
    produce(cluster, b"a\nb\nc\nd\n", "grouped", "--partition", "1")
    arguments = ("grouped", "--group", "g", "--from-beginning")
    first = [one["value"] for one in consumed(cluster, *arguments, "--max-messages", "3")]
    rest = [one["value"] for one in consumed(cluster, *arguments, "--max-messages", "1")]
    assert (first, rest) == (["a", "b", "c"], ["d"])


def test_a_record_that_is_refused_ends_with_status_1(cluster: Cluster) -> None:
    # A batch of these is too large, and none of the others.
    lines = b"x\n" * 2000 + b"x" * 5000 + b"\nlast\n"
    said = produce(cluster, lines, "small", status=1).stderr
    assert said == b"2000 records written to topic small\nodradek: small-0: MESSAGE_TOO_LARGE\n"
    counted = consume(cluster, "small", "--from-beginning", "--max-messages", "2000")
    assert counted == "x\n" * 2000
    said = produce(cluster, b"a:b\nc\n", "small", "--key-separator", ":", status=1).stderr
    assert said.endswith(b"\nodradek: line 2 has no key separator ':'\n")


def test_lines_that_fit_are_written_whatever_comes_before_them(cluster: Cluster) -> None:
    lines = b"\n".join(b"x" * size for size in (900_000, 200_000, 900_000, 0))
    assert produce(cluster, lines + b"\n", "large").stderr == b"4 records written to topic large\n"
    sizes = [len(one["value"]) for one in consumed(cluster, "large", *FIRST, "4")]
    assert sizes == [900_000, 200_000, 900_000, 0]


def test_a_line_without_end_is_refused(cluster: Cluster) -> None:
    endless = " ".join(["cat /dev/zero |", *command(cluster, "produce"), "large"])
    done = subprocess.run(["bash", "-c", endless], capture_output=True, check=False, timeout=300)
    assert done.returncode == 1
    assert b"odradek: a line is larger than 104857600 bytes\n" in done.stderr


def test_files_that_cannot_be_used_are_one_line(cluster: Cluster) -> None:
    produce(cluster, b"a\n", "files")
    for name, arguments, redirection, said, status in (
        ("produce", "files", "<&-", "stdin is closed", 2),
        ("produce", "files", "0>/dev/null", "cannot read stdin: Bad file descriptor", 2),
        ("consume", "files --from-beginning", ">&-", "stdout is closed", 2),
        (
            *("consume", "files --from-beginning", ">/dev/full"),
            *("cannot write to stdout: No space left on device", 1),
        ),
    ):
        shell = " ".join([*command(cluster, name), arguments, redirection])
        done = subprocess.run(["bash", "-c", shell], capture_output=True, check=False, timeout=300)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (
            status,
            f"odradek: {said}".encode(),
        )
        assert b"Traceback" not in done.stderr


def test_a_topic_that_is_deleted_ends_its_consumer(cluster: Cluster) -> None:
    produce(cluster, b"a\n", "deleted")
    process = subprocess.Popen(
        [*command(cluster, "consume"), "deleted", "--from-beginning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"a\n"
        gone = preloaded.run(
            *("odradek", "topics", "delete", "deleted"),
            *("--bootstrap-server", cluster.bootstrap),
            timeout=300,
        )
        assert gone.returncode == 0, gone.stderr
        _, said = process.communicate(timeout=300)
        *_, last = said.splitlines()
        assert last == b"odradek: topic deleted does not exist any more"
        assert process.returncode == 1
    finally:
        process.kill()
        process.wait()


def test_partitions_that_are_added_while_it_reads_are_read(cluster: Cluster) -> None:
    process = subprocess.Popen(
        [*command(cluster, "consume"), "growing", *FIRST, "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        produce(cluster, b"a\n", "growing")
        assert process.stdout is not None
        assert process.stdout.readline() == b"a\n"
        words = ("topics", "alter", "growing", "--partitions", "2")
        grown = preloaded.run(
            "odradek", *words, "--bootstrap-server", cluster.bootstrap, timeout=300
        )
        assert grown.returncode == 0, grown.stderr
        await_leaders(cluster.bootstrap, "growing", 2)
        produce(cluster, b"b\n", "growing", "--partition", "1")
        rest, said = process.communicate(timeout=300)
        assert (rest, said, process.returncode) == (b"b\n", b"", 0)
    finally:
        process.kill()
        process.wait()


async def test_a_topic_made_anew_that_reaches_beyond_its_reader_is_noticed(
    cluster: Cluster,
) -> None:
    def make_anew() -> None:
        words = ("topics", "delete", "anew", "--bootstrap-server", cluster.bootstrap)
        assert preloaded.run("odradek", *words, timeout=300).returncode == 0
        create_topic(cluster.bootstrap, "anew", 1)
        produce(cluster, b"b\nc\nd\n", "anew")

    await asyncio.to_thread(produce, cluster, b"a\n", "anew")
    client = ToolClient(parse_addresses(cluster.bootstrap))
    await client.connect()
    try:
        reader = RecordReader(client, [TopicPartition("anew", 0)])
        await reader.seek(EARLIEST, None)
        reading = reader.records()
        values: list[bytes | None] = []
        while not values:
            values += [record.value for _, record in await anext(reading)]
        assert values == [b"a"]
        await asyncio.to_thread(make_anew)
        with pytest.raises(OffsetGoneError, match=r"^anew-0 has no offset 1 any more: "):
            await _next_records(reading)
    finally:
        await client.close()


async def _next_records(reading: AsyncIterator[Found]) -> Found:
    while True:
        found = await anext(reading)
        if found:
            return found


def test_mistakes_are_one_line(cluster: Cluster) -> None:
    said = produce(cluster, b"", "nowhere", status=2).stderr
    assert said == b"odradek: topic nowhere does not exist\n"
    said = produce(cluster, b"", "empty", "--partition", "1", status=2).stderr
    assert said == b"odradek: topic empty has no partition 1, but 0 to 0\n"
    for arguments, expected in (
        (("nowhere",), "topic nowhere does not exist"),
        (("empty", "--partition", "4"), "topic empty has no partition 4, but 0 to 0"),
        (("empty", "--offset", "1"), "--offset goes with --partition"),
        (("empty", "--partition", "0", "--offset", "x"), "--offset x is neither a number"),
        (("empty", "--partition", "0", "--offset", "99"), "empty-0 has no offset 99"),
    ):
        assert consume(cluster, *arguments, status=2).startswith(f"odradek: {expected}")


def test_readers_that_go_and_ctrl_c_end_quietly(cluster: Cluster, tmp_path: Path) -> None:
    produce(cluster, b"end\n" * 20000, "ends")
    shell = " ".join([*command(cluster, "consume"), "ends", "--from-beginning", "| head -n 1"])
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell}"], capture_output=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"end\n", b"")
    # Without more to write it notices, too.
    shell = " ".join([*command(cluster, "consume"), "few", "--from-beginning", "| head -n 1"])
    produce(cluster, b"one\ntwo\n", "few")
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell}"], capture_output=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"one\n", b"")
    output = tmp_path / "output"
    with output.open("wb") as stdout:
        process = subprocess.Popen(
            [*command(cluster, "consume"), "ends", "--from-beginning"],
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
    try:
        wait_until(lambda: output.stat().st_size == 4 * 20000, "all is read", 300)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
        assert (process.returncode, said) == (0, b"")
    finally:
        process.kill()
        process.wait()


def test_producer_that_is_interrupted_does_not_wait_for_a_line(cluster: Cluster) -> None:
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [*command(cluster, "produce"), "typed"],
        stdin=reading,
        stderr=subprocess.PIPE,
    )
    os.close(reading)
    try:
        os.write(writing, b"interrupted\n")
        arguments = ("typed", "--from-beginning", "--max-messages", "1")
        assert consume(cluster, *arguments) == "interrupted\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
        assert process.returncode == 130
        assert said.endswith(b" records written to topic typed\n")
    finally:
        os.close(writing)
        process.kill()
        process.wait()


LATE_LINE = """
import asyncio, threading
from odradek.tools import produce

async def take_first():
    async for lines in produce._stdin():
        return

asyncio.run(take_first())
[reader] = [one for one in threading.enumerate() if one.name == "stdin"]
print("interrupted", flush=True)
reader.join()
"""


def test_a_line_that_comes_after_an_interruption_is_nobodys_concern() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LATE_LINE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"interrupted\n"
        _, said = process.communicate(b"late\n", timeout=300)
        assert (process.returncode, said) == (0, b"")
    finally:
        process.kill()
        process.wait()


def test_a_consumer_goes_on_without_the_broker_that_it_was_given(tmp_path: Path) -> None:
    # Brokers of its own: what one that was killed led has no leader for a while.
    with Cluster(tmp_path, 2, STEADY) as cluster:
        create_topic(cluster.bootstrap, "replicated", partitions=2, replicas=2)
        produce(cluster, b"a\n", "replicated", "--partition", "0")
        given, other = cluster.brokers.values()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "odradek", "consume", "replicated", "--from-beginning"),
                *("--max-messages", "3", "--bootstrap-server", given.address),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"a\n"
            cluster.crash(given.broker_id)
            await_leaders(other.address, "replicated", 2)
            for partition in ("0", "1"):
                done = subprocess.run(
                    [
                        *(sys.executable, "-m", "odradek", "produce", "replicated"),
                        *("--partition", partition, "--bootstrap-server", other.address),
                    ],
                    input=b"b\n",
                    capture_output=True,
                    check=False,
                )
                assert done.returncode == 0, done.stderr
            rest, said = process.communicate(timeout=300)
            assert (rest, process.returncode) == (b"b\nb\n", 0), said
        finally:
            process.kill()
            process.wait()


def test_a_consumer_waits_for_the_leader_that_is_away_when_it_starts(tmp_path: Path) -> None:
    with Cluster(tmp_path, 2, STEADY) as cluster:
        # One partition on each: the one that is away has no other replica.
        create_topic(cluster.bootstrap, "single", partitions=2, replicas=1)
        for partition in ("0", "1"):
            produce(cluster, b"a\n", "single", "--partition", partition)
        away, other = cluster.brokers.values()
        cluster.crash(away.broker_id)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "odradek", "consume", "single", "--from-beginning"),
                *("--max-messages", "2", "--bootstrap-server", other.address),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            assert re.fullmatch(rb"odradek: single-[01] has no leader; retrying for .*\n", said)
            away.start()
            records, said = process.communicate(timeout=300)
            assert (records, said, process.returncode) == (b"a\na\n", b"", 0)
        finally:
            process.kill()
            process.wait()
