"""A ZooKeeper server with the chart's own configuration, and with its metrics for Prometheus."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

from odradek import zookeeper
from tests.support import helm
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
    """One server process; `port` is its clients', `metrics_port` Prometheus'."""

    def __init__(self, directory: Path) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        self.log = directory / "log"
        (found,) = [
            one
            for one in helm.template()
            if one["kind"] == "ConfigMap" and one["metadata"]["name"] == "zookeeper"
        ]
        text = found["data"]["zoo.cfg"]
        for given, here in (
            ("dataDir=/data", f"dataDir={directory}/data"),
            ("clientPort=2181", f"clientPort={self.port}"),
            ("metricsProvider.httpPort=7000", f"metricsProvider.httpPort={self.metrics_port}"),
        ):
            assert given in text
            text = text.replace(given, here)
        config = directory / "zoo.cfg"
        config.write_text(text)
        command = zookeeper.command(config)
        command[command.index("-cp") + 1] += f":{metrics_jars()}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait()
