"""The same cluster on a Docker engine: kind runs the nodes of kind-config.yaml.

kind names nodes after the cluster (odradek-worker, odradek-worker2, ...). Volumes and component
logs are directories inside the node containers, under the same paths as on the built-in cluster:
the quickstart's collector finds its logs on whichever node it runs.
"""

import json
import subprocess
from collections.abc import Sequence

from tests.cluster import control, host, settings, volumes
from tests.cluster.images import Image
from tests.cluster.settings import REPO, Paths
from tests.cluster.shell import run, run_logged, step

NAME = "odradek"
# Copies one unit's journal to a file in a node container, as long as that runs.
FOLLOW = "mkdir -p {logs}; journalctl --follow --no-tail --output cat -u {unit} >>{logs}/{file}"


def engine_answers() -> bool:
    """Return whether a Docker engine answers."""
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    # Some clients exit with 0 without an engine; only an engine reports its version.
    version = ["docker", "version", "--format", "{{.Server.Version}}"]
    return done.returncode == 0 and bool(run(version, check=False).strip())


def _workers(paths: Paths) -> list[str]:
    listed = json.loads(control.kubectl(paths, "get", "nodes", "-o", "json"))["items"]
    role = "node-role.kubernetes.io/control-plane"
    names = [item["metadata"]["name"] for item in listed if role not in item["metadata"]["labels"]]
    return sorted(names)


def up(paths: Paths) -> None:
    """Create the cluster if it is missing, then volumes and log files. Raises ClusterError."""
    paths.state.mkdir(parents=True, exist_ok=True)
    kind = f"{paths.bin}/kind"
    if NAME not in run([kind, "get", "clusters"], check=False).split():
        log = paths.build_logs / "kind.log"
        with step("kind cluster", log):
            wait = ["--wait", "180s", "--kubeconfig", str(paths.kubeconfig)]
            argv = [kind, "create", "cluster", "--name", NAME]
            run_logged([*argv, "--config", settings.KIND_CONFIG, *wait], log)
    elif not paths.kubeconfig.exists():
        run([kind, "export", "kubeconfig", "--name", NAME, "--kubeconfig", paths.kubeconfig])
    # kind makes it for root alone.
    host.give_to_caller(paths.kubeconfig)
    directories: dict[str, list[str]] = {}
    for worker in _workers(paths):
        root = paths.state / "volumes"
        count = range(1, settings.VOLUMES_PER_NODE + 1)
        directories[worker] = [f"{root}/pv{number}" for number in count]
        run(["docker", "exec", worker, "mkdir", "-p", "-m", "777", *directories[worker]])
        if run(["docker", "exec", worker, "sh", "-c", f"ls {paths.logs} || true"]).strip():
            continue
        for unit in ("kubelet", "containerd"):
            script = FOLLOW.format(logs=paths.logs, unit=unit, file=f"{unit}-{worker}.log")
            run(["docker", "exec", "--detach", worker, "sh", "-c", script])
    control.apply(paths, volumes.objects(directories, default=False))


def build_all(paths: Paths, wanted: Sequence[Image]) -> None:
    """Build the images with Docker and its cache. Raises ClusterError."""
    for image in wanted:
        log = paths.build_logs / f"image-{image.name}.log"
        with step(f"image {image.tag}", log):
            argv = ["docker", "build", "--tag", image.tag, "--file", f"{REPO / image.dockerfile}"]
            run_logged([*argv, image.context], log)


def load_all(paths: Paths, wanted: Sequence[Image]) -> list[str]:
    """Load changed images into all nodes, and return their names."""
    memory = paths.state / "images.json"
    known = json.loads(memory.read_text()) if memory.exists() else {}
    changed = []
    for image in wanted:
        log = paths.build_logs / f"image-{image.name}.log"
        current = run(["docker", "image", "inspect", "--format", "{{.Id}}", image.tag]).strip()
        if known.get(image.tag) != current:
            with step(f"loading {image.tag}", log):
                load = ["load", "docker-image", "--name", NAME, image.tag]
                run_logged([paths.bin / "kind", *load], log)
            known[image.tag] = current
            memory.write_text(json.dumps(known, indent=1))
            changed.append(image.tag)
    return changed


def tag(paths: Paths, image: Image, name: str) -> None:
    """Give an image that nodes have one more tag."""
    for worker in _workers(paths):
        ctr = ["docker", "exec", worker, "ctr", "--namespace", "k8s.io"]
        run([*ctr, "images", "tag", "--force", image.tag, image.tagged(name)])


def empty_volume(worker: str, directory: str) -> None:
    """Delete the content of a volume's directory in a node container."""
    run(["docker", "exec", worker, "find", directory, "-mindepth", "1", "-delete"])


def down(paths: Paths) -> None:
    """Delete the cluster if it exists."""
    kind = paths.bin / "kind"
    if kind.exists():
        run([kind, "delete", "cluster", "--name", NAME, "--kubeconfig", paths.kubeconfig])
