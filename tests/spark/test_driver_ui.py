"""Spark's UI and event logs of a real driver, and a history server that reads them."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import broker, helm, spark_jvm
from tests.support.broker import wait_until
from tests.support.ports import free_port
from tests.support.spark_driver import PATIENCE_S, Driver
from tests.support.spark_jars import QUICK, home

pytestmark = pytest.mark.timeout(2400)


@pytest.fixture
def driver(
    cluster: broker.Cluster, tmp_path: Path, drivers_jvm: spark_jvm.SharedJvm
) -> Iterator[Driver]:
    made = Driver(cluster, tmp_path, "shown-1", drivers_jvm)
    yield made
    made.kill()


def get(url: str, method: str = "GET") -> str:
    request = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: bytes = answer.read()
        return found.decode()


def applications(port: int) -> list[dict[str, Any]]:
    try:
        return list(json.loads(get(f"http://127.0.0.1:{port}/api/v1/applications")))
    except (OSError, ValueError):
        # It answers with a page while it starts.
        return []


def history_server(folder: Path, port: int) -> list[str]:
    """Return the command line of the chart's Deployment, for a folder of this machine."""
    values = {"historyServer": {"enabled": True, "path": "/data/events", "claimName": "logs"}}
    (found,) = [
        one
        for one in helm.template(values)
        if one["kind"] == "Deployment" and one["metadata"]["name"].endswith("-history-server")
    ]
    (container,) = found["spec"]["template"]["spec"]["containers"]
    words = [word.replace("/opt/odradek/spark", str(home())) for word in container["args"]]
    words = [word.replace("file:///data/events", f"file://{folder}") for word in words]
    settings = [f"-Dspark.history.ui.port={port}", "-Dspark.history.fs.update.interval=1s"]
    assert words[0] == "java"
    return [words[0], *QUICK, *settings, *words[1:]]


def test_ui_lets_nobody_end_a_job_and_a_history_server_shows_it_afterwards(
    driver: Driver, tmp_path: Path
) -> None:
    port, folder = free_port(), driver.data / "events" / "all"
    driver.seam = {"uiPort": port}
    driver.produce(range(10))
    driver.start(eventLog={"path": str(folder)})
    driver.await_committed(10)
    (shown,) = applications(port)
    assert shown["name"] == "odradek-shown-1"
    # Without a right to kill there is no such page, and nothing ends.
    job = f"http://127.0.0.1:{port}/jobs/job/kill/?id=0"
    try:
        get(job, "POST")
    except urllib.error.HTTPError as refused:
        refused.close()
    driver.produce(range(10, 20))
    driver.await_committed(20)
    assert driver.terminate() == 0, driver.log.read_text()[-3000:]
    (log,) = folder.iterdir()
    assert log.name.startswith("eventlog_v2_")
    assert [one.name for one in log.iterdir() if one.name.endswith(".zstd")]

    port = free_port()
    with (tmp_path / "history.log").open("wb") as out:
        server = subprocess.Popen(history_server(folder, port), stdout=out, stderr=out)
    try:
        wait_until(lambda: bool(applications(port)), "the history server", PATIENCE_S)
        (found,) = applications(port)
        assert (found["id"], found["attempts"][0]["completed"]) == (shown["id"], True)
    finally:
        server.kill()
        server.wait()
