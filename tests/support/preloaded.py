"""Starts Python programs as forks of a process that has imported their libraries already.

Tests start some sixty operators; to import kopf and the Kubernetes client takes each more than a
second of a processor. What runs is the whole program in a process of its own, but for its start.
"""

import multiprocessing
import os
import random
import runpy
import sys
from pathlib import Path

from kubernetes.config import kube_config

LIBRARIES = ("kopf.cli", "kubernetes.client", "kazoo.client", "prometheus_client", "re2")
_fork_server = multiprocessing.get_context("forkserver")
_fork_server.set_forkserver_preload(list(LIBRARIES))


class Program:
    """`python -m MODULE ARGUMENTS` with this environment, its output appended to `log`."""

    def __init__(
        self, module: str, arguments: list[str], environment: dict[str, str], log: Path
    ) -> None:
        self._process = _fork_server.Process(
            target=_run, args=(module, arguments, environment, log)
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal. Raises TimeoutError."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise TimeoutError(f"process {self.pid} still runs after {timeout} s")
        return code


def _run(module: str, arguments: list[str], environment: dict[str, str], log: Path) -> None:
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    # What these took from the first process when they were imported.
    random.seed()
    kube_config.KUBE_CONFIG_DEFAULT_LOCATION = environment["KUBECONFIG"]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
