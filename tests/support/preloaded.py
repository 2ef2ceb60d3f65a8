"""Starts Python programs as forks of a process that has imported their libraries already.

Tests start some sixty operators and hundreds of brokers. Their imports take each operator more than
a second of a processor, and each broker half a second. What runs is the whole program in a process
of its own, but for its start: a test of memory, descriptors or signals takes a fresh interpreter.
"""

import multiprocessing
import os
import random
import resource
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_fork_server = multiprocessing.get_context("forkserver")
_fork_server.set_forkserver_preload(["tests.support.libraries"])


class Program:
    """`python -m MODULE ARGUMENTS` with this environment, its output appended to `log`.

    Its errors go to `errors` where that is given. `limits` are the kernel's, by resource number.
    """

    def __init__(
        self,
        module: str,
        arguments: list[str],
        environment: dict[str, str],
        log: Path,
        limits: Mapping[int, int] | None = None,
        errors: Path | None = None,
    ) -> None:
        self._process = _fork_server.Process(
            target=_run, args=(module, arguments, environment, log, errors or log, limits or {})
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

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal. Raises TimeoutError."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise TimeoutError(f"process {self.pid} still runs after {timeout} s")
        return code


def run(
    module: str, *arguments: str, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE ARGUMENTS` to its end; as subprocess.run with captured output."""
    with tempfile.TemporaryDirectory() as folder:
        said, errors = Path(folder, "stdout"), Path(folder, "stderr")
        program = Program(module, [*arguments], dict(os.environ), said, errors=errors)
        code = program.wait(timeout)
        return subprocess.CompletedProcess(
            [module, *arguments], code, said.read_text(), errors.read_text()
        )


def set_limits(limits: Mapping[int, int]) -> None:
    """Set kernel limits of this process, by resource number."""
    for number, limit in limits.items():
        resource.setrlimit(number, (limit, limit))


def _run(
    module: str,
    arguments: list[str],
    environment: dict[str, str],
    log: Path,
    errors: Path,
    limits: Mapping[int, int],
) -> None:
    os.setsid()
    set_limits(limits)
    for number, path in ((1, log), (2, errors)):
        with path.open("ab") as output:
            os.dup2(output.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    # What these took from the first process when they were imported.
    random.seed()
    kube_config = sys.modules["kubernetes.config.kube_config"]
    kube_config.KUBE_CONFIG_DEFAULT_LOCATION = environment.get("KUBECONFIG", "")  # type: ignore[attr-defined]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
