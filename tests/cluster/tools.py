"""Builds the programs of the cluster and of tests from Go modules into the cache, once.

kubebox holds API server, controllers, scheduler, kubelet, kube-proxy and kubectl in one binary; it
and etcd are small main modules here, because `go install` refuses modules with replace directives.
A program is built again when its recipe changes. A host without a Go that can build them gets one
in a throw-away container of the images' own base.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import buildah
from tests.cluster.settings import REPO, Paths
from tests.cluster.shell import run, run_logged, step

SOURCES = REPO / "tests/cluster/tools"
CLIENT_SOURCES = REPO / "tests/peers/go"
KUBERNETES = "1.34.4"
NEEDED_GO = (1, 24)


@dataclass(frozen=True, slots=True)
class Tool:
    """A program: `package` to install as it is published, or part of a module of this checkout.

    The module is the one of that name in SOURCES unless `module` is another; `build` tells Go which
    part of it the program is, and which pins it has.
    """

    name: str
    package: str = ""
    ldflags: str = "-s -w"
    module: Path | None = None
    build: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The module's directory."""
        return self.module or SOURCES / self.name

    def fingerprint(self) -> str:
        """Return a hash that changes whenever the program must be built again."""
        digest = hashlib.sha256(" ".join((self.package, self.ldflags, *self.build)).encode())
        if not self.package:
            for file in sorted(one for one in self.folder.rglob("*") if one.is_file()):
                digest.update(file.read_bytes())
        return digest.hexdigest()


def _kubernetes_version() -> str:
    package = "k8s.io/component-base/version"
    major, minor, _ = KUBERNETES.split(".")
    values = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X {package}.{name}={value}" for name, value in values.items())


HELM = Tool("helm", "helm.sh/helm/v3/cmd/helm@v3.19.0")
BUILTIN_TOOLS = (
    Tool("pause"),
    HELM,
    Tool("etcd"),
    Tool("coredns", "github.com/coredns/coredns@v1.12.4"),
    Tool("kubebox", ldflags=f"-s -w {_kubernetes_version()}"),
)
# kind has the rest of the cluster; kubebox is kubectl.
KIND_TOOLS = (
    Tool("kind", "sigs.k8s.io/kind@v0.30.0"),
    HELM,
    Tool("kubebox", ldflags=f"-s -w {_kubernetes_version()}"),
)
# How Flux and Argo CD judge resources.
JUDGES = (Tool("kstatus"), Tool("argohealth"))
# Applications with Go clients. Shopify's sarama is built from the sources for IBM's, with its own
# versions.
CLIENTS = (
    Tool("franz-go-client", module=CLIENT_SOURCES, build=("./franz",)),
    Tool("sarama-client", module=CLIENT_SOURCES, build=("./sarama",)),
    Tool(
        "old-sarama-client",
        module=CLIENT_SOURCES,
        build=("-modfile=old-sarama.mod", "-tags=old", "./sarama"),
    ),
)
# A store that speaks S3, over a folder.
STORES = (Tool("versitygw", "github.com/versity/versitygw/cmd/versitygw@v1.8.0"),)
# KEDA, which takes a quarter of an hour to build, so only its test asks for it. Its manifests are
# in its module.
KEDA = "github.com/kedacore/keda/v2"
KEDA_VERSION = "v2.21.0"
SCALERS = tuple(
    Tool(f"keda-{part}", module=SOURCES / "keda", build=(f"{KEDA}/cmd/{part}",))
    for part in ("operator", "adapter")
)


def ensure(paths: Paths, tools: tuple[Tool, ...]) -> None:
    """Build missing and outdated programs, and link kubectl to kubebox. Raises ClusterError."""
    paths.bin.mkdir(parents=True, exist_ok=True)
    for tool in tools:
        stamp = paths.bin / f".{tool.name}.built"
        current = stamp.exists() and stamp.read_text() == tool.fingerprint()
        if not (current and (paths.bin / tool.name).exists()):
            log = paths.build_logs / f"tool-{tool.name}.log"
            with step(f"building {tool.name} (once)", log):
                _build(tool, paths, log)
            stamp.write_text(tool.fingerprint())
    link = paths.bin / "kubectl"
    if not link.is_symlink():
        link.symlink_to("kubebox")


def _build(tool: Tool, paths: Paths, log: Path) -> None:
    """Build in a temporary directory and move the program, so that no partial one is left."""
    target = paths.bin / ".partial"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    environment = {
        "CGO_ENABLED": "0",
        "GOMODCACHE": str(paths.cache / "go/modules"),
        "GOFLAGS": "-trimpath -buildvcs=false -modcacherw",
        "GOBIN": str(target),
    }
    argv = ["go", "install", "-v", "-ldflags", tool.ldflags, tool.package]
    if not tool.package:
        argv = ["go", "build", "-v", "-mod=mod", "-ldflags", tool.ldflags]
        argv += ["-o", str(target / tool.name), *tool.build]
    where = SOURCES if tool.package else tool.folder
    if host_go_suffices(os.environ):
        run_logged(argv, log, env={**os.environ, **environment}, cwd=where)
    else:
        _build_in_container(argv, environment, where, paths, log)
    (target / tool.name).replace(paths.bin / tool.name)
    target.rmdir()


def host_go_suffices(environ: Mapping[str, str]) -> bool:
    """Return whether the host's Go can build: it has the version, or may download it."""
    try:
        version = run(["go", "version"], env=environ)
        may_fetch = run(["go", "env", "GOTOOLCHAIN"], env=environ).strip() != "local"
    except RuntimeError:
        return False
    found = re.search(r"go(\d+)\.(\d+)", version)
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    return number >= NEEDED_GO or (number >= (1, 21) and may_fetch)


def _build_in_container(
    argv: list[str], environment: Mapping[str, str], where: Path, paths: Paths, log: Path
) -> None:
    """Run the command in a container with Debian's Go and the host's paths."""
    image = buildah.image_with(paths, "odradek-go", ["golang-go", "git"], log)
    settings = {**environment, "GOCACHE": str(paths.cache / "go/build"), "GOTOOLCHAIN": "local"}
    proxies = {key: os.environ[key] for key in ("GOPROXY", "GONOSUMDB") if key in os.environ}
    (paths.cache / "go/build").mkdir(parents=True, exist_ok=True)
    buildah.run_in(
        paths, image, argv, {**settings, **proxies}, mounts=[paths.cache, REPO], cwd=where, log=log
    )
