"""`odradek groups` against real brokers, with groups in both stores."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.tools import groups, retries, zookeeper_client
from odradek.tools.errors import ToolError
from odradek.zk import consumers
from tests.support import preloaded
from tests.support.broker import STEADY, Broker, Cluster, wait_until
from tests.support.clients import await_leaders, create_topic, produce_all

TOPIC = "t"
GROUP = "readers"
HEADER = [
    *("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"),
    *("CONSUMER-ID", "HOST", "CLIENT-ID"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {
        **STEADY,
        "offsets.topic.num.partitions": "2",
        "offsets.topic.replication.factor": "1",
    }
    with Cluster(tmp_path_factory.mktemp("cluster"), settings=settings) as running:
        create_topic(running.bootstrap, TOPIC, 2)
        produce_all(running.bootstrap, TOPIC, [b"x"] * 20, partitions=2)
        yield running


def run(*arguments: str, status: int = 0) -> tuple[str, str]:
    """What the command printed to stdout and stderr."""
    done = preloaded.run("odradek", "groups", *arguments, timeout=120)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def rows(said: str) -> list[list[str]]:
    """The cells of a table without its header."""
    return [line.split() for line in said.splitlines()[1:]]


def commit(cluster: Cluster, group: str, offset: int, topic: str = TOPIC) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 0}
    )
    places = [confluent_kafka.TopicPartition(topic, number, offset) for number in (0, 1)]

    def is_committed() -> bool:
        done = consumer.commit(offsets=places, asynchronous=False)
        return all(one.error is None for one in done)

    wait_until(is_committed, "committed")
    consumer.close()


def test_names_that_strangers_chose_do_not_steer_a_terminal(cluster: Cluster) -> None:
    odd, plain = "odd \x1b[2J\n\x9b\tgroup", "odd \\x1b[2J\\n\\x9b\\tgroup"
    at = ("--bootstrap-server", cluster.bootstrap)
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": odd,
            "client.id": "id\x1b]0;mine\x07",
            "log_level": 0,
        }
    )
    try:
        reader.subscribe([TOPIC])
        wait_until(lambda: reader.poll(0.1) is None and bool(reader.assignment()), "a member")
        assert plain in run("list", *at)[0].splitlines()
        said, _ = run("describe", *at, "--group", odd, "--members")
        assert "\x1b" not in said
        assert said.splitlines()[1].startswith(f"{plain} id\\x1b]0;mine\\x07-")
        refused = run("reset-offsets", *at, "--group", odd, "--all-topics", "--to-latest", status=2)
        assert refused[1] == (
            f"odradek: offsets can only be changed while group {plain} is inactive, but it is "
            "Stable\n"
        )
    finally:
        reader.close()


def test_group_of_the_coordinator_is_shown_moved_and_deleted(
    cluster: Cluster, tmp_path: Path
) -> None:
    at = ("--bootstrap-server", cluster.bootstrap)
    commit(cluster, GROUP, 4)
    assert GROUP in run("list", *at)[0].split()
    assert [GROUP, "Empty"] in rows(run("list", *at, "--state")[0])
    said, warning = run("describe", *at, "--group", GROUP)
    assert said.splitlines()[0].split() == HEADER
    expected = [[GROUP, TOPIC, str(part), "4", "10", "6", "-", "-", "-"] for part in (0, 1)]
    assert rows(said) == expected
    assert warning == f"Consumer group '{GROUP}' has no active members.\n"

    def reset(*how: str) -> list[str]:
        said, _ = run("reset-offsets", *at, "--group", GROUP, *how)
        assert said.splitlines()[0].split() == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]
        return [row[3] for row in rows(said)]

    every = ("--topic", TOPIC)
    assert reset(*every, "--to-latest") == ["10", "10"]
    assert rows(run("describe", *at, "--group", GROUP)[0]) == expected, "nothing was asked to move"
    assert reset("--all-topics", "--shift-by", "-1", "--execute") == ["3", "3"]
    assert reset("--topic", f"{TOPIC}:1", "--to-offset", "99", "--execute") == ["10"]
    assert reset("--all-topics", "--to-current") == ["3", "10"]
    assert reset(*every, "--to-datetime", datetime.now(UTC).isoformat()) == ["10", "10"]
    assert reset(*every, "--by-duration", "PT1H") == ["0", "0"]
    exported, _ = run(
        *("reset-offsets", *at, "--group", GROUP, *every, "--to-earliest", "--export")
    )
    assert exported == f"{TOPIC},0,0\n{TOPIC},1,0\n"
    plan = tmp_path / "plan.csv"
    plan.write_text(exported)
    assert reset("--from-file", str(plan), "--execute") == ["0", "0"]
    assert [row[3] for row in rows(run("describe", *at, "--group", GROUP)[0])] == ["0", "0"]

    assert "would be deleted" in run("delete", *at, "--group", GROUP)[0]
    assert GROUP in run("list", *at)[0].split()
    assert "are deleted" in run("delete", *at, "--group", GROUP, "--execute")[0]
    assert GROUP not in run("list", *at)[0].split()


def test_lag_counts_the_unread_records_that_are_there(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    place = confluent_kafka.TopicPartition("short", 1, 8)
    create_topic(cluster.bootstrap, "short", 2)
    produce_all(cluster.bootstrap, "short", [b"x"] * 20, partitions=2)
    admin.delete_records([place])[place].result(60)
    at = ("describe", "--bootstrap-server", cluster.bootstrap, "--group", "odd")
    # Where the log begins later than the group stands, and where it ends earlier.
    for offset, lags in ((4, ["6", "2"]), (99, ["10", "2"])):
        commit(cluster, "odd", offset, "short")
        assert rows(run(*at)[0]) == [
            ["odd", "short", str(part), str(offset), "10", lags[part], "-", "-", "-"]
            for part in (0, 1)
        ]
    with cluster.zookeeper.client() as client:
        client.create(consumers.offset_path("former", "made", 0), b"3", makepath=True)
        create_topic(cluster.bootstrap, "made", 1)
        produce_all(cluster.bootstrap, "made", [b"x"] * 5)
        at = ("describe", "--zookeeper", cluster.zookeeper.connect, "--group", "former")
        assert rows(run(*at)[0]) == [["former", "made", "0", "3", "5", "5", "-", "-", "-"]]
        client.set(consumers.offset_path("former", "made", 0), b"3")
        assert rows(run(*at)[0]) == [["former", "made", "0", "3", "5", "2", "-", "-", "-"]]
        client.delete(consumers.group_path("former"), recursive=True)


def test_reset_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "LONGEST_WAIT_S", 0.5)
    settings = {
        **STEADY,
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
    }
    with Cluster(tmp_path, brokers=2, settings=settings) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.brokers[1].address, "log_level": 0})
        split = NewTopic("split", 2, replica_assignment=[[1], [2]])
        admin.create_topics([split], operation_timeout=60)["split"].result(120)
        await_leaders(cluster.bootstrap, "split", 2)
        cluster.brokers[2].terminate()

        def half_is_led() -> bool:
            partitions = admin.list_topics(timeout=30).topics["split"].partitions
            return [partitions[number].leader for number in (0, 1)] == [1, -1]

        wait_until(half_is_led, "half of the partitions have a leader")
        at = ("--bootstrap-server", cluster.brokers[1].address)
        reset = ("reset-offsets", *at, "--group", "torn", "--topic", "split", "--execute")
        for way in (
            ("--to-earliest",),
            ("--to-latest",),
            ("--to-current",),
            ("--to-datetime", "2026-11-21"),
            ("--by-duration", "PT1H"),
        ):
            done = CliRunner().invoke(groups.commands, [*reset, *way])
            assert (done.exit_code, done.stdout) == (1, "")
            assert done.stderr.splitlines()[-1] == "odradek: split-1 has no leader"
        assert "torn" not in run("list", *at)[0].split()


def test_commands_wait_for_a_leader_and_a_coordinator_that_are_away(tmp_path: Path) -> None:
    settings = {
        **STEADY,
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
    }
    with Cluster(tmp_path, brokers=2, settings=settings) as cluster:
        create_topic(cluster.bootstrap, "single", partitions=2, replicas=1)
        at = ("--bootstrap-server", cluster.bootstrap)
        names = [part for one in ("moved", "shown", "gone") for part in ("--group", one)]
        run("reset-offsets", *at, *names, "--topic", "single", "--to-offset", "0", "--execute")
        [[_, _, number, *_]] = rows(run("describe", *at, "--group", "moved", "--state")[0])
        coordinator = cluster.brokers[int(number.strip("()"))]
        [other] = [one for one in cluster.brokers.values() if one is not coordinator]
        reset = ("reset-offsets", "--group", "moved", "--topic", "single", "--to-latest")

        cluster.crash(other.broker_id)
        with running(coordinator, *reset) as process:
            assert announced(process) in {f"single-{part} has no leader" for part in (0, 1)}
            other.start()
            assert process.wait(300) == 0

        cluster.crash(coordinator.broker_id)
        with (
            running(other, *reset, "--execute") as moving,
            running(other, "describe", "--group", "shown") as showing,
            running(other, "delete", "--group", "gone", "--execute") as deleting,
        ):
            for process, group in ((moving, "moved"), (showing, "shown"), (deleting, "gone")):
                assert announced(process) == f"group {group} has no coordinator"
            coordinator.start()
            for process in (moving, showing, deleting):
                assert process.wait(300) == 0
        assert run("list", *at)[0].split() == ["moved", "shown"]


@contextlib.contextmanager
def running(broker: Broker, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command of its own process that asks one broker first."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "odradek", "groups", *arguments),
            *("--bootstrap-server", broker.address),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def announced(process: subprocess.Popen[str]) -> str:
    """What a command says that it waits for."""
    assert process.stderr is not None
    said = process.stderr.readline()
    assert said.startswith("odradek: ")
    assert said.endswith("; retrying for up to 30 s\n"), said
    return said.removeprefix("odradek: ").removesuffix("; retrying for up to 30 s\n")


def test_group_with_members_is_shown_and_left_alone(cluster: Cluster) -> None:
    at = ("--bootstrap-server", cluster.bootstrap, "--group", "busy")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "busy",
            "client.id": "reader",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([TOPIC])

    def is_read() -> bool:
        message = consumer.poll(0.2)
        return message is not None and message.error() is None

    try:
        wait_until(is_read, "a record is read")
        said, _ = run("describe", *at)
        assert {(row[2], row[8]) for row in rows(said)} == {("0", "reader"), ("1", "reader")}
        [[*_, client, count]] = rows(run("describe", *at, "--members")[0])
        assert (client, count) == ("reader", "2")
        [[_, address, _, strategy, state, members]] = rows(run("describe", *at, "--state")[0])
        assert (address, strategy, state, members) == (cluster.bootstrap, "range", "Stable", "1")
        way = ("--topic", TOPIC, "--to-earliest", "--execute")
        _, said = run("reset-offsets", *at, *way, status=2)
        assert said.splitlines() == [
            "odradek: offsets can only be changed while group busy is inactive, but it is Stable"
        ]
        run("delete", *at, "--execute", status=2)
    finally:
        consumer.close()


def test_group_in_zookeeper_is_shown_moved_copied_and_deleted(cluster: Cluster) -> None:
    at = ("--zookeeper", cluster.zookeeper.connect)
    group = ("--group", "old")
    with cluster.zookeeper.client() as client:
        for part in (0, 1):
            path = consumers.offset_path("old", TOPIC, part)
            client.create(path, b"7", makepath=True)
        registration = consumers.encode_consumer(consumers.ConsumerRegistration({TOPIC: 1}))
        member = consumers.consumer_id_path("old", "old_a")
        owner = consumers.owner_path("old", TOPIC, 0)
        client.create(member, registration, ephemeral=True, makepath=True)
        client.create(owner, b"old_a-0", ephemeral=True, makepath=True)
        assert ["old", "Stable"] in rows(run("list", *at, "--state")[0])
        assert rows(run("describe", *at, *group)[0]) == [
            ["old", TOPIC, "0", "7", "10", "3", "old_a", "-", "-"],
            ["old", TOPIC, "1", "7", "10", "3", "-", "-", "-"],
        ]
        run("reset-offsets", *at, *group, "--all-topics", "--to-earliest", "--execute", status=2)
        client.delete(member)
        client.delete(owner)
        run("reset-offsets", *at, *group, "--all-topics", "--shift-by", "1", "--execute")
        assert client.get(consumers.offset_path("old", TOPIC, 1))[0] == b"8"

        run("migrate", *at, *group, "--to", "kafka")
        there = ("--bootstrap-server", cluster.bootstrap)
        assert "old" not in run("list", *there)[0].split()
        run("migrate", *at, *group, "--to", "kafka", "--execute")
        assert [row[3] for row in rows(run("describe", *there, *group)[0])] == ["8", "8"]
        run("reset-offsets", *there, *group, "--all-topics", "--to-latest", "--execute")
        run("migrate", *at, *group, "--to", "zookeeper", "--execute")
        assert client.get(consumers.offset_path("old", TOPIC, 0))[0] == b"10"
        run("delete", *at, *group, "--execute")
        assert client.exists(consumers.group_path("old")) is None


def test_copy_passes_over_deleted_topics_and_never_goes_back(cluster: Cluster) -> None:
    at = ("--zookeeper", cluster.zookeeper.connect)
    migrate = ("migrate", *at, "--group", "past", "--to", "kafka", "--execute")
    with cluster.zookeeper.client() as client:
        for topic, part, offset in (("deleted", 0, b"5"), (TOPIC, 0, b"6"), (TOPIC, 1, b"7")):
            path = consumers.offset_path("past", topic, part)
            client.create(path, offset, makepath=True)
        gone = "odradek: warning: deleted-0 does not exist, its offset 5 is left out"
        said, warnings = run(*migrate)
        assert [row[1:] for row in rows(said)] == [[TOPIC, "0", "6"], [TOPIC, "1", "7"]]
        assert warnings.splitlines() == [gone]
        there = ("--bootstrap-server", cluster.bootstrap, "--group", "past")
        run("reset-offsets", *there, "--topic", f"{TOPIC}:0", "--to-offset", "9", "--execute")
        said, warnings = run(*migrate)
        assert [row[1:] for row in rows(said)] == [[TOPIC, "1", "7"]]
        ahead = f"odradek: warning: {TOPIC}-0 is at 9 already, its offset 6 is left out"
        assert warnings.splitlines() == [gone, ahead]
        assert [row[3] for row in rows(run("describe", *there)[0])] == ["9", "7"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "AT", "--zookeeper", "x"], "give either --bootstrap-server or --zookeeper"),
        (["describe", "AT"], "give either --group or --all-groups"),
        (["describe", "AT", "--group", "gone"], "consumer group gone does not exist"),
        (["delete", "AT", "--group", "gone"], "consumer group gone does not exist"),
        (["reset-offsets", "AT", "--group", "g", "--topic", "t"], "give exactly one of"),
        (
            ["reset-offsets", "AT", "--group", "g", "--topic", "u", "--to-latest"],
            "topic u does not exist",
        ),
        (["reset-offsets", "AT", "--group", "g", "--to-latest"], "either --topic or --all-topics"),
        (
            ["reset-offsets", "AT", "--group", "g", "--topic", "t", "--by-duration", "x"],
            "'x' is not a duration",
        ),
        (["reset-offsets", "AT", "--group", "g", "--from-file", "/nowhere"], "cannot read"),
        (["reset-offsets", "AT", "--group", "g", "--from-file", "PLAN"], "partition u-3 does not"),
        (["migrate", "AT", "--group", "g", "--to", "kafka"], "--zookeeper is required"),
        (["describe", "AT", "--group", "\udcff"], "is not UTF-8"),
        (["describe", "AT", "--group", ""], "consumer group '' does not exist"),
        (
            ["reset-offsets", "AT", "--group", "g", "--topic", f"t:{'9' * 5000}", "--to-latest"],
            "is not TOPIC or TOPIC:0,1",
        ),
        (
            [*("reset-offsets", "AT", "--group", "g", "--topic", "t"), "--from-file", "/dev/null"],
            "give either --from-file, or --topic or --all-topics",
        ),
        (
            ["reset-offsets", "AT", "--group", "g", "--from-file", "/dev/null", "--execute"],
            "there are no offsets of group g to reset",
        ),
        (
            ["reset-offsets", "AT", "--group", "gone", "--all-topics", "--to-latest", "--execute"],
            "there are no offsets of group gone to reset",
        ),
    ],
)
def test_mistake_is_one_line(
    cluster: Cluster, tmp_path: Path, arguments: list[str], words: str
) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text("u,3,0\n")
    known = {"AT": ["--bootstrap-server", cluster.bootstrap], "PLAN": [str(plan)]}
    filled = [part for argument in arguments for part in known.get(argument, [argument])]
    said, error = run(*filled, status=2)
    assert said == ""
    assert len(error.splitlines()) == 1
    assert words in error


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (["--from-file", "/nowhere"], "cannot read /nowhere"),
        (["--from-file", "PLAN"], "line 1 is not TOPIC,PARTITION,OFFSET"),
        (["--topic", "t", "--to-datetime", "noon"], "'noon' is not a time"),
    ],
)
def test_what_no_broker_needs_to_see_is_refused_first(
    tmp_path: Path, way: list[str], words: str
) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text("u;3;0\n")
    filled = [str(plan) if part == "PLAN" else part for part in way]
    nobody = ("--bootstrap-server", "127.0.0.1:1")
    _, error = run("reset-offsets", *nobody, "--group", "g", *filled, status=2)
    assert words in error


@pytest.mark.parametrize("name", ["", ".", "..", "kept/offsets", "/"])
def test_no_name_of_a_group_reaches_other_znodes(cluster: Cluster, name: str) -> None:
    at = ("--zookeeper", cluster.zookeeper.connect)
    with cluster.zookeeper.client() as client:
        path = consumers.offset_path("kept", TOPIC, 0)
        client.ensure_path(path)
        client.set(path, b"5")
        for command in (
            ("delete", "--execute"),
            ("describe",),
            ("reset-offsets", "--topic", TOPIC, "--to-latest", "--execute"),
        ):
            _, error = run(command[0], *at, "--group", name, *command[1:], status=2)
            assert error == f"odradek: {name!r} is no name of a group in ZooKeeper\n"
        assert client.get(path)[0] == b"5"


def test_group_that_is_named_twice_is_deleted_once(cluster: Cluster) -> None:
    commit(cluster, "twice", 1)
    delete = ("delete", "--bootstrap-server", cluster.bootstrap, "--group", "twice")
    assert run(*delete, "--group", "twice", "--execute")[0] == "Groups twice are deleted.\n"


def test_offsets_are_reset_to_0_and_by_0(cluster: Cluster) -> None:
    commit(cluster, "zero", 4)
    reset = ("reset-offsets", "--bootstrap-server", cluster.bootstrap, "--group", "zero")
    for way, offset in (("--shift-by", "4"), ("--to-offset", "0")):
        said, _ = run(*reset, "--all-topics", way, "0", "--execute")
        assert [row[3] for row in rows(said)] == [offset, offset]


def test_brokers_of_the_environment_are_asked_unless_an_option_says_otherwise(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(cluster, "elsewhere", 1)
    monkeypatch.setenv("ODRADEK_BOOTSTRAP_SERVER", cluster.bootstrap)
    assert "elsewhere" in run("list")[0].split()
    # It is no second store.
    assert "elsewhere" not in run("list", "--zookeeper", cluster.zookeeper.connect)[0].split()
    _, error = run("list", "--bootstrap-server", "127.0.0.1:1", status=1)
    assert "127.0.0.1:1" in error


def test_bad_address_is_one_line() -> None:
    for text in ("localhost:abc", "a..b:2181", ""):
        said, error = run("list", "--zookeeper", text, status=2)
        assert said == ""
        assert len(error.splitlines()) == 1
        assert f"{text!r} is not HOST:PORT,.../CHROOT" in error
    said, error = run("list", "--bootstrap-server", "broker..example.com:9092", status=2)
    assert said == ""
    assert len(error.splitlines()) == 1
    assert "'broker..example.com' is no host name" in error


def test_chroot_without_a_cluster_is_a_mistake(cluster: Cluster) -> None:
    said, error = run("list", "--zookeeper", f"{cluster.zookeeper.connect}/nowhere", status=2)
    assert said == ""
    assert error == "odradek: there is no cluster in ZooKeeper: it has no /brokers/ids\n"


def test_chroot_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(ToolError, match=r"is not HOST:PORT,\.\.\./CHROOT"):
        zookeeper_client.connect("localhost:1/\udcff")


def test_reset_that_nobody_hears_of_is_a_success_and_a_plan_that_nobody_reads_is_none(
    cluster: Cluster,
) -> None:
    command = (
        f"exec {sys.executable} -m odradek groups reset-offsets --topic {TOPIC} --to-offset 3 "
        f"--group unheard --bootstrap-server {cluster.bootstrap}"
    )
    found = []
    for more in ("--execute", "", "--export"):
        done = subprocess.run(
            f"{command} {more} >&-",
            shell=True,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
        found.append((done.returncode, done.stderr))
    assert found == [(0, ""), *[(2, "odradek: stdout is closed\n")] * 2]
    said, _ = run("describe", "--bootstrap-server", cluster.bootstrap, "--group", "unheard")
    assert [row[3] for row in rows(said)] == ["3", "3"]
