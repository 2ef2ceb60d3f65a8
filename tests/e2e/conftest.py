"""The whole system on the built-in Kubernetes: `make up` runs once, as for a newcomer."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.clients import log_in
from tests.support.kubectl import Kubectl, eventually

ROOT = Path(__file__).resolve().parents[2]
# Images are built and a cluster boots before the first test.
FIRST_SECONDS = 3000


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the quickstart, and give the first test the time that `make up` takes.

    Where brokers were away before, leaders are where they should be only after some minutes. The
    release comes last, on a cluster of its own.
    """
    places = {"tests/e2e/test_quickstart.py": 0, "tests/e2e/test_released.py": 2}
    items.sort(key=lambda one: places.get(one.nodeid.partition("::")[0], 1))
    ours = [one for one in items if one.get_closest_marker("e2e")]
    if ours:
        ours[0].add_marker(pytest.mark.timeout(FIRST_SECONDS))


@dataclass(frozen=True)
class Installed:
    """A cluster by `make up`: its output, and kubectl for it."""

    output: str
    kubectl: Kubectl


@pytest.fixture(scope="session")
def installed() -> Installed:
    """The running quick start."""
    environment = {key: value for key, value in os.environ.items() if key != "MAKEFLAGS"}
    ended = subprocess.run(
        ["make", "up"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
    kubeconfig = subprocess.run(
        ["make", "-s", "kubeconfig"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.strip()
    cache = Path(os.environ.get("ODRADEK_CACHE") or Path.home() / ".cache" / "odradek")
    return Installed(ended.stdout, Kubectl(cache / "bin" / "kubectl", Path(kubeconfig)))


@pytest.fixture(scope="session")
def kubectl(installed: Installed) -> Kubectl:
    """kubectl in the namespace of the quick start."""
    return installed.kubectl


def secret(kubectl: Kubectl, name: str) -> dict[str, str]:
    """Return the texts of a Secret. Raises KubectlError."""
    data: dict[str, str] = kubectl.get("secret", name)["data"]
    return {key: base64.b64decode(value).decode("latin-1") for key, value in data.items()}


def scram(kubectl: Kubectl, user: str) -> dict[str, str]:
    """Return librdkafka's settings for a User of the quick start. Raises KubectlError."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": secret(kubectl, user)["password"],
        "ssl.ca.pem": secret(kubectl, "main-cluster-ca-cert")["ca.crt"],
    }


def addresses(kubectl: Kubectl) -> str:
    """Return the addresses of all brokers of the quick start, where its User admin may come in."""

    def of_all() -> str:
        brokers = kubectl.get("kafkacluster", "main")["status"]["brokers"]
        # One that is not registered has none.
        assert all("address" in broker for broker in brokers), brokers
        return ",".join(broker["address"] for broker in brokers)

    found = eventually(of_all, "an address of each broker", 300)
    log_in(found, scram(kubectl, "admin"))
    return found


@pytest.fixture
def bootstrap(kubectl: Kubectl) -> str:
    """The brokers' addresses for clients outside of the cluster."""
    return addresses(kubectl)


@pytest.fixture
def healthy(kubectl: Kubectl) -> Iterator[None]:
    """Check that every resource is Ready before and after the test."""

    def all_ready() -> bool:
        return all(
            kubectl.condition(kind, name).get("status") == "True"
            for kind, name in (
                ("kafkacluster", "main"),
                ("topic", "cluster-logs"),
                ("consumergroup", "log-counts"),
            )
        )

    eventually(all_ready, "all resources Ready before the test", 600)
    yield
    eventually(all_ready, "all resources Ready again after the test", 600)
