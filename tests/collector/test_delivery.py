"""The collector as a process, with librdkafka's mock broker."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from odradek_collector import delivery
from odradek_collector.__main__ import CollectorSettingsError, settings_from

from odradek_operator.shared import certificates
from tests.collector.conftest import SOURCE
from tests.support.ports import free_port

TOPIC = "cluster-logs"
PATIENCE_S = 120


@pytest.fixture
def bootstrap() -> Iterator[str]:
    owner = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    metadata = owner.list_topics(timeout=60)
    broker = next(iter(metadata.brokers.values()))
    yield f"{broker.host}:{broker.port}"
    del owner


class Collector:
    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True)
        self.state = folder / "state.json"
        self.port = free_port()
        self._environment = {
            **os.environ,
            "BOOTSTRAP": bootstrap,
            "TOPIC": TOPIC,
            "LOG_GLOBS": f"{self.logs}/*.log,{self.logs}/pods/*/*/*.log",
            "STATE_FILE": str(self.state),
            "METRICS_PORT": str(self.port),
            "NODE_NAME": "here",
            "PYTHONPATH": str(SOURCE),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "odradek_collector"], env={**self._environment, **environment}
        )

    def wait(self) -> int:
        assert self._process is not None
        code = self._process.wait(timeout=PATIENCE_S)
        self._process = None
        return code

    def end(self, number: int) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return self.wait()

    def stop_if_running(self) -> None:
        if self._process is not None:
            self.end(signal.SIGKILL)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def await_acknowledged(self, count: int) -> None:
        until = time.monotonic() + PATIENCE_S
        seen: Any = None
        while time.monotonic() < until:
            with contextlib.suppress(OSError, ValueError, KeyError):
                seen = json.loads(self.state.read_text())["acknowledged"]
                if seen >= count:
                    return
            time.sleep(0.05)
        raise AssertionError(f"{count} lines were to be acknowledged, {seen} were")


@pytest.fixture
def collector(tmp_path: Path, bootstrap: str) -> Iterator[Collector]:
    made = Collector(tmp_path, bootstrap)
    yield made
    made.stop_if_running()


def read_topic(bootstrap: str) -> list[dict[str, str]]:
    """Return all records of the topic, in order per partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0})
    found = []
    try:
        partitions = consumer.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions
        for number in partitions:
            partition = ClientPartition(TOPIC, number)
            low, high = consumer.get_watermark_offsets(partition, timeout=60)
            if low == high:
                continue
            consumer.assign([ClientPartition(TOPIC, number, low)])
            while low < high:
                message = consumer.poll(60)
                assert message is not None
                assert message.error() is None
                assert message.value() is not None
                found.append(json.loads(message.value() or b""))
                low = (message.offset() or 0) + 1
    finally:
        consumer.close()
    return found


def test_lines_arrive_in_order_and_are_counted_as_the_topic_counts_them(
    collector: Collector, bootstrap: str
) -> None:
    lines = [f"I1121 09:13:01.{number:06d} 1 a.go:1] {number}" for number in range(2000)]
    (collector.logs / "kubelet-node1.log").write_text("\n".join(lines) + "\n")
    collector.start()
    collector.await_acknowledged(2000)
    counts = json.loads(collector.get("/acknowledged"))
    assert counts["acknowledged"] == 2000
    assert sum(offset + 1 for offset in counts["offsets"].values()) == 2000
    assert "collector_lines_acknowledged_total 2000" in collector.get("/metrics")
    assert collector.end(signal.SIGTERM) == 0
    records = read_topic(bootstrap)
    assert [record["line"] for record in records] == lines
    assert {record["component"] for record in records} == {"kubelet"}


def test_sigkill_loses_no_line_and_a_clean_stop_repeats_none(
    collector: Collector, bootstrap: str
) -> None:
    log = collector.logs / "etcd.log"
    log.write_text("".join(f"first {number}\n" for number in range(500)))
    collector.start()
    collector.await_acknowledged(1)
    collector.end(signal.SIGKILL)
    with log.open("a") as file:
        file.writelines(f"second {number}\n" for number in range(500))
    collector.start()
    until = time.monotonic() + PATIENCE_S
    while len({record["line"] for record in read_topic(bootstrap)}) < 1000:
        assert time.monotonic() < until
    assert collector.end(signal.SIGTERM) == 0
    before = len(read_topic(bootstrap))
    assert (
        json.loads(collector.state.read_text())["files"][str(log)]["offset"] == log.stat().st_size
    )
    with log.open("a") as file:
        file.write("third\n")
    acknowledged = json.loads(collector.state.read_text())["acknowledged"]
    collector.start()
    collector.await_acknowledged(acknowledged + 1)
    assert len(read_topic(bootstrap)) == before + 1


