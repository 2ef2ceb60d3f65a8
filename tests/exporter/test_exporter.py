"""The exporter beside real brokers and real consumers, whose lag is known."""

import gzip
import itertools
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kazoo.client import KazooClient
from prometheus_client.parser import text_string_to_metric_families

from odradek.http_server import HttpRequest
from odradek.zk import consumers, znodes
from odradek_operator.exporter import __main__ as command
from odradek_operator.exporter.lags import VERDICTS
from odradek_operator.exporter.rounds import Exporter, Filter, Options
from odradek_operator.shared import zookeeper
from odradek_operator.shared.topic_patterns import compile_re2
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.clients import QUIET, await_leaders, create_topic, make_topic, produce_all
from tests.support.ports import free_port

SETTINGS = {
    **STEADY,
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "log.retention.check.interval.ms": "300",
}
LAG, SUM = "kafka_consumergroup_lag", "kafka_consumergroup_lag_sum"
CURRENT, MEMBERS = "kafka_consumergroup_current_offset", "kafka_consumergroup_members"
READ_AT = "odradek_consumergroup_lag_read_timestamp_seconds"
WITHOUT = "odradek_consumergroup_partitions_without_commit"
FAILURES = "odradek_exporter_round_failures_total"

Series = dict[tuple[str, ...], float]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("exporter"), 2, SETTINGS) as running:
        yield running


@pytest.fixture
def keeper(cluster: Cluster) -> Iterator[KazooClient]:
    with cluster.zookeeper.client() as client:
        yield client


@pytest.fixture
def admin(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})


