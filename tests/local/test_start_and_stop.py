"""`odradek local` without a job: what goes wrong, and that nothing is left running."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from odradek_local import command, connector, data_folder, java, plan, processes, resources
from odradek_local.data_folder import DataFolder
from odradek_local.display import Display
from odradek_local.errors import LocalError
from odradek_local.processes import Child, ProcessIdentity
from odradek_local.schema import SchemaError, checked
from tests.support.local_run import LocalRun, assert_gone, sessions

pytestmark = pytest.mark.timeout(2400)


def cluster(**brokers: Any) -> dict[str, Any]:
    spec = {"zookeeper": {"connect": "nowhere:1"}, "brokers": {"replicas": 2, **brokers}}
    return resource("KafkaCluster", "main", **spec)


def topic(name: str = "t", **spec: Any) -> dict[str, Any]:
    return resource("Topic", name, **{"clusterRef": {"name": "main"}, "partitions": 2, **spec})


def group(**spec: Any) -> dict[str, Any]:
    job = {"sql": "select 1", "sink": {"parquet": {"path": "/data/out"}}}
    given = {"clusterRef": {"name": "main"}, "topics": ["t"], "job": job, **spec}
    return resource("ConsumerGroup", "g", **given)


def resource(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name}
    return {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
    }


def written(folder: Path, *documents: Any) -> Path:
    path = folder / "resources.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


# --- resources --------------------------------------------------------------------------------


def test_default_resources_use_all_that_they_say() -> None:
    found = resources.read(None)
    assert [one.datagen for one in found.topics] == ["clickstream"]
    assert found.unused == ("KafkaCluster.spec.zookeeper.connect",)


def test_the_quickstart_on_kubernetes_is_read_and_what_has_no_meaning_is_named() -> None:
    found = resources.read(Path(__file__).parents[2] / "examples/quickstart")
    assert [one.name for one in found.groups] == ["log-counts"]
    assert {"Namespace logs", "DaemonSet collector", "Topic.spec.deletionPolicy"} <= {*found.unused}
    secured = {"KafkaCluster.spec.listeners", "KafkaCluster.spec.authorization"}
    assert {*secured, "User collector", "User admin"} <= {*found.unused}


def test_image_and_rollout_of_brokers_have_no_meaning_here(tmp_path: Path) -> None:
    wanted = cluster()
    wanted["spec"] |= {"image": "registry.test/broker:1", "rollout": {"requestId": "1"}}
    found = resources.read(written(tmp_path, wanted)).unused
    assert {"KafkaCluster.spec.image", "KafkaCluster.spec.rollout"} <= {*found}


def test_reassignments_are_left_out_and_named(tmp_path: Path) -> None:
    moves = resource("Reassignment", "r", clusterRef={"name": "main"}, mode="PreferredLeader")
    found = resources.read(written(tmp_path, cluster(), moves))
    assert "Reassignment r" in found.unused


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([], "exactly one KafkaCluster is needed, and there is none"),
        ([cluster(), cluster()], "KafkaCluster main is there twice"),
        (
            [cluster(), {**cluster(), "metadata": {"name": "other"}}],
            "exactly one KafkaCluster is needed",
        ),
        (["text"], "is no resource: it must have apiVersion, kind and metadata.name"),
        ([resource("Topic", "")], "is no resource"),
        ([resource("Stream", "s")], "Stream s (odradek.io/v1alpha1) is not supported here"),
        ([cluster(replica=3)], "spec.brokers.replica is unknown; known are affinity, config"),
        ([cluster(replicas="3")], "spec.brokers.replicas must be an integer, not '3'"),
        ([cluster(replicas=True)], "spec.brokers.replicas must be an integer, not True"),
        ([cluster(replicas=0)], "spec.brokers.replicas must be at least 1, not 0"),
        (
            [{**cluster(), "spec": {**cluster()["spec"], "image": "a b"}}],
            "spec.image 'a b' does not",
        ),
        ([cluster(config={"num.partitions": 3})], 'must be a string, not 3; write it in quotes: "'),
        (
            [cluster(config={"num.partitions": "x"})],
            "KafkaCluster main: Invalid value x for configuration num.partitions",
        ),
        ([cluster(config={"listeners": "PLAINTEXT://:1"})], "the operator sets listeners itself"),
        ([cluster(config={"default.replication.factor": "3"})], "larger than the number of"),
        ([cluster(), topic(clusterRef={"name": "other"})], "of KafkaCluster other, which is not"),
        (
            [cluster(), topic(config={"retention.ms": "soon"})],
            "Topic t: Invalid value soon for configuration retention.ms",
        ),
        ([cluster(), topic(replicationFactor=3)], "Topic t: 3 replicas are more than the 2"),
        ([cluster(), topic("u", topicName="t"), topic()], "topic t is there twice"),
        ([cluster(), topic(), topic(topicName="other")], "Topic t is there twice"),
        ([cluster(), topic("t/../t")], "Topic t/../t: metadata.name must be lower case letters"),
        ([cluster(), topic("a" * 254)], "metadata.name must be lower case letters"),
        ([cluster(), group()], "ConsumerGroup g: there is no Topic t"),
        ([cluster(), group(job={"sql": "select 1"})], "spec.job.sink is missing"),
        (
            [cluster(), topic(), group(job={"sql": "select 1", "sink": {"parquet": None}})],
            "the size of spec.job.sink must be at least 1, not 0",
        ),
        ([cluster(), group(topicPattern="(")], "topicPattern"),
        ([cluster(), resource("User", "u", acls=[])], "User u: spec.acls is unknown; known are"),
        ([cluster(), resource("Reassignment", "r", mode="Some")], "Reassignment r: spec.mode 'So"),
    ],
)
def test_mistakes_in_resources_are_one_line(
    tmp_path: Path, documents: list[Any], said: str
) -> None:
    with pytest.raises(LocalError) as refused:
        resources.read(written(tmp_path, *documents))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.status == 2


def test_unreadable_files_are_one_line(tmp_path: Path) -> None:
    bad, empty = tmp_path / "bad.yaml", tmp_path / "empty"
    empty.mkdir()
    for content, said in ((b"a: [1\nb: 2\n", "is not YAML: line 2"), (b"\xff\xfe\x00", "bad.yaml")):
        bad.write_bytes(content)
        with pytest.raises(LocalError, match=said):
            resources.read(bad)
    with pytest.raises(LocalError, match="has no YAML files"):
        resources.read(empty)


def test_a_kustomization_that_is_wrong_is_one_line(tmp_path: Path) -> None:
    kustomization = tmp_path / "kustomization.yaml"
    for listed, said in (
        ("5", "kustomization.yaml: resources must be a list"),
        ("a.yaml", "kustomization.yaml: resources must be a list"),
        ("[a.yaml]", "cannot read .*a.yaml: No such file"),
        (f"[{'a' * 300}]", "cannot read .*aaa: File name too long"),
        ('["."]', "names a folder that it is in"),
    ):
        kustomization.write_text(f"resources: {listed}\n")
        with pytest.raises(LocalError, match=said):
            resources.read(tmp_path)


def test_unknown_datagen_is_refused(tmp_path: Path) -> None:
    filled = topic()
    for wrong in ("weather", ["clickstream"]):
        filled["metadata"]["annotations"] = {resources.DATAGEN: wrong}
        said = f"{re.escape(repr(wrong))} is not one of users, pageviews"
        with pytest.raises(LocalError, match=said):
            resources.read(written(tmp_path, cluster(), filled))


def test_defaults_bounds_and_patterns_are_those_of_the_crd() -> None:
    schema = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
            "mode": {"type": "string", "enum": ["A", "B"], "default": "A"},
            "size": {"x-kubernetes-int-or-string": True},
            "many": {"type": "array", "items": {"type": "integer", "maximum": 2}},
        },
    }
    given = {"name": "abc", "size": "1Gi", "many": [1, 2]}
    assert checked(schema, given, "spec") == {**given, "mode": "A"}
    for wrong in (
        {},
        {"name": "ABC"},
        {"name": "abcd"},
        {"name": "abc", "mode": "C"},
        {"name": "abc", "many": [3]},
        {"name": "abc", "size": True},
        {"name": None},
        {"name": "abc", 1: 2},
    ):
        with pytest.raises(SchemaError, match="spec"):
            checked(schema, wrong, "spec")


def test_escapes_of_json_are_the_characters_that_they_mean() -> None:
    one = {"type": "string", "pattern": "^.$"}
    schema = {"type": "object", "properties": {"text": one}, "additionalProperties": one}
    # As the loader of YAML reads "\ud83d\ude00".
    halves = "\ud83d\ude00"
    found = checked(schema, {"text": halves, halves: "a"}, "spec")
    assert found == {"text": "\U0001f600", "\U0001f600": "a"}
    for wrong in ({"text": "\ud83d"}, {"\ud83d": "a"}):
        with pytest.raises(SchemaError, match=r"^spec.* is not Unicode text"):
            checked(schema, wrong, "spec")


def test_paths_on_the_volume_of_a_job_are_in_its_folder(tmp_path: Path) -> None:
    ports = plan.Ports(1, (2,), (3,), (4,), 5)

    def planned(path: str) -> plan.LocalJob:
        job = {"sql": "select 1", "sink": {"parquet": {"path": path}}}
        found = resources.read(written(tmp_path, cluster(), topic(), group(job=job)))
        return plan.job(found, found.groups[0], ports, 0, tmp_path, Path("/j/bin/java"))

    assert planned("/data/a/b").table == tmp_path / "data/a/b"
    for wrong in ("/data", "/data/", "/elsewhere/a", "/data/../a"):
        with pytest.raises(LocalError, match="must be below /data"):
            planned(wrong)


def test_java_that_is_missing_or_old_is_one_line_that_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin/java"
    program.parent.mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(program.parent))
    with pytest.raises(LocalError, match="Java 17 or later is missing: install it with `apt-get"):
        java.find()
    for said, expected in (
        ('openjdk version "11.0.2"', "is Java 11, and 17 or later is needed"),
        ('java version "1.8.0_402"', "is Java 8, and 17"),
        ("Unable to locate a Java Runtime.", "has no Java that runs"),
    ):
        program.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
        program.chmod(0o755)
        with pytest.raises(LocalError, match=expected):
            java.find()
    program.write_text("#!/bin/sh\necho 'openjdk version \"21\" 2023-09-19' >&2\n")
    assert java.find() == program


# --- processes --------------------------------------------------------------------------------


def test_mistakes_end_with_status_2_before_anything_starts(tmp_path: Path) -> None:
    file = written(tmp_path, cluster(replicas="x"))
    locked, marked = tmp_path / "locked", tmp_path / "marked"
    (locked / "lock").mkdir(parents=True)
    (marked / "cluster.json").mkdir(parents=True)
    for arguments, said in (
        (["-f", str(file)], f"odradek: {file}: KafkaCluster main: spec.brokers.replicas must be"),
        (["--once", "--keep"], "give either --once or --keep"),
        (["-f", str(tmp_path / "none.yaml")], "does not exist"),
        (["--jars", str(tmp_path)], "has no spark-sql-kafka"),
        (["--data", "~nobody-has-this-name/data"], "odradek: cannot use ~nobody-has-this-name/"),
        (["stop", "--data", "~nobody-has-this-name/data"], "odradek: cannot use ~nobody-has-this"),
        (["stop", "--data", str(locked)], f"odradek: cannot use {locked} for data: Is a directory"),
        (["--data", str(locked)], f"odradek: cannot use {locked} for data: Is a directory"),
        (["--data", str(marked)], f"odradek: cannot use {marked} for data: Is a directory"),
    ):
        with LocalRun(tmp_path / "data", *arguments) as one:
            assert one.wait() == 2
            assert said in one.output()
            assert "Traceback" not in one.output()
            assert not one.output().startswith("\n")
        assert one.data.note() is None


@pytest.mark.parametrize("name", ["a,b", "a\\b", "a\nb", "\udcff"])
def test_a_folder_that_settings_cannot_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(LocalError, match="for data: its path must be UTF-8, without comma"):
        DataFolder(tmp_path / name)


def test_without_a_home_only_a_folder_that_is_given_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "~nobody-has-this-name")
    said = "^cannot use ~nobody-has-this-name for data, give a folder with --data: "
    with pytest.raises(LocalError, match=said):
        data_folder.default()
    assert DataFolder(tmp_path).option() == f" --data {tmp_path}"


def test_help_says_what_moves_the_folder_of_the_data() -> None:
    [data] = [one for one in command.local.params if one.name == "data"]
    assert isinstance(data, click.Option)
    assert "$XDG_STATE_HOME" in str(data.help)


def test_the_guide_names_the_folder_into_which_spark_fetches_its_connector() -> None:
    guide = (Path(__file__).parents[2] / "docs/commands.md").read_text()
    assert f"from Maven Central to `{connector.FETCHED_TO}`" in guide


def test_a_start_says_what_is_taken_and_what_dies_and_ends_whole(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        file = written(tmp_path, cluster(port=port, storage={"size": "1Gi"}), topic())
        # No process takes what is for another cluster.
        login = "-Djava.security.auth.login.config=/nowhere"
        other_cluster = {"ODRADEK_COMMAND_CONFIG": "/nowhere", "KAFKA_OPTS": login}
        with LocalRun(data, "-f", str(file), environment=other_cluster) as one:
            one.wait_for("Ctrl-C ends everything")
            said = one.output()
            assert f"note: port {port} is taken; brokers: " in said
            assert "without meaning here: KafkaCluster.spec.zookeeper.connect, " in said
            assert "topics describe t --bootstrap-server 127.0.0.1:" in said
            # ZooKeeper, two brokers and the console.
            note = one.note(4)
            console = next(line for line in said.splitlines() if line.startswith("  console "))
            with urllib.request.urlopen(console.split()[-1], timeout=60) as page:
                assert "<h1>" in page.read().decode()
            with LocalRun(data, "-f", str(file)) as second:
                assert second.wait() == 2
                (line,) = filter(None, second.output().splitlines())
                assert line.startswith(f"odradek: {data} is in use by another `odradek local`, pro")
            dead = note.stages[2][0]
            os.killpg(dead.pid, signal.SIGKILL)
            one.wait_for("broker-0 was killed by signal 9")
            assert one.stop() == 0, one.output()
            assert_gone(note)
            assert one.output().endswith(f"Stopped. The data stay in {data}\n")
    with LocalRun(data, "-f", str(written(tmp_path, cluster(replicas=1)))) as fewer:
        assert fewer.wait() == 2
        assert "has the data of KafkaCluster main with 2 brokers, not of main with 1" in (
            fewer.output()
        )


def test_nothing_is_written_where_nothing_is_to_be_stopped(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with LocalRun(data, "stop") as stop:
        assert (stop.wait(), stop.output()) == (0, "Nothing is running.\n")
    assert not list(data.iterdir())


def test_what_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    in_the_way = data / "broker-1.properties"
    in_the_way.mkdir(parents=True)
    with LocalRun(data, "-f", str(written(tmp_path, cluster()))) as one:
        assert one.wait() == 1
        assert f"odradek: {in_the_way}: Is a directory\n" in one.output()
        assert "Traceback" not in one.output()
        # ZooKeeper and the first broker would hold the lock.
        assert not one.data.stop()


def test_all_addresses_are_of_the_loopback(tmp_path: Path) -> None:
    ports = plan.Ports(1, (2, 3), (4, 5), (6,), 7)
    job = {"sql": "select 1", "sink": {"parquet": {"path": "/data/a"}}}
    found = resources.read(written(tmp_path, cluster(), topic(), group(job=job)))
    assert "odradek.metrics.host=127.0.0.1\n" in plan.server_properties(found, ports, 0, tmp_path)
    planned = plan.job(found, found.groups[0], ports, 0, tmp_path, Path("/j/bin/java"))
    assert json.loads(planned.file)["metricsHost"] == "127.0.0.1"
    command = plan.console_command(found, ports)
    assert command[command.index("--host") + 1] == "127.0.0.1"


def test_files_where_the_user_is_are_no_modules_of_brokers(tmp_path: Path) -> None:
    (tmp_path / "signal.py").write_text("raise SystemExit(99)\n")
    command = plan.broker_command(tmp_path / "none.properties")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "none.properties" in done.stderr) == (2, True)
    ports = plan.Ports(1, (2, 3), (4, 5), (), 7)
    found = resources.read(None)
    datagen = plan.datagen_command(found.topics[0], ports)
    for others in (plan.console_command(found, ports), datagen):
        assert others[:2] == command[:2]


def test_steps_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (10, 40, 70, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = io.StringIO()
        with Display(shown, is_terminal=True).step("Brokers", "127.0.0.1:1"):
            pass
        line = shown.getvalue().rpartition("\x1b[K")[2]
        assert len(line.rstrip("\n")) < max(columns, 40)


def test_what_is_kept_goes_on_until_it_is_stopped(tmp_path: Path) -> None:
    data = tmp_path / "my data"
    file = str(written(tmp_path, cluster(replicas=1), topic()))
    with LocalRun(data, "--keep", "-f", file) as one:
        assert one.wait() == 0, one.output()
        assert f"local stop --data '{data}'" in one.output()
        note = one.data.note()
        assert note is not None
        assert note.kept
        assert len(sessions(note)) == 3
        with LocalRun(data, "-f", file) as second:
            assert second.wait() == 2
            assert "is in use by an `odradek local` in the background" in second.output()
            assert f"`odradek local stop --data '{data}'`" in second.output()
        with LocalRun(data, "stop") as stop:
            assert stop.wait() == 0
            assert stop.output() == f"Stopped. The data stay in {data}\n"
        assert_gone(note)
        with LocalRun(data, "stop") as stop:
            assert (stop.wait(), stop.output()) == (0, "Nothing is running.\n")


def test_signals_early_in_a_start_leave_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    file = str(written(tmp_path, cluster(replicas=1)))
    for number in (signal.SIGINT, signal.SIGTERM):
        with LocalRun(data, "-f", file) as one:
            note = one.note(1)
            assert one.stop(number) == 128 + number, one.output()
            assert_gone(note)
            assert "Traceback" not in one.output()


def test_a_start_that_is_suspended_is_stopped(tmp_path: Path) -> None:
    data = tmp_path / "data"
    file = str(written(tmp_path, cluster(replicas=1)))
    with LocalRun(data, "-f", file) as one:
        note = one.note(2)
        one.process.send_signal(signal.SIGSTOP)
        with LocalRun(data, "stop") as stop:
            assert stop.wait() == 0, stop.output()
        assert one.wait() in (0, 128 + signal.SIGTERM)
        assert_gone(note)


def test_java_of_java_home_need_not_be_on_the_path(tmp_path: Path) -> None:
    program = shutil.which("java")
    assert program is not None
    home = {"JAVA_HOME": str(Path(program).resolve().parents[1]), "PATH": str(tmp_path)}
    file = str(written(tmp_path, cluster(replicas=1)))
    with LocalRun(tmp_path / "data", "-f", file, environment=home) as one:
        note = one.note(2)
        assert one.stop() in (0, 128 + signal.SIGINT), one.output()
        assert_gone(note)


def test_what_a_killed_start_leaves_is_ended(tmp_path: Path) -> None:
    data = tmp_path / "data"
    file = str(written(tmp_path, cluster(replicas=1)))
    with LocalRun(data, "-f", file) as one:
        note = one.note(2)
        one.process.kill()
        # Its guard notices.
        assert_gone(note)
    with LocalRun(data, "-f", file) as one:
        note = one.note(2)
        for guard in children(one.process.pid, "odradek_local.guard"):
            os.kill(guard, signal.SIGKILL)
        one.process.kill()
        one.process.wait()
        with LocalRun(data, "-f", file) as after:
            after.wait_for("note: ended 2 processes that a start which was killed had left")
            assert_gone(note)
            assert after.stop() in (0, 128 + signal.SIGINT)


def children(parent: int, module: str) -> list[int]:
    told = subprocess.run(
        ["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    fields = [line.split(None, 2) for line in told.stdout.splitlines()]
    return [int(pid) for pid, ppid, args in fields if int(ppid) == parent and module in args]


def test_guard_ends_sessions_that_ignore_sigterm_and_spares_those_released() -> None:
    ignoring = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); "
    command = [sys.executable, "-c", f"{ignoring}time.sleep(1000)"]
    guard = "from odradek_local import guard; guard._PATIENCE_S = 1; guard.main()"
    for ends in (True, False):
        guarded = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
        try:
            assert guarded.stdout is not None
            guarded.stdout.readline()
            told = f"+{guarded.pid}\n+999999999\n-999999999\n" + ("" if ends else "release\n")
            subprocess.run([sys.executable, "-c", guard], input=told, text=True, check=True)
            if ends:
                assert guarded.wait(120) == -signal.SIGKILL
            else:
                assert guarded.poll() is None
        finally:
            guarded.kill()
            guarded.communicate()


def test_a_system_without_proc_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    processes.check_system()
    monkeypatch.setattr(processes, "_birth", lambda _: None)
    with pytest.raises(LocalError, match="needs Linux"):
        processes.check_system()


def test_who_has_the_id_of_a_process_that_ended_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, _: killed.append(pid))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    # Its id is used again.
    ended.pid = os.getpid()
    now = processes.identity(os.getpid())
    assert now is not None
    cases: list[tuple[ProcessIdentity | None, list[int]]] = [
        (ProcessIdentity(os.getpid(), "1"), []),
        (None, []),
        (now, [os.getpid()]),
    ]
    for known, expected in cases:
        processes._kill_session(Child("broker-0", 2, ended, Path(os.devnull), known))
        assert killed == expected


def test_second_signal_kills_what_does_not_end(tmp_path: Path) -> None:
    file = str(written(tmp_path, cluster(replicas=1)))
    with LocalRun(tmp_path / "data", "-f", file) as one:
        note = one.note(2)
        broker = note.stages[2][0]
        os.kill(broker.pid, signal.SIGSTOP)
        one.process.send_signal(signal.SIGTERM)
        one.wait_for("Stopping")
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 128 + signal.SIGTERM
        assert_gone(note)


def test_help_names_the_options() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "odradek_local", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert {"--once", "--keep", "--data", "--file"} <= {
        word.rstrip(",") for word in told.stdout.split()
    }
