"""`odradek topics`, `odradek configs` and `odradek cluster` against real brokers."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import preloaded
from tests.support.broker import STEADY, Cluster, wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), 2, STEADY) as running:
        yield running


def run(cluster: Cluster, *arguments: str, status: int = 0) -> str:
    """Return what a command printed; on stderr if it was to fail."""
    done = preloaded.run(
        "odradek", *arguments, "--bootstrap-server", cluster.bootstrap, timeout=120
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if status else done.stdout


def document(cluster: Cluster, *arguments: str) -> Any:
    return json.loads(run(cluster, *arguments, "-o", "json"))


def rows(said: str) -> list[list[str]]:
    return [line.split() for line in said.splitlines()]


def test_topic_is_created_grown_changed_and_deleted(cluster: Cluster) -> None:
    shape = ("--partitions", "2", "--replication-factor", "2", "--config", "retention.ms=1000")
    assert run(cluster, "topics", "create", "orders", *shape) == "topic orders created\n"
    assert rows(run(cluster, "topics", "list")) == [
        ["TOPIC", "PARTITIONS", "REPLICATION-FACTOR", "UNDER-REPLICATED", "UNAVAILABLE"],
        ["orders", "2", "2", "0", "0"],
    ]
    assert run(cluster, "topics", "alter", "orders", "--partitions", "3") == (
        "topic orders has 3 partitions\n"
    )
    found = document(cluster, "topics", "describe", "orders")
    assert [one["partition"] for one in found] == [0, 1, 2]
    for one in found:
        assert one["leader"] == one["replicas"][0]
        assert sorted(one["replicas"]) == sorted(one["isr"]) == [1, 2]
        assert one["offline"] == []
    changes = ("--add-config", "max.message.bytes=99", "--delete-config", "retention.ms")
    run(cluster, "configs", "alter", "--topic", "orders", *changes, "--validate-only")
    described = ("configs", "describe", "--topic", "orders")
    assert rows(run(cluster, *described))[1:] == [["retention.ms", "1000", "topic", "false"]]
    assert run(cluster, "configs", "alter", "--topic", "orders", *changes) == (
        "topic orders changed\n"
    )

    def is_shown() -> bool:
        # The broker that is asked hears of the change by its notice.
        told = rows(run(cluster, *described))[1:]
        return told == [["max.message.bytes", "99", "topic", "false"]]

    wait_until(is_shown, "the change is shown")
    every = {one["name"]: one for one in document(cluster, *described, "--all")}
    assert every["cleanup.policy"]["value"] == "delete"
    assert run(cluster, "topics", "delete", "orders") == "topic orders deleted\n"
    wait_until(lambda: document(cluster, "topics", "list") == [], "the topic is gone")


def test_replicas_go_where_they_are_assigned(cluster: Cluster) -> None:
    run(cluster, "topics", "create", "placed", "--replica-assignment", "2:1,1:2")
    found = document(cluster, "topics", "describe", "placed")
    assert [one["replicas"] for one in found] == [[2, 1], [1, 2]]
    run(cluster, "topics", "delete", "placed")


def test_config_of_a_broker_and_of_all_brokers(cluster: Cluster) -> None:
    def alter(option: str, own: str, default: str) -> None:
        run(cluster, "configs", "alter", "--broker", "2", option, own)
        run(cluster, "configs", "alter", "--broker-defaults", option, default)

    def sources(broker: str) -> dict[str, str]:
        found = document(cluster, "configs", "describe", "--broker", broker)
        return {one["name"]: one["source"] for one in found}

    alter("--add-config", "background.threads=5", "log.retention.ms=7200000")
    # Each hears of a change by its own notice.
    default = {"log.retention.ms": "brokers' default"}
    own = {"background.threads": "broker", **default}
    wait_until(lambda: sources("2") == own, "broker 2 has both")
    wait_until(lambda: sources("1") == default, "broker 1 has the default")
    # Topics would have it, too.
    alter("--delete-config", "background.threads", "log.retention.ms")
    wait_until(lambda: sources("1") == sources("2") == {}, "both are as before")


def test_cluster_shows_what_each_broker_holds(cluster: Cluster) -> None:
    run(cluster, "topics", "create", "held", "--replica-assignment", "1:2,1:2")
    found = document(cluster, "cluster")
    assert found["controller"] in (1, 2)
    assert found["clusterId"]
    assert (found["underReplicated"], found["unavailable"]) == (0, 0)
    first, second = found["brokers"]
    assert (first["broker"], first["leaders"], first["replicas"]) == (1, 2, 2)
    assert (second["broker"], second["leaders"], second["replicas"]) == (2, 0, 2)
    assert [one["controller"] for one in (first, second)].count(True) == 1
    addresses = {one["address"] for one in found["brokers"]}
    assert addresses == set(cluster.bootstrap.split(","))
    assert "1 topics, 2 partitions, 0 under-replicated, 0 unavailable" in run(cluster, "cluster")
    run(cluster, "topics", "delete", "held")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topics", "create", "a b"), "topic a b: INVALID_TOPIC_EXCEPTION: "),
        (("topics", "create", "x", "--replication-factor", "9"), "INVALID_REPLICATION_FACTOR"),
        (("topics", "create", "x", "--config", "nope=1"), "INVALID_CONFIG"),
        (("topics", "create", "x", "--config", "nope"), "--config nope is not KEY=VALUE"),
        (("topics", "create", "x", "--partitions", "0"), "0 is not in the range 1<=x<=2147483647"),
        (("topics", "create", "x", "--replica-assignment", "1;2"), "is not a list such as"),
        (
            ("topics", "create", "x", "--replica-assignment", "1", "--partitions", "1"),
            "give either --replica-assignment",
        ),
        (("topics", "alter", "nope", "--partitions", "2"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("topics", "describe", "nope"), "topic nope does not exist"),
        (("topics", "describe", ""), "topic '' does not exist"),
        (("topics", "create", "a\nb"), r"topic 'a\nb': INVALID_TOPIC_EXCEPTION"),
        (("configs", "describe", "--topic", ""), "topic '': "),
        (("topics", "delete", "nope"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("configs", "describe", "--topic", "nope"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("configs", "describe", "--broker", "77"), "broker 77 does not exist, or is not up"),
        (
            ("configs", "alter", "--broker", "77", "--add-config", "background.threads=5"),
            "broker 77 does not exist, or is not up",
        ),
        (("configs", "describe"), "give one of --topic, --broker and --broker-defaults"),
        (("configs", "alter", "--broker", "1"), "give --add-config or --delete-config"),
        (
            ("configs", "alter", "--broker", "1", "--add-config", "broker.id=7"),
            "INVALID_REQUEST",
        ),
        (("topics", "create", "a\udcff"), "is not UTF-8"),
        (("topics", "create", "x", "--config", "retention.ms=\udcff"), "is not UTF-8"),
        (("topics", "create", "x" * 40_000), "too long for a request"),
        (("topics", "create", "x", "--partitions", str(2**31)), "not in the range"),
        (("topics", "create", "x", "--replica-assignment", str(2**31)), "is not a list such as"),
        (("topics", "create", "x", "--replica-assignment", "9" * 5000), "is not a list such as"),
    ],
)
def test_mistake_is_one_line_and_status_2(
    cluster: Cluster, arguments: tuple[str, ...], said: str
) -> None:
    told = run(cluster, *arguments, status=2)
    assert said in told
    assert len(told.splitlines()) == 1
    assert document(cluster, "topics", "list") == []


@pytest.mark.parametrize(
    ("redirection", "status", "said"),
    [
        (">/dev/full", 1, "odradek: cannot write to stdout: No space left on device\n"),
        (">&-", 2, "odradek: stdout is closed\n"),
    ],
)
@pytest.mark.parametrize("command", ["topics list", "topics list -o json", "cluster"])
def test_answer_that_nobody_gets_is_no_success(
    cluster: Cluster, command: str, redirection: str, status: int, said: str
) -> None:
    done = subprocess.run(
        f"exec {sys.executable} -m odradek {command} --bootstrap-server {cluster.bootstrap} "
        f"{redirection}",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (status, said)


def test_config_that_is_deleted_and_was_never_set_is_told(cluster: Cluster) -> None:
    run(cluster, "topics", "create", "plain", "--config", "retention.ms=5")
    for own in (("--topic", "plain"), ("--broker", "1"), ("--broker-defaults",)):
        alter = ("configs", "alter", *own, "--bootstrap-server", cluster.bootstrap)
        done = preloaded.run("odradek", *alter, "--delete-config", "retention.mss", timeout=60)
        assert done.stderr.startswith("odradek: warning: ")
        assert done.stderr.endswith(" had no retention.mss of its own\n")
    alter = ("configs", "alter", "--topic", "plain", "--bootstrap-server", cluster.bootstrap)
    done = preloaded.run("odradek", *alter, "--delete-config", "retention.ms", timeout=60)
    assert (done.stdout, done.stderr) == ("topic plain changed\n", "")
    run(cluster, "topics", "delete", "plain")


def test_unreachable_cluster_is_status_1() -> None:
    done = preloaded.run(
        "odradek", "topics", "list", "--bootstrap-server", "localhost:1", timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("odradek: failed to reach any broker: localhost:1: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [("topics", "list"), ("produce", "t"), ("groups", "list")])
def test_ctrl_c_ends_a_command_quietly(command: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "odradek", *command, "--bootstrap-server", address],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            asked, _ = silent.accept()
            with asked:
                assert asked.recv(1)
                process.send_signal(signal.SIGINT)
                said, _ = process.communicate(timeout=120)
            assert (process.returncode, said) == (130, b"")
        finally:
            process.kill()
            process.wait()


def test_topic_that_exists_already_is_no_mistake_if_so_asked(cluster: Cluster) -> None:
    run(cluster, "topics", "create", "kept")
    run(cluster, "topics", "create", "kept", status=2)
    assert run(cluster, "topics", "create", "kept", "--if-not-exists") == (
        "topic kept exists already\n"
    )
    run(cluster, "topics", "delete", "kept", "nope", "--if-exists")
    assert run(cluster, "topics", "delete", "nope", "--if-exists") == "no such topic exists\n"
