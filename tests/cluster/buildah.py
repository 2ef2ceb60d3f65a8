"""Builds images without a container engine: buildah with its own storage in the cache, and skopeo.

If the base image of a Dockerfile cannot be pulled, a substitute with the same name is built from
Debian packages, so the Dockerfiles are the same as for Docker. Builds use the host's package
configuration (apt, pip, Maven) and its certificate authorities, but images do not contain them.
With SOURCE_DATE_EPOCH in the environment, the same inputs give the same bytes.
"""

import configparser
import json
import os
import shlex
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.settings import Paths
from tests.cluster.shell import run, run_logged, step

SUITE = "trixie"
BASE = "docker.io/library/python:3.13-slim-trixie"
# The packages in the published base that the project's Dockerfiles need.
SUBSTITUTE_PACKAGES = ("python3", "python3-venv", "ca-certificates")
HOST_CA = Path("/etc/ssl/certs/ca-certificates.crt")
HOST_JAVA_CA = Path("/etc/ssl/certs/java/cacerts")
JAVA_CA_IN_BUILD = "/run/host-java-cacerts"
SOURCES_IN_BUILD = "/etc/apt/sources.list"


def command(paths: Paths, *words: str | Path) -> list[str | Path]:
    """Return a buildah command line on the project's storage."""
    where = ["--root", str(paths.storage), "--runroot", str(paths.storage_run)]
    return ["buildah", *where, "--storage-driver", _driver(), *words]


def _driver() -> str:
    return os.environ.get("STORAGE_DRIVER", "overlay")


def stored(paths: Paths, name: str) -> str:
    """Return how skopeo names a stored image."""
    return f"containers-storage:[{_driver()}@{paths.storage}+{paths.storage_run}]{name}"


def environment(paths: Paths) -> dict[str, str]:
    """Return the environment of buildah, which caches `RUN --mount=type=cache` below TMPDIR."""
    temporary = paths.cache / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return {**os.environ, "TMPDIR": str(temporary)}


