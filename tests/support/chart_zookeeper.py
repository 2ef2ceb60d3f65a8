"""A ZooKeeper server with the chart's own configuration, and with its metrics for Prometheus."""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

from odradek import zookeeper
from tests.support import helm
from tests.support.helm import Manifest
from tests.support.ports import free_port

POM = Path(__file__).with_name("zookeeper-metrics.xml")
CACHE = Path.home() / ".cache" / "odradek" / "zookeeper-metrics"


def metrics_jars() -> str:
    """Return the class path of the metrics, downloaded with Maven once and cached."""
    CACHE.mkdir(parents=True, exist_ok=True)
    lib = CACHE / hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not lib.is_dir():
            partly = CACHE / "partly"
            shutil.rmtree(partly, ignore_errors=True)
            mvn = ("mvn", "--quiet", "--batch-mode", f"--file={POM}")
            copy = ("dependency:copy-dependencies", f"-DoutputDirectory={partly}")
            subprocess.run([*mvn, *copy], check=True)
            partly.rename(lib)
    return f"{lib}/*"


class ChartServer:
    """One server process; `port` is its clients', `metrics_port` Prometheus'.

    With `values` for logins or TLS, the Secrets of the pod are folders in `directory`: login,
    clients-login, tls. The command of the pod then makes its files of them.
    """

    def __init__(
        self, directory: Path, values: Manifest | None = None, *, metrics: bool = True
    ) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        self.secure_port = free_port()
        self.log = directory / "log"
        self._directory = directory
        rendered = helm.template({"zookeeper": {**(values or {}), "metrics": {"enabled": metrics}}})
        named = {(one["kind"], one["metadata"]["name"]): one for one in rendered}
        text = named["ConfigMap", "zookeeper"]["data"]["zoo.cfg"]
        places = {"dataDir=/data": f"dataDir={directory}/data"}
        places["clientPort=2181"] = f"clientPort={self.port}"
        if metrics:
            places["httpPort=7000"] = f"httpPort={self.metrics_port}"
        if "secureClientPort" in text:
            places["secureClientPort=2182"] = f"secureClientPort={self.secure_port}"
            places["=/tmp/server.pem"] = f"={directory}/server.pem"
        for given, here in places.items():
            assert given in text
            text = text.replace(given, here)
        config = directory / "zoo.cfg"
        config.write_text(text)
        command = zookeeper.command(config)
        if metrics:
            command[command.index("-cp") + 1] += f":{metrics_jars()}"
        pod = named["StatefulSet", "zookeeper"]["spec"]["template"]["spec"]
        command[1:1] = self._prepare(pod["containers"][0])
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def _prepare(self, container: Manifest) -> list[str]:
        """Run what the pod's command does before it starts the server; return options of Java."""
        command, script = container["command"][:-1], container["command"][-1]
        if command == ["zkServer.sh"]:
            return []
        before, start, _ = script.partition("exec zkServer.sh")
        assert start
        subprocess.run([*command, self._moved(before)], check=True)
        env = {one["name"]: one.get("value", "") for one in container["env"]}
        options = env["SERVER_JVMFLAGS"].split()
        return [self._moved(one) for one in options if one.startswith("-D")]

    def _moved(self, text: str) -> str:
        return re.sub("/(?=(clients-)?login|tls/|tmp/)", f"{self._directory}/", text).replace(
            f"{self._directory}/tmp/", f"{self._directory}/"
        )

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait()
