"""The report that ends `make up` waits for the whole path and says truly what it saw."""

import json
import subprocess
import urllib.parse
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from examples.quickstart import show
from odradek_spark import show as job_show

MINUTE = datetime(2026, 11, 21, 9, 30)
COLUMNS = ["minute", "component", "severity", "lines"]


def condition(status: str, reason: str = "Synced", message: str = "") -> dict[str, str]:
    return {"type": "Ready", "status": status, "reason": reason, "message": message}


def resource(kind: str, name: str, ready: str = "True", **more: Any) -> dict[str, Any]:
    conditions = [condition(ready, "Why", "because")]
    return {
        "kind": kind,
        "metadata": {"name": name, "generation": 1},
        "spec": {"partitions": 2, "zookeeper": {"connect": "zk:2181", "chroot": "/"}},
        "status": {"observedGeneration": 1, "conditions": conditions, **more},
    }


class World:
    """A cluster as kubectl tells of it; each answer may be a list, of which one is taken a time."""

    def __init__(self) -> None:
        broker = {"id": 0, "pod": "main-broker-0", "node": "n1", "address": "10.0.0.1:9092"}
        status: dict[str, Any] = {"brokers": [broker | {"registered": True}], "controllerId": 0}
        self.answers: dict[str, Any] = {
            "kafkacluster": resource("KafkaCluster", "main", **status),
            "topic": resource("Topic", "cluster-logs"),
            "consumergroup": resource("ConsumerGroup", "log-counts"),
            "table": job_show.render(COLUMNS, [(MINUTE, "kubelet", "error", 3)]),
            "count": 2,
            "sum": 0,
            "leaders": [
                {"partition": 0, "leader": 0, "isr": [0], "replicas": [0]},
                {"partition": 1, "leader": -1, "isr": [0], "replicas": [0]},
            ],
        }
        self.asked: list[str] = []

    def answer(self, name: str) -> Any:
        self.asked.append(name)
        found = self.answers[name]
        if isinstance(found, list) and found and name != "leaders":
            found = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(found, Exception):
            raise found
        return found

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        if arguments[0] == "exec" and "--stdin" in arguments:
            assert stdin is not None
            assert "zk:2181" in arguments
            return json.dumps(self.answer("leaders"))
        if arguments[0] == "exec":
            return str(self.answer("table"))
        query = urllib.parse.unquote(arguments[-1].split("query=")[1])
        value = self.answer(query.split("(")[0])
        samples = [] if value is None else [{"value": [0, str(value)]}]
        return json.dumps({"data": {"result": samples}})

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.answer(kind)
        return found

    @property
    def namespace(self) -> str:
        return "logs"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(show, "POLL_S", 0.0)
    return World()


def report(world: World, deadline_s: float = 60) -> str:
    return show.collect(world, show.Progress(deadline_s))  # type: ignore[arg-type]


def test_last_lines_are_the_verdict(world: World) -> None:
    assert report(world).splitlines()[-4:] == [
        "Brokers registered:        1 of 1",
        "Partitions with a leader:  1 of 2",
        "Lines counted:             3",
        "Total lag in Prometheus:   0",
    ]


def test_report_names_controller_and_client_address(world: World) -> None:
    lines = report(world).splitlines()
    (broker,) = [line for line in lines if "main-broker-0" in line]
    assert broker.split() == ["0", "main-broker-0", "n1", "10.0.0.1:9092", "yes", "*"]
    assert any(line.strip().startswith("kcat -b 10.0.0.1:9092 -L") for line in lines)


def test_further_commands_find_the_kubectl_in_use(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "the tools"
    folder.mkdir()
    (folder / "kubectl").write_text("#!/bin/sh\necho found\n")
    (folder / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    lines = report(world).splitlines()
    first = lines[lines.index("Look further") + 1]
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    script = f"{first}\nkubectl"
    found = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "found\n"


def test_lag_is_asked_until_it_is_zero(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.answers["sum"] = [7, 2, 0]
    assert report(world).endswith("Total lag in Prometheus:   0")
    progress = capsys.readouterr().err
    assert "total lag 7" in progress
    assert "total lag 2" in progress


@pytest.mark.parametrize("missing", [None, "NaN"])
def test_absent_lag_is_not_zero_lag(world: World, missing: object) -> None:
    world.answers["sum"] = missing
    with pytest.raises(TimeoutError, match="lag"):
        report(world, deadline_s=0)


def test_lag_of_some_partitions_is_not_total_lag(world: World) -> None:
    world.answers["count"] = 1
    with pytest.raises(TimeoutError, match="1 of 2 partitions"):
        report(world, deadline_s=0)


def test_empty_result_is_no_success(world: World) -> None:
    world.answers["table"] = job_show.render(COLUMNS, [])
    with pytest.raises(TimeoutError, match="no result yet"):
        report(world, deadline_s=0)
    assert "sum" not in world.asked


def test_resource_that_is_not_ready_says_why(world: World) -> None:
    world.answers["topic"] = resource("Topic", "cluster-logs", ready="False")
    with pytest.raises(TimeoutError, match="Topic cluster-logs: Why: because"):
        report(world, deadline_s=0)


def test_driver_that_restarts_between_is_waited_for(world: World) -> None:
    table = world.answers["table"]
    world.answers["table"] = [show.NotYetError("pod not found"), table]
    assert "Lines counted:             3" in report(world)


def test_main_exits_1_and_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(*_: object) -> str:
        raise TimeoutError("brokers: connection refused")

    monkeypatch.setattr(show, "collect", unreachable)
    assert show.main(["--timeout", "1"]) == 1
    assert "brokers: connection refused" in capsys.readouterr().err


def test_rows_of_the_jobs_own_table_are_read_back() -> None:
    rows: list[tuple[Any, ...]] = [
        (MINUTE, "kube-proxy on node", "warning", 12),
        (MINUTE, None, "i", 100000),
    ]
    parsed = show.parse_table(job_show.render(COLUMNS, rows))
    minute = "2026-11-21 09:30:00"
    assert [tuple(row.values()) for row in parsed] == [
        (minute, "kube-proxy on node", "warning", "12"),
        (minute, "", "i", "100000"),
    ]
    assert list(parsed[0]) == COLUMNS


def test_only_the_newest_windows_are_shown_but_all_are_counted() -> None:
    rows = tuple((f"09:3{i}", "kubelet", "info", 10) for i in range(5))
    found = show.Counts(rows)
    text = show.count_table(found, windows=2)
    assert found.lines == 50
    assert "09:33" in text
    assert "09:32" not in text
    assert text.endswith("(the newest 2 of 5 windows)")


def test_tables_keep_their_columns_and_no_trailing_blanks() -> None:
    text = show.table(("N", "NAME"), [(1, "a"), (22, "")])
    assert text.splitlines() == ["   N  NAME", "   1  a", "  22"]


def test_kubectls_refusal_is_something_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.setenv("KUBERNETES_MASTER", "https://127.0.0.1:1")
    with pytest.raises(show.NotYetError):
        show.Kubectl("logs").get("topic", "cluster-logs")