def _epoch() -> list[str]:
    """Return the option that gives every file of an image the time that the environment sets."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    return [f"--timestamp={epoch}"] if epoch else []


def image_id(paths: Paths, name: str) -> str:
    """Return the id of a stored image, empty if there is none."""
    # A listing also measures sizes, which takes longer.
    argv = command(paths, "inspect", "--type", "image", "--format", "{{.FromImageID}}", name)
    found = run(argv, env=environment(paths), check=False).strip()
    return f"sha256:{found}" if found else ""


def label(paths: Paths, name: str, key: str) -> str:
    """Return a label of a stored image, empty if it has none."""
    pattern = '{{index .OCIv1.Config.Labels "' + key + '"}}'
    argv = command(paths, "inspect", "--type", "image", "--format", pattern, name)
    return run(argv, env=environment(paths), check=False).strip()


def ensure_base(paths: Paths, log: Path) -> None:
    """Pull the base image, or build its substitute, unless it is stored. Raises ClusterError."""
    if image_id(paths, BASE):
        return
    with step(f"base image {BASE}", log):
        try:
            pull = command(paths, "pull", "--quiet", BASE)
            done = subprocess.run(
                [str(word) for word in pull], capture_output=True, timeout=300, check=False
            )
            pulled = done.returncode == 0
        except subprocess.TimeoutExpired:
            pulled = False
        if not pulled:
            _build_substitute(paths, log)


def _build_substitute(paths: Paths, log: Path) -> None:
    archive = paths.storage / "rootfs.tar"
    include = f"--include={','.join(SUBSTITUTE_PACKAGES)}"
    # No documentation, as in the published slim images.
    slim = [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("man", "doc", "locale")]
    # A build that was cut short begins anew: nothing need wait for the disk, also in later builds.
    slim.append("--dpkgopt=force-unsafe-io")
    slim += [f"--customize-hook={hook}" for hook in hooks(paths)]
    paths.storage.mkdir(parents=True, exist_ok=True)
    mirrors = debian_mirrors(Path("/etc/apt"))
    options = ["--variant=minbase", include, *slim]
    run_logged(["mmdebstrap", *options, SUITE, archive, *mirrors], log, env=environment(paths))
    container = run(command(paths, "from", "scratch"), env=environment(paths)).strip()
    try:
        run(command(paths, "add", "--quiet", container, archive, "/"), env=environment(paths))
        run(command(paths, "config", "--cmd", "bash", container), env=environment(paths))
        commit = command(paths, "commit", "--quiet", *_epoch(), container, BASE)
        run(commit, env=environment(paths))
    finally:
        run(command(paths, "rm", container), env=environment(paths), check=False)
        archive.unlink(missing_ok=True)


def hooks(paths: Paths) -> list[str]:
    """Return the commands of a shell that finish the substitute, whose root is their `$1`."""
    return [
        # apt keeps no downloaded packages, also in later builds.
        'echo \'APT::Keep-Downloaded-Packages "false";\' >"$1/etc/apt/apt.conf.d/keep-nothing"',
        # Which mirror this host has is nobody else's business. Later builds mount it.
        f'mv "$1{SOURCES_IN_BUILD}" {shlex.quote(str(_sources(paths)))}',
        f"echo '# Builds mount their own.' >\"$1{SOURCES_IN_BUILD}\"",
    ]


def debian_mirrors(apt: Path) -> list[str]:
    """Return the mirrors of this host's apt as arguments for mmdebstrap; [] if unknown.

    Reads one-line and deb822 sources, and accepts only a Debian host's main archive, and beside it
    that of security updates.
    """
    found: dict[str, str] = {}
    for file in sorted([apt / "sources.list", *apt.glob("sources.list.d/*")]):
        if not file.exists():
            continue
        for line in file.read_text().splitlines():
            words = line.split()
            for word in words[1:] if words[:1] in (["URIs:"], ["deb"]) else []:
                if "://" in word:
                    found.setdefault(word.rstrip("/").rpartition("/")[2], word)
    if "debian" not in found:
        return []
    suites = {"debian": SUITE, "debian-security": f"{SUITE}-security"}
    return [f"deb {found[name]} {suite} main" for name, suite in suites.items() if name in found]


def _sources(paths: Paths) -> Path:
    """Return the file for the sources of apt that the substitute was built from."""
    return paths.storage / "apt-sources.list"


def mounts(paths: Paths) -> list[str]:
    """Return the options that mount the host's authorities and package configuration."""
    mounted = {HOST_CA: str(HOST_CA), HOST_JAVA_CA: JAVA_CA_IN_BUILD}
    mounted[Path.home() / ".m2/settings.xml"] = "/root/.m2/settings.xml"
    mounted[_sources(paths)] = SOURCES_IN_BUILD
    configuration = _pip_configuration(paths)
    if configuration:
        mounted[configuration] = "/etc/pip.conf"
    options = [f"--volume={host}:{inside}:ro" for host, inside in mounted.items() if host.exists()]
    if HOST_JAVA_CA.exists():
        trust = f"-Djavax.net.ssl.trustStore={JAVA_CA_IN_BUILD}"
        options.append(f"--build-arg=MAVEN_OPTS={trust}")
    return options


def _pip_configuration(paths: Paths) -> Path | None:
    """Write the host's pip indexes, from its files and environment, to one file for builds."""
    parser = configparser.RawConfigParser()
    user = Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config")) / "pip/pip.conf"
    parser.read(["/etc/pip.conf", Path.home() / ".pip/pip.conf", user])
    names = ("index-url", "extra-index-url", "trusted-host", "timeout")
    found = {name: parser.get("global", name, fallback="") for name in names}
    for name in names:
        found[name] = os.environ.get(f"PIP_{name.upper().replace('-', '_')}", found[name])
    lines = [f"{name} = {value}" for name, value in found.items() if value]
    if not lines:
        return None
    target = paths.cache / "tmp" / "pip.conf"
    target.parent.mkdir(parents=True, exist_ok=True)
    # Another build may be reading the one that it has mounted.
    partial = target.with_suffix(".partial")
    partial.write_text("\n".join(["[global]", *lines, ""]))
    partial.replace(target)
    return target


