"""A registry of images and charts on this machine: Debian's docker-registry."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.support.broker import wait_until
from tests.support.ports import free_port


@contextmanager
def running(folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """Run a registry that keeps everything below a folder; yield its address, HOST:PORT.

    It speaks HTTP without TLS, and asks for no login.
    """
    folder.mkdir(parents=True, exist_ok=True)
    address = f"{host}:{free_port()}"
    config = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": address},
    }
    (folder / "config.yml").write_text(yaml.safe_dump(config))
    with (folder / "registry.log").open("wb") as log:
        argv = ["docker-registry", "serve", str(folder / "config.yml")]
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(process, address, folder / "registry.log"), "the registry")
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)


def _answers(process: subprocess.Popen[bytes], address: str, log: Path) -> bool:
    if process.poll() is not None:
        raise AssertionError(f"the registry ended: {log.read_text()}")
    try:
        with urllib.request.urlopen(f"http://{address}/v2/", timeout=5) as response:
            return int(response.status) == 200
    except (urllib.error.URLError, OSError):
        return False
