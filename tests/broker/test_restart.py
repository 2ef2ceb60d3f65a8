"""What a single broker keeps over its end, and how it ends and starts."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from kazoo.security import ACL, ANYONE_ID_UNSAFE, OPEN_ACL_UNSAFE

from odradek.values import BrokerId
from odradek.zk import znodes
from tests.support import clients, zookeeper
from tests.support.broker import STEADY, Cluster, FreshBroker, wait_until
from tests.support.clients import consume_all, create_topic, produce_all
from tests.support.logs import batch
from tests.support.ports import free_port


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, settings=STEADY, kind=FreshBroker) as running:
        yield running


def test_every_acknowledged_record_survives_sigterm_and_sigkill(own_cluster: Cluster) -> None:
    broker = own_cluster.brokers[1]
    create_topic(own_cluster.bootstrap, "kept", partitions=2)
    sent: list[bytes] = []
    crash = partial(own_cluster.crash, broker.broker_id)
    ends: tuple[Callable[[], object], ...] = (broker.terminate, crash, crash)
    for round_number, end in enumerate(ends):
        values = [b"%d-%d" % (round_number, number) for number in range(300)]
        produce_all(own_cluster.bootstrap, "kept", values, partitions=2)
        sent += values
        end()
        broker.start()
    assert sorted(consume_all(own_cluster.bootstrap, "kept", 2, len(sent))) == sorted(sent)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_ends_with_status_0_a_clean_mark_and_no_registration(
    own_cluster: Cluster, number: signal.Signals
) -> None:
    broker = own_cluster.brokers[1]
    produce_all(own_cluster.bootstrap, "kept", [b"x"])
    broker.signal(number)
    assert broker.wait() == 0
    assert (broker.log_dir / ".kafka_cleanshutdown").exists()
    with own_cluster.zookeeper.client() as client:
        assert client.get_children("/brokers/ids") == []
        assert client.exists("/controller") is None


def test_controller_that_is_away_is_asked_again_for_a_controlled_shutdown(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=2, settings=STEADY, kind=FreshBroker) as cluster:
        with cluster.zookeeper.client() as client:
            path = znodes.CONTROLLER_PATH
            controller = znodes.decode_controller(path, client.get(path)[0]).broker_id
        leaving = cluster.brokers[2 if controller == 1 else 1]
        cluster.brokers[controller].kill()
        leaving.signal(signal.SIGTERM)
        wait_until(
            lambda: "controlled shutdown, attempt 2" in leaving.log_text(), "a second attempt"
        )


def test_offsets_go_on_after_a_restart(own_cluster: Cluster) -> None:
    broker = own_cluster.brokers[1]
    create_topic(own_cluster.bootstrap, "counted")
    assert produce_all(own_cluster.bootstrap, "counted", [b"a", b"b"])[-1] == 1
    broker.terminate()
    broker.start()
    assert produce_all(own_cluster.bootstrap, "counted", [b"c"]) == [2]


def test_leader_that_restarts_while_it_is_awaited_is_found(
    own_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(own_cluster.bootstrap, "awaited")
    broker, restarted = own_cluster.brokers[1], False

    class Interrupted(AdminClient):
        def list_offsets(self, *asked: Any, **options: Any) -> Any:
            nonlocal restarted
            answers = super().list_offsets(*asked, **options)
            if not restarted:
                [one.result(60) for one in answers.values()]
                broker.terminate()
                broker.start()
                restarted = True
                raise KafkaException("interrupted")
            return answers

    monkeypatch.setattr(clients, "AdminClient", Interrupted)
    clients.await_leaders(own_cluster.bootstrap, "awaited")
    assert restarted


def test_controller_epoch_rises_with_each_start(own_cluster: Cluster) -> None:
    broker = own_cluster.brokers[1]
    with own_cluster.zookeeper.client() as client:
        wait_until(lambda: client.exists("/controller_epoch") is not None, "a controller")
        first = int(client.get("/controller_epoch")[0])
        broker.terminate()
        broker.start()
        wait_until(
            lambda: int(client.get("/controller_epoch")[0]) > first, "the epoch of a new term"
        )


def test_zookeeper_away_for_a_while_does_not_stop_acknowledgements(tmp_path: Path) -> None:
    # A broker without others in sync stops once its session may have ended.
    with Cluster(tmp_path, settings=STEADY, own_zookeeper=True) as cluster:
        create_topic(cluster.bootstrap, "steady")
        produce_all(cluster.bootstrap, "steady", [b"before"])
        cluster.zookeeper.kill()
        assert produce_all(cluster.bootstrap, "steady", [b"during"]) == [1]
        cluster.zookeeper.start()
        create_topic(cluster.bootstrap, "later")
        assert produce_all(cluster.bootstrap, "steady", [b"after"]) == [2]


def test_lost_session_is_followed_by_a_new_registration(own_cluster: Cluster) -> None:
    broker = own_cluster.brokers[1]
    create_topic(own_cluster.bootstrap, "again")
    with own_cluster.zookeeper.client() as client:
        wait_until(lambda: client.exists("/brokers/ids/1") is not None, "registered")
        before = client.exists("/brokers/ids/1").czxid
        broker.signal(signal.SIGSTOP)
        own_cluster.zookeeper.end_session_of("/brokers/ids/1")
        assert client.exists("/brokers/ids/1") is None
        broker.signal(signal.SIGCONT)

        def registered_again() -> bool:
            stat = client.exists("/brokers/ids/1")
            return stat is not None and stat.czxid > before

        wait_until(registered_again, "registered again")
    assert produce_all(own_cluster.bootstrap, "again", [b"x"]) == [0]


def test_a_broker_whose_id_another_one_took_meanwhile_stops_with_one_line(
    own_cluster: Cluster,
) -> None:
    broker = own_cluster.brokers[1]
    path = "/brokers/ids/1"
    with own_cluster.zookeeper.client() as other:
        registered, _ = other.get(path)
        broker.signal(signal.SIGSTOP)
        own_cluster.zookeeper.end_session_of(path)
        other.create(path, registered, ephemeral=True)
        broker.signal(signal.SIGCONT)
        assert broker.wait() == 1
        assert other.exists(path).ephemeralOwner == other.client_id[0]
    said = broker.log_text()
    assert "broker.id 1 is taken by a living broker at PLAINTEXT://127.0.0.1:" in said
    assert "another broker.id and log.dirs of its own; stopping\n" in said
    assert "Traceback" not in said
    assert (broker.log_dir / ".kafka_cleanshutdown").exists()


def test_living_duplicate_of_a_broker_refuses_to_start(tmp_path: Path) -> None:
    folder = tmp_path / "twin"
    folder.mkdir()
    # The twin waits as long as its own session may last: that of the other is not to end by then.
    with Cluster(tmp_path, settings=STEADY, kind=FreshBroker) as cluster:
        twin = FreshBroker(folder, 1, cluster.zookeeper.connect, {})
        twin.spawn()
        assert twin.wait() == 1
    assert "broker.id 1 is taken by a living broker" in twin.log_text().splitlines()[-1]
    # A start with the right broker.id must find its folder without an owner.
    assert not (twin.log_dir / "meta.properties").exists()


def test_log_directory_of_another_broker_refuses_to_start(own_cluster: Cluster) -> None:
    broker = own_cluster.brokers[1]
    broker.terminate()
    stranger = FreshBroker(
        own_cluster.directory, 2, own_cluster.zookeeper.connect, {"log.dirs": str(broker.log_dir)}
    )
    stranger.spawn()
    assert stranger.wait() == 1
    assert "belongs to broker.id 1" in stranger.log_text().splitlines()[-1]


def test_log_directory_from_before_kafka_wrote_cluster_ids_is_taken(own_cluster: Cluster) -> None:
    broker = own_cluster.brokers[1]
    produce_all(own_cluster.bootstrap, "older", [b"x"])
    broker.terminate()
    (broker.log_dir / "meta.properties").write_text("version=0\nbroker.id=1\n")
    broker.start()
    assert consume_all(own_cluster.bootstrap, "older", 1, 1) == [b"x"]
    assert "cluster.id=" in (broker.log_dir / "meta.properties").read_text()


def test_log_directory_in_use_refuses_to_start(cluster: Cluster, tmp_path: Path) -> None:
    broker = cluster.brokers[1]
    folder = tmp_path / "second"
    folder.mkdir()
    second = FreshBroker(folder, 1, cluster.zookeeper.connect, {"log.dirs": str(broker.log_dir)})
    second.spawn()
    assert second.wait() == 1
    assert "is in use by another process" in second.log_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("num.partitions=many", "num.partitions"),
        ("broker.id=-5", "broker.id"),
        ("listeners=nonsense", "listeners"),
        ("zookeeper.connect=127.0.0.1:abc", "zookeeper.connect"),
    ],
)
def test_bad_setting_is_one_line_and_status_2(tmp_path: Path, setting: str, reason: str) -> None:
    broker = FreshBroker(tmp_path, 1, "127.0.0.1:1", {})
    broker.spawn("--override", setting)
    assert broker.wait() == 2
    lines = broker.log_text().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("odradek: ")
    assert reason in lines[0]


def test_bad_log_level_is_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODRADEK_LOG_LEVEL", "verbose")
    broker = FreshBroker(tmp_path, 1, "127.0.0.1:1", {})
    broker.spawn()
    assert broker.wait() == 2
    [line] = broker.log_text().splitlines()
    assert line == "odradek: ODRADEK_LOG_LEVEL is none of DEBUG, INFO, WARNING, ERROR, CRITICAL"


def test_absent_zookeeper_is_one_line_and_status_1(tmp_path: Path) -> None:
    broker = FreshBroker(tmp_path, 1, "127.0.0.1:1", {"zookeeper.connection.timeout.ms": "500"})
    broker.spawn()
    assert broker.wait() == 1
    said = broker.log_text().splitlines()[-1]
    assert said == "odradek: no ZooKeeper at 127.0.0.1:1 within 500 ms: Connection refused"


def test_port_in_use_is_one_line_and_status_1(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "second"
    folder.mkdir()
    taken = cluster.brokers[1].address
    second = FreshBroker(
        folder, 2, cluster.zookeeper.connect, {"listeners": f"PLAINTEXT://{taken}"}
    )
    second.spawn()
    assert second.wait() == 1
    said = second.log_text().splitlines()[-1]
    assert said.startswith(f"odradek: cannot listen on PLAINTEXT://{taken}: ")


def test_a_start_that_fails_leaves_logs_that_were_closed_cleanly_so(own_cluster: Cluster) -> None:
    broker = own_cluster.brokers[1]
    produce_all(own_cluster.bootstrap, "kept", [b"x"])
    broker.terminate()
    mark = broker.log_dir / ".kafka_cleanshutdown"
    with socket.create_server(("127.0.0.1", broker.port)):
        broker.spawn()
        assert broker.wait() == 1
    assert "cannot listen on PLAINTEXT" in broker.log_text().splitlines()[-1]
    assert mark.exists()
    with own_cluster.zookeeper.client() as client:
        # To read, and to set this right again.
        client.set_acls("/brokers/ids", [ACL(17, ANYONE_ID_UNSAFE)])
        broker.spawn()
        assert broker.wait() == 1
        client.set_acls("/brokers/ids", OPEN_ACL_UNSAFE)
    said = broker.log_text().splitlines()[-1]
    path = f"{client.chroot}/brokers/ids/{broker.broker_id}"
    assert said.startswith(
        f"odradek: failed to start: ZooKeeper: no right to the znode {path} (NoAuthError): log in "
    )
    assert "KAFKA_OPTS" in said
    assert "Traceback" not in broker.log_text()
    assert mark.exists()
    broker.start()
    assert "was not closed cleanly" not in broker.log_text()
    assert consume_all(own_cluster.bootstrap, "kept", 1, 1) == [b"x"]


@pytest.mark.parametrize(
    "setting",
    [
        {"listeners": "PLAINTEXT://broker..example:9092"},
        {"max.connections.per.ip.overrides": "broker..example:5"},
    ],
)
def test_name_that_no_host_can_have_is_one_line_and_status_1(
    cluster: Cluster, tmp_path: Path, setting: dict[str, str]
) -> None:
    folder = tmp_path / "second"
    folder.mkdir()
    second = FreshBroker(folder, 2, cluster.zookeeper.connect, setting)
    second.spawn()
    assert second.wait() == 1
    said = second.log_text()
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("odradek: ")


def test_limits_in_zookeeper_that_no_broker_can_apply_do_not_keep_it_from_starting(
    own_cluster: Cluster,
) -> None:
    broker = own_cluster.brokers[1]
    broker.terminate()
    wrong = {"max.connections": "0", "max.connections.per.ip.overrides": "broker..example:5"}
    with own_cluster.zookeeper.client() as client:
        entries = znodes.encode_config({**wrong, "max.connections.per.ip": "33"})
        client.create(znodes.broker_config_path("1"), entries, makepath=True)
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.address})
    asked = ConfigResource(ResourceType.BROKER, "1")
    shown = admin.describe_configs([asked])[asked].result(60)
    assert shown["max.connections.per.ip"].value == "33"
    for name, text in wrong.items():
        assert shown[name].value != text
        assert f"ignoring an invalid entry of /config/brokers/1: {name}={text}" in broker.log_text()


def test_unwritable_topic_is_an_error_and_not_a_hang(cluster: Cluster) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "message.timeout.ms": 60_000}
    )
    errors: list[confluent_kafka.KafkaError | None] = []
    producer.produce("no/such", b"x", on_delivery=lambda error, message: errors.append(error))
    assert producer.flush(120) == 0
    assert errors[0] is not None
    assert errors[0].code() in (
        confluent_kafka.KafkaError.TOPIC_EXCEPTION,
        confluent_kafka.KafkaError._UNKNOWN_TOPIC,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_broker_that_reads_its_settings_stops_when_it_is_told_to(
    tmp_path: Path, number: signal.Signals
) -> None:
    settings = tmp_path / "settings"
    os.mkfifo(settings)
    process = subprocess.Popen(
        [sys.executable, "-m", "odradek", "broker", settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        with settings.open("wb"):  # once it reads
            process.send_signal(number)
            said, _ = process.communicate(timeout=120)
        assert (process.returncode, said) == (0, b"")
    finally:
        process.kill()
        process.wait()


def test_a_broker_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    settings = tmp_path / "settings"
    os.mkfifo(settings)
    process = subprocess.Popen(
        ["nohup", sys.executable, "-m", "odradek", "broker", settings],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with settings.open("wb"):
            status = Path(f"/proc/{process.pid}/status").read_text()
            [ignored] = [line.split()[1] for line in status.splitlines() if "SigIgn" in line]
            assert int(ignored, 16) & 1 << (signal.SIGHUP - 1)
            process.terminate()
            assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_broker_that_is_told_to_stop_until_it_has_stopped_ends_with_status_0(
    tmp_path: Path, count: str
) -> None:
    with zookeeper.Chroot() as shared:
        at_once = {**STEADY, "controlled.shutdown.enable": "false"}
        broker = FreshBroker(tmp_path, 1, shared.connect, at_once)
        broker.spawn("--count", count)
        wait_until(lambda: broker.log_text().count(" is up\n") == int(count), "all are up")
        for number in itertools.cycle((signal.SIGTERM, signal.SIGINT)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert broker.wait(0.002) == 0
                break
            broker.signal(number)
        assert "Traceback" not in broker.log_text()


@pytest.mark.parametrize(
    ("count", "redirection", "said"),
    [
        (1, ">/dev/full", b"odradek: cannot write the log to stdout: No space left on device\n"),
        (1, "> >(head -n 1 >/dev/null)", b"odradek: cannot write the log to stdout: Broken pipe\n"),
        (2, ">&- 2>&-", b""),
    ],
)
def test_a_broker_whose_log_nobody_takes_says_so_once_and_serves(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    redirection: str,
    said: bytes,
) -> None:
    # What is buffered at the end decides about the exit status, too.
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with zookeeper.Chroot() as shared:
        properties = tmp_path / "server.properties"
        properties.write_text(
            f"broker.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path / 'logs'}\n"
            f"zookeeper.connect={shared.connect}\ncontrolled.shutdown.enable=false\n"
            "zookeeper.session.timeout.ms=30000\n"
        )
        command = f"exec {sys.executable} -m odradek broker {properties} --count {count}"
        process = subprocess.Popen(
            ["bash", "-c", f"{command} {redirection}"], stderr=subprocess.PIPE
        )
        try:
            with shared.client() as client:
                for broker_id in range(1, count + 1):
                    path = znodes.broker_path(BrokerId(broker_id))
                    wait_until(lambda: client.exists(path) is not None, "registered")  # noqa: B023
            process.terminate()
            assert process.communicate(timeout=120)[1] == said
            assert process.returncode == 0
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("chroot", ["", "/kafka"])
@pytest.mark.parametrize("is_silent", [False, True])
def test_a_broker_that_waits_for_zookeeper_stops_when_it_is_told_to(
    tmp_path: Path, is_silent: bool, chroot: str, number: signal.Signals
) -> None:
    with contextlib.ExitStack() as cleanup:
        port = free_port()
        if is_silent:
            server = cleanup.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = server.getsockname()[1]
        properties = tmp_path / "server.properties"
        properties.write_text(
            f"broker.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path / 'logs'}\n"
            f"zookeeper.connect=127.0.0.1:{port}{chroot}\n"
            "zookeeper.connection.timeout.ms=3600000\nzookeeper.session.timeout.ms=3600000\n"
        )
        process = cleanup.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "odradek", "broker", properties],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
        cleanup.callback(process.kill)
        if is_silent:
            cleanup.enter_context(server.accept()[0])
        else:
            assert process.stdout is not None
            assert b"Connection refused" in process.stdout.readline()
        process.send_signal(number)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert b"broker 1 was stopped before it had a session in ZooKeeper\n" in said
        assert b"Traceback" not in said


def test_a_broker_that_recovers_its_logs_stops_when_it_is_told_to(own_cluster: Cluster) -> None:
    broker = own_cluster.brokers[1]
    create_topic(own_cluster.bootstrap, "large")
    create_topic(own_cluster.bootstrap, "small", partitions=3)
    sent = [b"%d" % number for number in range(300)]
    produce_all(own_cluster.bootstrap, "small", sent, partitions=3)
    own_cluster.crash(broker.broker_id)
    [folder] = broker.partition_folders("large")
    log = folder / "00000000000000000000.log"
    record = batch(b"x")
    # To read them all takes far longer than to notice that it is under way.
    content = b"".join(offset.to_bytes(8, "big") + record[8:] for offset in range(1_000_000))
    log.write_bytes(content)
    broker.spawn()
    wait_until(lambda: "which was not closed cleanly" in broker.log_text(), "it recovers")
    assert broker.terminate() == 0
    said = broker.log_text()
    assert said.count(" is up\n") == 1
    assert said.endswith("broker 1 was stopped before it was registered\n")
    assert "Traceback" not in said
    assert not (broker.log_dir / ".kafka_cleanshutdown").exists()
    assert log.read_bytes() == content
    log.write_bytes(content[: len(record) * 100])
    broker.start()
    assert len(consume_all(own_cluster.bootstrap, "large", 1, 100)) == 100
    assert sorted(consume_all(own_cluster.bootstrap, "small", 3, len(sent))) == sorted(sent)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_that_waits_for_its_id_stops_when_it_is_told_to(
    tmp_path: Path, own_cluster: Cluster, number: signal.Signals
) -> None:
    folder = tmp_path / "twin"
    folder.mkdir()
    twin = FreshBroker(folder, 1, own_cluster.zookeeper.connect, STEADY)
    twin.spawn()
    wait_until(lambda: "waiting for the end of session" in twin.log_text(), "it waits")
    twin.signal(number)
    assert twin.wait() == 0
    assert twin.log_text().endswith("broker 1 was stopped before it was registered\n")
    assert "Traceback" not in twin.log_text()
    assert own_cluster.brokers[1].running
    with own_cluster.zookeeper.client() as client:
        assert client.get_children("/brokers/ids") == ["1"]
