"""A real ZooKeeper starts from the chart's own configuration, and the chart's probes judge it."""

import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.support import helm
from tests.support.chart_zookeeper import ChartServer
from tests.support.ports import free_port

START_SECONDS = 120


def passes(name: str, port: int, timeout_s: float = 60) -> bool:
    """Run a probe's command as the kubelet would, at another port."""
    (stateful,) = [o for o in helm.template() if o["kind"] == "StatefulSet"]
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    command = [part.replace("2181", str(port)) for part in container[name]["exec"]["command"]]
    quiet = subprocess.DEVNULL
    try:
        ended = subprocess.run(command, stdout=quiet, stderr=quiet, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChartServer]:
    """A server that has the chart's zoo.cfg, but for its folder and ports."""
    started = ChartServer(tmp_path_factory.mktemp("zookeeper"))
    deadline = time.monotonic() + START_SECONDS
    try:
        # A server lives before it serves, and who asks it too early may get no answer at all.
        while not passes("readinessProbe", started.port, 5) and time.monotonic() < deadline:
            assert started.process.poll() is None, started.log.read_text()[-2000:]
            time.sleep(0.2)
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def port(server: ChartServer) -> int:
    return server.port


@pytest.mark.parametrize("name", ["readinessProbe", "livenessProbe"])
def test_probes_pass_on_a_server_that_serves(port: int, name: str) -> None:
    assert passes(name, port)


@pytest.mark.parametrize("name", ["readinessProbe", "livenessProbe"])
def test_probes_fail_where_nobody_listens(name: str) -> None:
    assert not passes(name, free_port())


def test_four_letter_words_beyond_the_three_are_refused(port: int) -> None:
    command = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo conf >&3 && cat <&3"
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert "not in the whitelist" in answer.stdout


def test_metrics_are_switched_off_whole_where_the_image_has_none() -> None:
    without = helm.template({"zookeeper": {"metrics": {"enabled": False}}}, monitoring=True)
    assert "7000" not in json.dumps(without)
    assert not [one for one in without if one["metadata"]["name"] == "odradek-zookeeper"]


def test_log_level_reaches_both_logging_libraries() -> None:
    (config_map,) = [
        o
        for o in helm.template({"zookeeper": {"logLevel": "DEBUG"}})
        if o["kind"] == "ConfigMap" and o["metadata"]["name"] == "zookeeper"
    ]
    assert '<root level="DEBUG">' in config_map["data"]["logback.xml"]
    assert config_map["data"]["log4j.properties"].startswith("log4j.rootLogger=DEBUG, CONSOLE\n")