def build(
    paths: Paths, name: str, dockerfile: Path, context: Path, labels: Mapping[str, str], log: Path
) -> None:
    """Build an image with cached layers, so that only changed layers are built."""
    options = ["--layers", "--isolation", "chroot", "--pull=false", *mounts(paths), *_epoch()]
    if _epoch():
        options.append(f"--build-arg=SOURCE_DATE_EPOCH={os.environ['SOURCE_DATE_EPOCH']}")
    marks = [f"--label={key}={value}" for key, value in labels.items()]
    argv = command(paths, "bud", *options, *marks, "--tag", name, "--file", dockerfile, context)
    run_logged(argv, log, env=environment(paths))


def export(paths: Paths, name: str, target: Path, known: Mapping[str, Path]) -> None:
    """Write an image to an archive for containerd, without layers that containerd has.

    `known` has their files by the hash in their digest.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        layout = Path(scratch)
        blobs = layout / "blobs/sha256"
        blobs.mkdir(parents=True)
        # A layer that is there is not read from buildah's storage.
        for digest, file in known.items():
            (blobs / digest).symlink_to(file)
        # Compression would take longer than anything else.
        copy = ["skopeo", "--insecure-policy", "copy", "--quiet"]
        plain = "--dest-oci-accept-uncompressed-layers"
        run([*copy, plain, stored(paths, name), f"oci:{layout}"], env=environment(paths))
        index = layout / "index.json"
        found = json.loads(index.read_text())
        found["manifests"][0]["annotations"] = {"io.containerd.image.name": name}
        index.write_text(json.dumps(found))
        with tarfile.open(target, "w") as archive:
            for file in sorted(layout.rglob("*")):
                if file.is_file() and not file.is_symlink():
                    archive.add(file, file.relative_to(layout))


@contextmanager
def mounted(paths: Paths, name: str) -> Iterator[Path]:
    """Yield a folder with the files of a stored image."""
    container = run(command(paths, "from", "--pull=false", name), env=environment(paths)).strip()
    try:
        yield Path(run(command(paths, "mount", container), env=environment(paths)).strip())
    finally:
        run(command(paths, "rm", container), env=environment(paths))


def from_scratch(paths: Paths, name: str, program: Path) -> None:
    """Build an image that has one static program and runs it."""
    container = run(command(paths, "from", "scratch"), env=environment(paths)).strip()
    inside = f"/{program.name}"
    steps = (
        ("copy", "--quiet", container, program, inside),
        ("config", "--entrypoint", f'["{inside}"]', container),
        ("commit", "--quiet", "--rm", container, name),
    )
    for words in steps:
        run(command(paths, *words), env=environment(paths))


def image_with(paths: Paths, name: str, packages: Sequence[str], log: Path) -> str:
    """Build the base with more Debian packages, and return the image's name."""
    full = f"localhost/{name}:1"
    if not image_id(paths, full):
        ensure_base(paths, log)
        recipe = paths.cache / "tmp" / f"{name}.Dockerfile"
        install = f"apt-get install -y --no-install-recommends {shlex.join(packages)}"
        recipe.write_text(f"FROM {BASE}\nRUN apt-get update && {install}\n")
        build(paths, full, recipe, recipe.parent, {}, log)
    return full


def run_in(
    paths: Paths,
    image: str,
    argv: Sequence[str],
    variables: Mapping[str, str],
    *,
    mounts: Sequence[Path],
    cwd: Path,
    log: Path,
) -> None:
    """Run a command in a temporary container with host directories at the same paths."""
    container = run(command(paths, "from", image), env=environment(paths)).strip()
    lend = [f"--volume={path}:{path}" for path in mounts]
    if HOST_CA.exists():
        lend.append(f"--volume={HOST_CA}:{HOST_CA}:ro")
    settings = [f"--env={key}={value}" for key, value in variables.items()]
    where = ["--isolation", "chroot", "--workingdir", str(cwd)]
    try:
        words = command(paths, "run", *where, *lend, *settings, container, "--", *argv)
        run_logged(words, log, env=environment(paths))
    finally:
        run(command(paths, "rm", container), env=environment(paths), check=False)