def test_rotation_and_truncation_lose_and_repeat_nothing(
    collector: Collector, bootstrap: str
) -> None:
    log = collector.logs / "containerd-node1.log"
    log.write_text("one\n")
    collector.start()
    collector.await_acknowledged(1)
    renamed = log.rename(log.with_name("containerd-node1.log.1"))
    with renamed.open("a") as file:
        file.write("two\n")
    log.write_text("three is longer\n")
    collector.await_acknowledged(3)
    log.write_text("four\n")
    collector.await_acknowledged(4)
    assert [record["line"] for record in read_topic(bootstrap)] == [
        "one",
        "two",
        "three is longer",
        "four",
    ]


def test_parts_of_a_pods_long_line_become_one_record(collector: Collector, bootstrap: str) -> None:
    folder = collector.logs / "pods" / "kube-system_coredns-abc_1" / "coredns"
    folder.mkdir(parents=True)
    (folder / "0.log").write_text(
        "2026-11-21T09:13:01.1Z stdout P [ERROR] a\n"
        "2026-11-21T09:13:01.2Z stdout F b\n"
        "2026-11-21T09:13:02.5Z stderr F [INFO] c\n"
    )
    collector.start()
    collector.await_acknowledged(2)
    first, second = read_topic(bootstrap)
    assert (first["line"], first["severity"]) == ("[ERROR] ab", "error")
    assert (second["at"], second["severity"]) == ("2026-11-21T09:13:02.500Z", "info")
    assert (first["component"], first["node"]) == ("coredns", "here")


def test_offset_moves_only_over_an_unbroken_run_of_acknowledged_lines() -> None:
    ledger = delivery.Ledger(10)
    first, second, third = ledger.add(20), ledger.add(30), ledger.add(40)
    ledger.settle(second)
    assert ledger.delivered == 10
    ledger.settle(first)
    assert ledger.delivered == 30
    assert not ledger.idle
    ledger.settle(third)
    assert (ledger.delivered, ledger.idle) == (40, True)


def test_broken_state_file_is_refused_and_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="not a collector's state"):
        delivery.load_state(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"TOPIC": ""}, "TOPIC"),
        ({"LOG_GLOBS": " , "}, "LOG_GLOBS"),
        ({"METRICS_PORT": "x"}, "METRICS_PORT"),
        ({"IDEMPOTENCE": "maybe"}, "IDEMPOTENCE"),
        ({"ROUND_S": "-1"}, "ROUND_S"),
        ({"CREDENTIALS": "/credentials"}, "CREDENTIALS and USERNAME"),
        ({"USERNAME": "collector"}, "CREDENTIALS and USERNAME"),
    ],
)
def test_environment_without_sense_is_named(change: dict[str, str], reason: str) -> None:
    good = {"BOOTSTRAP": "b:1", "TOPIC": "t", "LOG_GLOBS": "/a/*"}
    settings_from(good)
    with pytest.raises(CollectorSettingsError, match=reason):
        settings_from({**good, **change})


def test_credentials_that_are_missing_or_empty_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*password: No such file"):
        delivery.read_login(tmp_path, "collector")
    (tmp_path / "password").write_text("secret")
    (tmp_path / "ca.crt").write_text("")
    with pytest.raises(ValueError, match=r"ca\.crt is empty"):
        delivery.read_login(tmp_path, "collector")
    (tmp_path / "ca.crt").write_text("PEM")
    login = delivery.read_login(tmp_path, "collector")
    assert "secret" not in repr(login)
    settings = delivery.producer_settings("b:1", login, idempotence=True)
    assert settings["security.protocol"] == "SASL_SSL"
    assert settings["sasl.password"] == "secret"
    assert "security.protocol" not in delivery.producer_settings("b:1", None, idempotence=True)


def test_new_credentials_end_the_collector_so_that_its_next_start_reads_them(
    collector: Collector, tmp_path: Path
) -> None:
    folder = tmp_path / "credentials"
    folder.mkdir()
    (folder / "password").write_text("former")
    authority = certificates.make_authority("ca", datetime.now(UTC))
    (folder / "ca.crt").write_text(authority.certificate)
    collector.start(CREDENTIALS=str(folder), USERNAME="collector")
    collector.await_acknowledged(0)
    # A moment without it, as while the kubelet replaces files, ends nothing.
    (folder / "password").unlink()
    (folder / "password").write_text("new")
    assert collector.wait() == 0