class ObservedExporter:
    """An exporter of the groups whose names begin alike. Each round is a second of its clocks."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self._seconds = 0.0
        self.exporter = Exporter(
            Options(cluster.zookeeper.connect, 15, Filter(compile_re2(f"{prefix}.*"))),
            clock=lambda: self._seconds,
            wall=lambda: 1000 + self._seconds,
        )

    def round(self) -> Series:
        """Return the series of one more round, by name and values of the labels."""
        self._seconds += 1
        self.exporter.round()
        text = self.exporter.answer(HttpRequest("GET", "/metrics", "", {})).body.decode()
        return series_of(text)

    def later(self, seconds: float) -> None:
        """Let time go by."""
        self._seconds += seconds


def series_of(text: str) -> Series:
    return {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


@pytest.fixture
def observed(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[ObservedExporter]:
    found = ObservedExporter(cluster, request.node.name)
    yield found
    found.exporter.close()


def verdict(series: Series, group: str) -> str:
    (found,) = [one for one in VERDICTS if series["odradek_consumergroup_verdict", group, one] == 1]
    return found


def consumer(cluster: Cluster, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 200,
            **QUIET,
        }
    )


def commit(cluster: Cluster, group: str, topic: str, *offsets: int) -> None:
    """Commit the offset of each partition from outside of the group."""
    client = consumer(cluster, group)
    places = [TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)]
    wait_until(
        lambda: bool(client.commit(offsets=places, asynchronous=False)), f"{group} has committed"
    )
    client.close()


def read_and_commit(client: Consumer, count: int) -> None:
    seen = 0
    while seen < count:
        message = client.poll(60)
        assert message is not None
        assert message.error() is None
        seen += 1
    client.commit(asynchronous=False)


def test_canary(cluster: Cluster, admin: AdminClient, observed: ObservedExporter) -> None:
    group = topic = "test_canary"
    create_topic(cluster.bootstrap, topic, 3)
    produce_all(cluster.bootstrap, topic, [b"x"] * 20, 2)
    first = consumer(cluster, group)
    first.subscribe([topic])
    wait_until(lambda: bool(first.poll(0.05)), "the member has its partitions and a record")
    series = observed.round()
    assert (series[MEMBERS, group], series[WITHOUT, group, topic]) == (1, 3)
    assert (SUM, group, topic) not in series
    assert not [one for one in series if one[0] == "odradek_consumergroup_verdict"]
    read_and_commit(first, 19)
    series = observed.round()
    for number in "01":
        assert series[LAG, group, topic, number] == 0
        assert series[CURRENT, group, topic, number] == 10
    assert (series[SUM, group, topic], series[MEMBERS, group]) == (0, 1)
    assert series["kafka_consumergroup_lag_seconds", group, topic, "0"] == 0
    assert verdict(series, group) == "OK"
    # Nobody wrote to partition 2, so nobody committed there.
    assert (LAG, group, topic, "2") not in series
    assert series[WITHOUT, group, topic] == 1

    produce_all(cluster.bootstrap, topic, [b"x"] * 6, 2)
    second = consumer(cluster, group)
    second.subscribe([topic])

    def balanced() -> bool:
        first.poll(0.05)
        second.poll(0.05)
        return bool(first.assignment()) and bool(second.assignment())

    wait_until(balanced, "both members have partitions")
    series = observed.round()
    assert [series[LAG, group, topic, number] for number in "01"] == [3, 3]
    assert (series[SUM, group, topic], series[MEMBERS, group]) == (6, 2)

    first.close()
    second.close()
    series = observed.round()
    assert (series[SUM, group, topic], series[MEMBERS, group]) == (6, 0)
    assert verdict(series, group) == "STOP"
    # Since the round before.
    assert series["odradek_consumergroup_commit_unchanged_seconds", group, topic, "0"] == 1

    again = consumer(cluster, group)
    again.subscribe([topic])
    read_and_commit(again, 6)
    series = observed.round()
    assert (series[SUM, group, topic], series[MEMBERS, group]) == (0, 1)
    assert verdict(series, group) == "OK"
    again.close()

    assert series["odradek_exporter_groups",] == 1
    admin.delete_consumer_groups([group])[group].result(60)
    series = observed.round()
    assert not [one for one in series if group in one]
    assert series["odradek_exporter_groups",] == 0


class Traffic:
    """A producer and a consumer that do not rest, and what they know of the log's end and commit.

    The end is between `acknowledged` and `sent`, the commit between `committed` and `committing`.
    """

    def __init__(self, cluster: Cluster, group: str, topic: str) -> None:
        self.sent = self.acknowledged = self.committing = self.committed = 0
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", **QUIET})
        self._consumer = consumer(cluster, group)
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._end = threading.Event()
        self._threads = [threading.Thread(target=one) for one in (self._produce, self._consume)]

    def _produce(self) -> None:
        def count(error: object, _: object) -> None:
            assert error is None
            self.acknowledged += 1

        while not self._end.is_set():
            self.sent += 1
            self._producer.produce(self._topic, b"x", partition=0, on_delivery=count)
            self._producer.poll(0.002)
        assert self._producer.flush(60) == 0

    def _consume(self) -> None:
        while not self._end.is_set():
            for message in self._consumer.consume(20, 1):
                offset = message.offset()
                assert offset is not None
                self.committing = offset + 1
            place = TopicPartition(self._topic, 0, self.committing)
            self._consumer.commit(offsets=[place], asynchronous=False)
            self.committed = self.committing
        self._consumer.close()

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def test_lag_of_a_busy_group(cluster: Cluster, observed: ObservedExporter) -> None:
    group = topic = "test_lag_of_a_busy_group"
    create_topic(cluster.bootstrap, topic)
    commit(cluster, group, topic, 0)
    with Traffic(cluster, group, topic) as traffic:
        for _ in range(10):
            end, committed = traffic.acknowledged, traffic.committed

            def has_moved(end: int = end, committed: int = committed) -> bool:
                return traffic.acknowledged > end and traffic.committed > committed

            wait_until(has_moved, "records are written and read")
            end, committed = traffic.acknowledged, traffic.committed
            lag = observed.round()[LAG, group, topic, "0"]
            assert max(0, end - traffic.committing) <= lag <= traffic.sent - committed
    series = observed.round()
    assert series[LAG, group, topic, "0"] == traffic.sent - traffic.committed
    assert series[CURRENT, group, topic, "0"] == traffic.committed


def test_deleted_records_do_not_count(
    cluster: Cluster, admin: AdminClient, observed: ObservedExporter, keeper: KazooClient
) -> None:
    group = topic = "test_deleted_records_do_not_count"
    create_topic(cluster.bootstrap, topic)
    produce_all(cluster.bootstrap, topic, [b"x"] * 10)
    commit(cluster, group, topic, 3)
    assert observed.round()[LAG, group, topic, "0"] == 7
    place = TopicPartition(topic, 0, 6)
    admin.delete_records([place])[place].result(60)
    series = observed.round()
    assert (series[LAG, group, topic, "0"], series[CURRENT, group, topic, "0"]) == (4, 3)
    # A group that moves to the other store: the larger of its two offsets counts.
    keeper.create(consumers.offset_path(group, topic, 0), b"8", makepath=True)
    series = observed.round()
    assert (series[LAG, group, topic, "0"], series[CURRENT, group, topic, "0"]) == (2, 8)


def test_an_offset_below_0_in_a_znode_is_no_commit(
    cluster: Cluster, observed: ObservedExporter, keeper: KazooClient
) -> None:
    group = topic = "test_an_offset_below_0_in_a_znode_is_no_commit"
    create_topic(cluster.bootstrap, topic, partitions=2)
    produce_all(cluster.bootstrap, topic, [b"x"] * 10)
    for partition, offset in enumerate((b"-1", b"0")):
        keeper.create(consumers.offset_path(group, topic, partition), offset, makepath=True)
    series = observed.round()
    assert (CURRENT, group, topic, "1") in series
    assert (CURRENT, group, topic, "0") not in series
    assert (LAG, group, topic, "0") not in series
    assert series[WITHOUT, group, topic] == 1


def test_records_that_retention_takes_before_the_group_reads_them_do_not_count(
    cluster: Cluster, admin: AdminClient, observed: ObservedExporter
) -> None:
    group = topic = "test_records_that_retention_takes_before_the_group_reads_them_do_not_count"
    create_topic(cluster.bootstrap, topic)
    produce_all(cluster.bootstrap, topic, [b"x"] * 10)
    commit(cluster, group, topic, 3)
    assert observed.round()[LAG, group, topic, "0"] == 7

    def keep(milliseconds: int) -> None:
        entry = ConfigEntry(
            "retention.ms",
            str(milliseconds),
            incremental_operation=AlterConfigOpType.SET,
        )
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(60)

    keep(1)
    wait_until(lambda: observed.round()[LAG, group, topic, "0"] == 0, "retention takes all")
    keep(-1)
    produce_all(cluster.bootstrap, topic, [b"x"] * 4)
    series = observed.round()
    assert (series[LAG, group, topic, "0"], series[CURRENT, group, topic, "0"]) == (4, 3)
    assert series[SUM, group, topic] == 4


def test_topic_made_anew(
    cluster: Cluster, admin: AdminClient, observed: ObservedExporter, keeper: KazooClient
) -> None:
    topic, group, old = "anew", "test_topic_made_anew", "test_topic_made_anew_in_znodes"
    create_topic(cluster.bootstrap, topic)
    produce_all(cluster.bootstrap, topic, [b"x"] * 5)
    commit(cluster, group, topic, 4)
    keeper.create(consumers.offset_path(old, topic, 0), b"5", makepath=True)
    keeper.create(consumers.consumer_id_path(old, "one"), b"", makepath=True, ephemeral=True)
    series = observed.round()
    assert (series[LAG, group, topic, "0"], series[LAG, old, topic, "0"]) == (1, 0)
    assert (series[MEMBERS, group], series[MEMBERS, old]) == (0, 1)

    admin.delete_topics([topic])[topic].result(60)
    wait_until(lambda: not keeper.exists(znodes.topic_path(topic)), "the topic is gone")
    series = observed.round()
    assert not [one for one in series if topic in one]
    assert (MEMBERS, old) in series

    create_topic(cluster.bootstrap, topic)
    produce_all(cluster.bootstrap, topic, [b"x"] * 3)
    # A consumer that did not notice.
    commit(cluster, group, topic, 5)
    series = observed.round()
    assert (series[LAG, group, topic, "0"], series[LAG, old, topic, "0"]) == (3, 3)
    produce_all(cluster.bootstrap, topic, [b"x"] * 4)
    assert observed.round()[LAG, old, topic, "0"] == 7
    keeper.set(consumers.offset_path(old, topic, 0), b"5")
    wait_until(lambda: observed.round()[LAG, old, topic, "0"] == 2, "the new commit counts")
    keeper.delete(consumers.group_path(old), recursive=True)
    assert not [one for one in observed.round() if old in one]


def test_filters(cluster: Cluster) -> None:
    for topic in ("filter-a", "filter-b"):
        create_topic(cluster.bootstrap, topic)
        for group in ("filtered-1", "filtered-2", "unfiltered"):
            commit(cluster, group, topic, 0)
    exporter = Exporter(
        Options(
            cluster.zookeeper.connect,
            15,
            Filter(compile_re2("filter.*"), compile_re2(".*-2")),
            Filter(compile_re2("filter-.|other"), compile_re2(".*b")),
        )
    )
    exporter.round()
    body = exporter.answer(HttpRequest("GET", "/metrics", "", {"accept-encoding": "gzip"})).body
    exporter.close()
    lags = [one[1:] for one in series_of(gzip.decompress(body).decode()) if one[0] == LAG]
    assert lags == [("filtered-1", "filter-a", "0")]


def test_stopped_brokers(
    cluster: Cluster,
    admin: AdminClient,
    observed: ObservedExporter,
    caplog: pytest.LogCaptureFixture,
) -> None:
    both, one = "test_stopped_brokers_both", "test_stopped_brokers_one"
    described = admin.describe_consumer_groups([both])[both].result(60)
    coordinator = described.coordinator.id
    other = 3 - coordinator
    for topic, broker_id in (("here", coordinator), ("there", other)):
        make_topic(admin, NewTopic(topic, 1, replica_assignment=[[broker_id]]))
        await_leaders(cluster.bootstrap, topic)
        produce_all(cluster.bootstrap, topic, [b"x"] * 4)
        commit(cluster, both, topic, 2)
    commit(cluster, one, "here", 1)
    series = observed.round()
    assert [series[LAG, both, topic, "0"] for topic in ("here", "there")] == [2, 2]
    read_at = series[READ_AT, both]
    assert series[READ_AT, one] == read_at

    cluster.crash(other)
    produce_all(cluster.brokers[coordinator].address, "here", [b"x"])
    for _ in range(2):
        series = observed.round()
        assert [series[LAG, both, topic, "0"] for topic in ("here", "there")] == [3, 2]
        assert series[LAG, one, "here", "0"] == 4
    assert (series[READ_AT, both], series[READ_AT, one]) == (read_at, read_at + 2)
    assert series[FAILURES, "topic"] == 2
    assert [each.message for each in caplog.records if "topic there" in each.message] == [
        "failed to read topic there: no leader answers for partition 0; retrying"
    ]
    assert observed.exporter.healthy
    cluster.brokers[other].start()

    def complete() -> bool:
        series = observed.round()
        return series[READ_AT, both] == series[READ_AT, one] > read_at + 2

    wait_until(complete, "the leader is back")

    # The coordinator's groups have no other replica: nobody lists them, yet they are not gone.
    cluster.crash(coordinator)
    series = observed.round()
    read_at = series[READ_AT, one]
    assert [series[LAG, both, topic, "0"] for topic in ("here", "there")] == [3, 2]
    series = observed.round()
    assert (series[READ_AT, both], series[READ_AT, one]) == (read_at, read_at)
    assert observed.exporter.healthy
    cluster.crash(other)
    series = observed.round()
    assert series[LAG, both, "here", "0"] == 3
    observed.later(45)
    assert not observed.exporter.healthy
    probe = observed.exporter.probe(HttpRequest("GET", "/healthz", "", {}))
    assert probe is not None
    assert probe.status.startswith(str(HTTPStatus.SERVICE_UNAVAILABLE.value))
    for broker in cluster.brokers.values():
        broker.start()
    wait_until(lambda: observed.round()[READ_AT, both] > read_at, "all are back")
    assert observed.exporter.healthy


def test_without_zookeeper_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zookeeper, "CONNECT_SECONDS", 0.1)
    connect = f"127.0.0.1:{free_port()}/chroot"
    exporter = Exporter(Options(connect, 15))
    for _ in range(2):
        exporter.round()
    answer = exporter.answer(HttpRequest("GET", "/metrics", "", {}))
    exporter.close()
    series = series_of(answer.body.decode())
    assert (series[FAILURES, "zookeeper"], series["odradek_exporter_groups",]) == (2, 0)
    assert not exporter.healthy
    said = [each for each in caplog.records if each.name.startswith("odradek_operator.")]
    assert len(said) == 1, "a failure is logged once"


def test_process(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "process")
    commit(cluster, "process", "process", 0)
    port = free_port()
    arguments = {
        "--zookeeper": cluster.zookeeper.connect,
        "--port": str(port),
        "--groups": "process",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", command.__name__, *itertools.chain(*arguments.items())],
        stderr=subprocess.PIPE,
        text=True,
    )

    def ask(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            return 0, ""

    wait_until(lambda: ask("/healthz")[0] == HTTPStatus.OK, "a round has succeeded")
    status, text = ask("/metrics")
    assert status == HTTPStatus.OK
    series = series_of(text)
    assert (series[LAG, "process", "process", "0"], series["odradek_exporter_groups",]) == (0, 1)
    assert series["odradek_exporter_round_seconds",] >= 0
    assert ask("/other")[0] == HTTPStatus.NOT_FOUND
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in errors) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing option '--zookeeper'."),
        (["--zookeeper", "host:port"], "'host:port' is not HOST:PORT,.../CHROOT: "),
        (["--port", "65536"], "65536 is not in the range"),
        (["--interval", "0"], "0 is not in the range"),
        (["--groups", "("], "'(' is no regular expression: "),
        (["--groups", "(\n"], "'(\\n' is no regular expression: "),
        (["a\nb"], "Got unexpected extra argument (a\\nb)"),
        (["--exclude-topics", "(?=x)"], "'(?=x)' is no regular expression: "),
        (["--filter", "x"], "No such option '--filter'."),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    servers = ["--zookeeper", "host:1"] if "--zookeeper" not in arguments and arguments else []
    monkeypatch.setattr(sys, "argv", ["odradek-exporter", *servers, *arguments])
    with pytest.raises(SystemExit) as end:
        command.run()
    errors = capsys.readouterr().err
    assert (end.value.code, errors.count("\n")) == (2, 1)
    assert errors.startswith("odradek-exporter: ")
    assert said in errors


def test_a_port_in_use_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["odradek-exporter", "--zookeeper", "host:1", "--port", port]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as end:
            command.run()
    errors = capsys.readouterr().err
    assert (end.value.code, errors.count("\n")) == (1, 1)
    assert f"port {port}: " in errors
