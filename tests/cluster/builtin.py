"""Starts, repairs and removes the cluster without a container engine, and fails nodes.

`up` creates and starts what is missing, in order, so it also restores a cluster after a reboot.
`down` finds processes by control group and mounts by directory. It also removes files that
components write outside of their directories, unless they existed before.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tests.cluster import (
    cgroups,
    components,
    control,
    mounts,
    network,
    node,
    settings,
    tools,
    volumes,
)
from tests.cluster.images import Image, store_each, store_pause
from tests.cluster.layout import Node
from tests.cluster.settings import Paths
from tests.cluster.shell import ClusterError, run, say, side_by_side, step, wait_until
from tests.cluster.store import Store

NAMESPACES = Path("/run/netns")  # which `ip` also turns into a mount point
CONTAINERD = Path("/run/containerd")  # also that of an engine beside the cluster
FIXED_PATHS = (
    str(NAMESPACES),
    str(CONTAINERD),
    "/run/xtables.lock",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
)


def _remember_host(paths: Paths) -> None:
    """Store the host's original settings, which `down` restores."""
    memory = paths.state / "host.json"
    if memory.exists():
        return
    paths.state.mkdir(parents=True, exist_ok=True)
    absent = [path for path in FIXED_PATHS if not Path(path).exists()]
    forwarding = network.FORWARDING.read_text().strip()
    memory.write_text(json.dumps({"absent": absent, "ip_forward": forwarding}))


def exists(paths: Paths) -> bool:
    """Return whether there is a cluster of this kind, or a part of one."""
    return (paths.state / "host.json").exists()


def _restore_host(paths: Paths) -> None:
    memory = paths.state / "host.json"
    if not memory.exists():
        return
    before = json.loads(memory.read_text())
    # An engine that has come since forwards packets, too.
    has_engine = str(CONTAINERD) in before["absent"] and components.listens(
        CONTAINERD / "containerd.sock"
    )
    if not has_engine:
        network.FORWARDING.write_text(before["ip_forward"] + "\n")
    for path in map(Path, before["absent"]):
        if path == NAMESPACES and network.namespaces():
            continue  # somebody else has made one since
        if path == CONTAINERD and has_engine:
            continue
        if str(path) in mounts.points():
            run(["umount", path])
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def up(nodes: Sequence[Node], paths: Paths, wanted: Iterable[Image]) -> None:
    """Build missing programs, and start or repair the cluster until every node is Ready.

    A node that is made anew has the wanted images, which may be built while they are asked for:
    that, unpacking them, and the start of the nodes' containerd go on beside the control plane.
    Raises ClusterError.
    """
    _remember_host(paths)
    network.create(nodes)
    with ThreadPoolExecutor(max_workers=1) as worker:
        programs = worker.submit(tools.ensure, paths, tools.BUILTIN_TOOLS)

        def start_control() -> None:
            programs.result()
            with step("control plane"):
                control.create_identities(paths, nodes)
                control.start(paths)

        def start_runtimes() -> None:
            if all(paths.containerd(member.name).exists() for member in nodes):
                _take_all(wanted)
            else:
                _store(paths, wanted, programs)
            for member in nodes:
                node.write_files(member, paths)
                Store(paths).give(paths.containerd(member.name))
                node.start_runtime(member, paths)

        side_by_side(start_control, start_runtimes)
    with step(f"{len(nodes)} nodes"):
        for member in nodes:
            node.start_agents(member, paths)
        control.apply(paths, volumes.objects(_directories(nodes, paths), default=True))
        wait_until(lambda: _nodes_ready(nodes, paths), "all nodes to be Ready", timeout_s=600)


def _store(paths: Paths, wanted: Iterable[Image], programs: Future[None]) -> None:
    """Unpack what new nodes have, the images before programs are there."""
    store = Store(paths)
    try:
        store_each(paths, store, wanted)
        programs.result()
        store_pause(paths, store)
    finally:
        store.stop()


def _take_all(wanted: Iterable[Image]) -> None:
    """Let all be built; nodes that run load them later."""
    for _ in wanted:
        pass


def _directories(nodes: Sequence[Node], paths: Paths) -> dict[str, list[str]]:
    """Create the volumes' directories, writable for any user of a pod."""
    made: dict[str, list[str]] = {}
    for member in nodes:
        made[member.name] = []
        for number in range(1, settings.VOLUMES_PER_NODE + 1):
            directory = paths.node(member.name) / f"pv{number}"
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o777)
            made[member.name].append(str(directory))
    return made


def _nodes_ready(nodes: Sequence[Node], paths: Paths) -> bool:
    for member in nodes:
        for name in node.names(member):
            components.require(paths, name)
    # The API server may respond late while everything starts.
    listed = control.kubectl(paths, "get", "nodes", "-o", "json", check=False)
    ready = {
        item["metadata"]["name"]
        for item in (json.loads(listed)["items"] if listed else ())
        for condition in item["status"].get("conditions", ())
        if condition["type"] == "Ready" and condition["status"] == "True"
    }
    return ready >= {member.name for member in nodes}


def empty_volume(_node: str, directory: str) -> None:
    """Delete the content of a volume's directory."""
    for child in Path(directory).iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()


def fail_node(nodes: Sequence[Node], name: str) -> None:
    """Fail one node as in a power cut; `up` restarts it."""
    node.fail(_find(nodes, name))


def start_node(nodes: Sequence[Node], name: str, paths: Paths) -> None:
    """Restart a failed node."""
    member = _find(nodes, name)
    network.connect(member, up=True)
    node.start_runtime(member, paths)
    node.start_agents(member, paths)


def cut_node(nodes: Sequence[Node], name: str, *, up: bool) -> None:
    """Disconnect a node from the network while it keeps running, or connect it again."""
    network.connect(_find(nodes, name), up=up)


def _find(nodes: Sequence[Node], name: str) -> Node:
    for member in nodes:
        if member.name == name:
            return member
    raise ClusterError(f"no node {name}; there are {', '.join(each.name for each in nodes)}")


def _shim_sockets(paths: Paths) -> list[Path]:
    """Return the sockets of containerd's shims; their names are hashes, stored in the bundles."""
    notes = paths.run.glob("*/io.containerd.runtime.v2.task/*/*/address")
    return [Path(note.read_text().removeprefix("unix://")) for note in notes]


def down(nodes: Sequence[Node], paths: Paths) -> None:
    """Stop and remove everything, if there is anything. Raises ClusterError."""
    sockets = _shim_sockets(paths)
    cgroups.kill()
    # An interrupted build leaves mounts in the image storage.
    if left := mounts.unmount((paths.state, paths.run, paths.storage, paths.storage_run)):
        raise ClusterError(f"{left[0]} cannot be unmounted; nothing was removed")
    network.remove(nodes)
    for socket in sockets:
        socket.unlink(missing_ok=True)
    # The kernel frees a group shortly after its last process ends.
    wait_until(_groups_removed, "the control groups to become empty", timeout_s=60)
    _restore_host(paths)
    for directory in (paths.state, paths.run, paths.storage_run):
        if directory.exists():
            shutil.rmtree(directory)
    say("    the cluster is removed")


def _groups_removed() -> bool:
    try:
        cgroups.remove()
    except OSError:
        return False
    return True
