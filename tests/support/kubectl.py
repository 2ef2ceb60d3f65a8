"""Runs kubectl, and waits for conditions of a cluster."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import KafkaException
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from tests.support import objects, yaml_text

Found = TypeVar("Found")
CLIENT_FAILURES = (
    *(OSError, subprocess.SubprocessError),
    *(KafkaException, KazooException, KazooTimeoutError),
)


class KubectlError(AssertionError):
    """kubectl failed; the message is its stderr."""


@dataclass(frozen=True)
class Kubectl:
    """kubectl for one cluster and namespace."""

    binary: Path
    kubeconfig: Path
    namespace: str = "logs"

    def __call__(self, *arguments: str, stdin: str | None = None, timeout_s: float = 180) -> str:
        """Return the stdout of `kubectl ARGUMENTS`. Raises KubectlError."""
        ended = subprocess.run(
            [
                str(self.binary),
                f"--kubeconfig={self.kubeconfig}",
                f"--namespace={self.namespace}",
                *arguments,
            ],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if ended.returncode:
            raise KubectlError(ended.stderr.strip() or f"kubectl exited {ended.returncode}")
        return ended.stdout

    def get(self, kind: str, name: str = "", *options: str) -> dict[str, Any]:
        """Return one object, or the list of some kinds. Raises KubectlError.

        Without options they are read over a kept connection.
        """
        if not options:
            client = objects.client(self.kubeconfig)
            try:
                if "," not in kind:
                    return client.read(kind, self.namespace, name)
                lists = [client.read(one, self.namespace, name) for one in kind.split(",")]
                return {"items": [item for one in lists for item in one["items"]]}
            except objects.ApiError as error:
                raise KubectlError(str(error)) from error
        found = self("get", kind, *([name] if name else []), "-o", "json", *options)
        loaded: dict[str, Any] = json.loads(found)
        return loaded

    def apply(self, *manifests: dict[str, Any]) -> None:
        """Apply objects, as a user does with a file."""
        self("apply", "-f", "-", stdin=yaml_text.dump_all(manifests))

    def condition(self, kind: str, name: str, type_: str = "Ready") -> dict[str, Any]:
        """Return the condition of that type, {} if there is none for the current generation."""
        found = self.get(kind, name)
        status = found.get("status", {})
        if status.get("observedGeneration") != found["metadata"]["generation"]:
            return {}
        for condition in status.get("conditions", []):
            if condition["type"] == type_:
                return dict(condition)
        return {}


class QuickKubectl(Kubectl):
    """kubectl that applies over the kept connection, on the server's side."""

    def apply(self, *manifests: dict[str, Any]) -> None:
        """Apply objects. Raises KubectlError."""
        for one in manifests:
            try:
                objects.client(self.kubeconfig).apply(self.namespace, one)
            except objects.ApiError as error:
                raise KubectlError(str(error)) from error


def eventually(
    probe: Callable[[], Found], what: str, timeout_s: float = 120, pause_s: float = 0.5
) -> Found:
    """Return the first truthy result of `probe`.

    Retries after a falsy result, an AssertionError or a client's error.
    """
    deadline = time.monotonic() + timeout_s
    last: object = None
    while True:
        try:
            found = probe()
            if found:
                return found
            last = found
        except (AssertionError, *CLIENT_FAILURES) as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}; last: {last}")
        time.sleep(pause_s)
