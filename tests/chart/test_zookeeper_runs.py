"""A real ZooKeeper starts from the chart's own configuration, and the chart's probes judge it."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from odradek.zk.client import Client, ZooKeeperAccess
from odradek.zookeeper_settings import ZooKeeperLogin
from odradek_operator.shared import broker_security
from tests.support import certificates, helm
from tests.support.broker import wait_until
from tests.support.chart_zookeeper import ChartServer
from tests.support.ports import free_port

START_SECONDS = 120
PASSWORD = 's"ec\\ret'


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


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[ChartServer]:
    """A server with TLS, whose clients must log in."""
    for name, word in (("login", PASSWORD), ("clients-login", "other")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "username").write_text("kafka" if name == "login" else "jobs")
        (folder / "password").write_text(word)
    own = certificates.Authority(tmp_path).issue("zookeeper", ["127.0.0.1"])
    (tmp_path / "ca.crt").write_bytes(own.authority.public_bytes(Encoding.PEM))
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls/tls.key").write_bytes(own.key_pem())
    (tmp_path / "tls/tls.crt").write_bytes(own.certificate.public_bytes(Encoding.PEM))
    authentication = {"secretName": "a", "clientsSecretName": "b", "required": True}
    values = {"authentication": authentication, "tls": {"secretName": "c", "only": True}}
    started = ChartServer(tmp_path, values, metrics=False)
    try:
        wait_until(lambda: passes("readinessProbe", started.port, 5), "the server")
        yield started
    finally:
        started.stop()


def test_server_with_logins_lets_in_those_only_who_have_one(
    secured: ChartServer, tmp_path: Path
) -> None:
    assert passes("livenessProbe", secured.port)
    trusted = broker_security.trusting((tmp_path / "ca.crt").read_text())

    def create(path: str, port: int, login: tuple[str, str] | None, *, tls: bool) -> str:
        access = ZooKeeperAccess(
            (lambda: trusted) if tls else None,
            None if login is None else lambda: ZooKeeperLogin(*login),
        )
        client: Any = Client(f"127.0.0.1:{port}", 10, access)
        try:
            client.start(10)
            return str(client.create(path, b"", makepath=True))
        except (KazooTimeoutError, KazooException) as error:
            return str(client.failure) or type(error).__name__
        finally:
            client.stop()
            client.close()

    secure = secured.secure_port
    assert create("/brokers", secure, ("kafka", PASSWORD), tls=True) == "/brokers"
    assert create("/consumers", secure, ("jobs", "other"), tls=True) == "/consumers"
    assert "refused it" in create("/a", secure, ("jobs", PASSWORD), tls=True)
    assert create("/a", secure, None, tls=True) != "/a"
    # The plain port is there for probes, and asks for a login as well.
    assert create("/a", secured.port, None, tls=False) != "/a"


@pytest.mark.parametrize(
    "values",
    [
        {"authentication": {"required": True}},
        {"authentication": {"generate": True}},
        {"authentication": {"clientsSecretName": "b"}},
        {"tls": {"only": True}},
    ],
)
def test_values_that_would_shut_everybody_out_are_refused(values: helm.Manifest) -> None:
    with pytest.raises(helm.HelmError, match="needs zookeeper"):
        helm.template({"zookeeper": values})


def test_sessions_that_servers_would_not_start_with_are_refused() -> None:
    for values in ({"tickTimeMs": 30001}, {"maxSessionTimeoutMs": 3999}):
        with pytest.raises(helm.HelmError, match=r"must be at least twice zookeeper\.tickTimeMs"):
            helm.template({"zookeeper": values})
    assert helm.template({"zookeeper": {"tickTimeMs": 30000}})


def test_open_server_is_rendered_as_before() -> None:
    (stateful,) = [one for one in helm.template() if one["kind"] == "StatefulSet"]
    pod = stateful["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["zkServer.sh", "start-foreground"]
    assert [one["name"] for one in pod["volumes"]] == ["conf", "tmp"]


def test_open_ensemble_is_not_restarted_by_an_upgrade_of_the_chart() -> None:
    rendered = helm.template({"zookeeper": {"replicas": 3}})
    (stateful,) = [one for one in rendered if one["kind"] == "StatefulSet"]
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    # As charts before logins had it: another text would be another template of pods.
    start = "echo $(( ${HOSTNAME##*-} + 1 )) > /data/myid\nexec zkServer.sh start-foreground\n"
    assert container["command"] == ["bash", "-ec", start]


def test_log_level_reaches_both_logging_libraries() -> None:
    (config_map,) = [
        o
        for o in helm.template({"zookeeper": {"logLevel": "DEBUG"}})
        if o["kind"] == "ConfigMap" and o["metadata"]["name"] == "zookeeper"
    ]
    assert '<root level="DEBUG">' in config_map["data"]["logback.xml"]
    assert config_map["data"]["log4j.properties"].startswith("log4j.rootLogger=DEBUG, CONSOLE\n")
