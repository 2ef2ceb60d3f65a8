"""A registry of images and charts on this machine: Debian's docker-registry, with TLS."""

from __future__ import annotations

import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.support.broker import wait_until
from tests.support.certificates import Authority


@dataclass(frozen=True, slots=True)
class Registry:
    """A running registry: its address, HOST:PORT, and the file of the authority behind it."""

    address: str
    authority: Path

    @property
    def environment(self) -> dict[str, str]:
        """What makes programs in Go, such as helm and skopeo, trust the registry."""
        return {"SSL_CERT_FILE": str(self.authority)}


@contextmanager
def running(folder: Path, address: str) -> Iterator[Registry]:
    """Run a registry that keeps everything below a folder. It asks for no login."""
    folder.mkdir(parents=True, exist_ok=True)
    issued = Authority(folder).issue("registry", [address.rpartition(":")[0]])
    registry = Registry(address, issued.authority_path)
    pair = {"certificate": str(issued.certificate_path), "key": str(issued.key_path)}
    config = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": address, "tls": pair},
    }
    (folder / "config.yml").write_text(yaml.safe_dump(config))
    with (folder / "registry.log").open("wb") as log:
        argv = ["docker-registry", "serve", str(folder / "config.yml")]
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(process, registry, folder / "registry.log"), "the registry")
        yield registry
    finally:
        process.terminate()
        process.wait(timeout=30)


def _answers(process: subprocess.Popen[bytes], registry: Registry, log: Path) -> bool:
    if process.poll() is not None:
        raise AssertionError(f"the registry ended: {log.read_text()}")
    trust = ssl.create_default_context(cafile=str(registry.authority))
    try:
        asked = f"https://{registry.address}/v2/"
        with urllib.request.urlopen(asked, timeout=5, context=trust) as response:
            return int(response.status) == 200
    except (urllib.error.URLError, OSError):
        return False
