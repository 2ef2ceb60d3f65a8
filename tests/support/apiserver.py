"""A real API server and etcd for tests that need no node: they start in about four seconds.

    with ApiServer(tmp_path) as server:
        server.call("apply", "-f", "crds/")

`call` is kubectl as administrator; the fixture `api_server` is one for a whole run of tests, whose
processes share it by `shared`.

The programs are those that the built-in cluster builds into the project's cache. Where they are
missing, tests that ask for them are skipped on a developer's machine and fail with CI=true.
`kill_api` and `start_api` make the API server go away and come back with its data.
"""

import contextlib
import fcntl
import json
import os
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import yaml

from tests.cluster import certs, settings
from tests.support import objects
from tests.support.kubectl import Kubectl, eventually
from tests.support.missing import skip_unless_ci
from tests.support.ports import free_port

START_SECONDS = 120
# Writes to the project's resources, with the resource as it was then.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [
        {
            "level": "RequestResponse",
            "verbs": ["create", "update", "patch", "delete"],
            "resources": [{"group": "odradek.io"}],
        },
        {"level": "None"},
    ],
}
_TOKEN = "apiserver-of-a-test"
_POLL_SECONDS = 0.2
# Go collects garbage when the heap has grown by so many per cent. By default it takes a fifth of
# what these programs compute.
_GARBAGE_PERCENT = "400"


def require_programs(*names: str) -> Path:
    """Return the directory with these programs. Without them skip, or fail under CI."""
    binaries = settings.paths().bin
    missing = [name for name in names if not (binaries / name).exists()]
    if missing:
        skip_unless_ci(
            f"{', '.join(missing)} not in {binaries}: run `make unit` once, which builds them"
        )
    return binaries


class ApiServer:
    """One API server with its etcd below `directory`; a context manager."""

    def __init__(self, directory: Path) -> None:
        self._binaries = require_programs("etcd", "kubebox", "kubectl")
        self._directory = directory
        self._pki = directory / "pki"
        self._etcd_port = free_port()
        self._port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kubeconfig = directory / "kubeconfig"
        self.kubectl = self._binaries / "kubectl"
        self.audit_log = directory / "audit.log"
        self.call = Kubectl(self.kubectl, self.kubeconfig, "default")

    def __enter__(self) -> "ApiServer":
        certs.create_authority(self._pki)
        certs.issue(self._pki, "apiserver", "/CN=kube-apiserver", "DNS:localhost,IP:127.0.0.1")
        (self._directory / "audit.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
        (self._directory / "tokens.csv").write_text(f"{_TOKEN},admin,admin,system:masters\n")
        self._write_kubeconfig()
        etcd = f"http://127.0.0.1:{self._etcd_port}"
        self._run(
            "etcd",
            self._binaries / "etcd",
            f"--data-dir={self._directory}/etcd",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            "--listen-peer-urls=http://127.0.0.1:0",
            "--unsafe-no-fsync=true",
        )
        try:
            self.start_api()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def start_api(self) -> None:
        """Start the API server and wait until it serves."""
        pki = self._pki
        self._run(
            "apiserver",
            self._binaries / "kubebox",
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={pki}",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--token-auth-file={self._directory}/tokens.csv",
            f"--audit-policy-file={self._directory}/audit.yaml",
            f"--audit-log-path={self.audit_log}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={pki}/sa.key",
            f"--service-account-key-file={pki}/sa.pub",
            "--authorization-mode=RBAC",
            # Pods of a namespace need a service account, which a controller would make.
            "--disable-admission-plugins=ServiceAccount",
            "--allow-privileged=true",
        )
        until = time.monotonic() + START_SECONDS
        while not self._serves():
            process = self._processes["apiserver"]
            if process.poll() is not None or time.monotonic() > until:
                log = (self._directory / "apiserver.log").read_text()
                raise RuntimeError(f"the API server did not start: {log[-2000:]}")
            time.sleep(0.1)

    def kill_api(self) -> None:
        """SIGKILL the API server and wait for its end; etcd keeps the objects."""
        process = self._processes.pop("apiserver")
        process.kill()
        process.wait()

    def _serves(self) -> bool:
        context = ssl.create_default_context(cafile=str(self._pki / "ca.crt"))
        request = urllib.request.Request(
            f"https://127.0.0.1:{self._port}/readyz", headers={"Authorization": f"Bearer {_TOKEN}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def _run(self, name: str, *words: str | Path) -> None:
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(word) for word in words],
                stdout=log,
                stderr=log,
                env={**os.environ, "GOGC": _GARBAGE_PERCENT},
                start_new_session=True,
            )

    def _stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait()
        self._processes.clear()

    @property
    def url(self) -> str:
        """The server's address."""
        return str(yaml.safe_load(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"])

    def _write_kubeconfig(self) -> None:
        address = f"https://127.0.0.1:{self._port}"
        cluster = {"server": address, "certificate-authority": f"{self._pki}/ca.crt"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "users": [{"name": "admin", "user": {"token": _TOKEN}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(document))

    def install_crds(self) -> None:
        """Install the project's custom resource definitions and wait until they are served."""
        self.call("apply", "--server-side", "-f", str(settings.REPO / "crds"))
        self.call("wait", "--for=condition=Established", "crd", "--all", "--timeout=120s")
        # A moment passes before the kinds are among those that clients are told of.
        names = self.call("get", "crd", "-o", "jsonpath={.items[*].metadata.name}").split()
        eventually(
            lambda: self.call("get", ",".join(names), "-o", "name") or True,
            "all kinds are served",
            pause_s=0.2,
        )

    def create_namespace(self, name: str) -> None:
        """Create a namespace."""
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        objects.client(self.kubeconfig).apply("", manifest)

    def patch_status(self, kind: str, name: str, status: dict[str, object]) -> None:
        """Write a status, as a kubelet or a controller would."""
        self.call(
            "patch",
            kind,
            name,
            "--subresource=status",
            "--type=merge",
            f"--patch={json.dumps({'status': status})}",
        )


@contextlib.contextmanager
def shared(directory: Path) -> Iterator[ApiServer]:
    """Yield the one server of all processes that name the same directory.

    The first one starts it, and waits at its end until no other needs it. An idle server takes a
    fiftieth of a processor.
    """
    users = directory / "users"
    users.mkdir(parents=True, exist_ok=True)
    me = users / str(os.getpid())
    server = ApiServer(directory)
    with _locked(directory):
        is_first = not _living(users)
        if is_first:
            server.__enter__()
        me.touch()
    try:
        yield server
    finally:
        with _locked(directory):
            me.unlink()
        while is_first:
            with _locked(directory):
                if not _living(users):
                    server.__exit__(None, None, None)
                    break
            time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _living(users: Path) -> bool:
    return any(Path("/proc", one.name).exists() for one in users.iterdir())
