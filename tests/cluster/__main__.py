"""Command line of the development cluster: `python3 -m tests.cluster --help`."""

import argparse
import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Sequence

from tests.cluster import builtin, control, deploy, host, images, kind, layout, tools, volumes
from tests.cluster.layout import Node
from tests.cluster.settings import Paths, paths
from tests.cluster.shell import ClusterError, step


def _tools(where: Paths, *, on_docker: bool) -> None:
    packages = host.BUILTIN_PACKAGES
    if on_docker:
        packages = {} if tools.host_go_suffices(os.environ) else host.BUILD_PACKAGES
    host.ensure(packages, where)
    tools.ensure(where, tools.KIND_TOOLS if on_docker else tools.BUILTIN_TOOLS)


def _cluster(where: Paths, nodes: Sequence[Node], *, on_docker: bool) -> None:
    if on_docker:
        _tools(where, on_docker=True)
        kind.up(where)
    else:
        host.ensure(host.BUILTIN_PACKAGES, where)
        builtin.up(nodes, where, [])


def _image(name: str) -> images.Image:
    known = {image.name: image for image in images.IMAGES}
    if name not in known:
        raise ClusterError(f"no image {name}; there are {', '.join(known)}")
    return known[name]


def _tag(where: Paths, nodes: Sequence[Node], *, on_docker: bool, name: str, tag: str) -> None:
    if on_docker:
        kind.tag(where, _image(name), tag)
    else:
        images.tag(where, nodes, _image(name), tag)


def _images(
    where: Paths, nodes: Sequence[Node], *, on_docker: bool, names: list[str]
) -> Sequence[str]:
    """Build images, and load them where there is a cluster; return those that changed there."""
    wanted = [_image(name) for name in names] or list(images.IMAGES)
    running = where.kubeconfig.exists() and control.answers(where)
    if on_docker:
        kind.build_all(where, wanted)
        return kind.load_all(where, wanted) if running else []
    host.ensure(host.BUILD_PACKAGES, where)
    images.build_all(where, wanted)
    return images.load_all(where, nodes, wanted) if running else []


def _volumes(where: Paths, *, on_docker: bool) -> None:
    def kubectl(*words: str) -> str:
        return control.kubectl(where, *words)

    empty = kind.empty_volume if on_docker else builtin.empty_volume
    for name in volumes.renew(kubectl, empty):
        print(name)


def _down(where: Paths, nodes: Sequence[Node], *, on_docker: bool) -> None:
    if on_docker:
        kind.down(where)
        shutil.rmtree(where.state, ignore_errors=True)
    else:
        with step("removing the cluster"):
            builtin.down(nodes, where)


def _kubeconfig(where: Paths) -> None:
    if not where.kubeconfig.exists():
        raise ClusterError("there is no cluster; run `make up` or `make cluster` first")
    print(where.kubeconfig)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m tests.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("up", help="everything: cluster, images, chart, quickstart, results")
    commands.add_parser("cluster", help="boot or repair the cluster alone")
    commands.add_parser("down", help="remove the cluster and every trace of it")
    build = commands.add_parser("tools", help="install packages and build programs of tests")
    build.add_argument("--keda", action="store_true", help="KEDA only, which takes long")
    load = commands.add_parser("images", help="build images; load them where there is a cluster")
    load.add_argument("names", nargs="*", metavar="IMAGE", help="default: all of them")
    tag = commands.add_parser("tag", help="give an image on the nodes one more tag")
    tag.add_argument("image", metavar="IMAGE")
    tag.add_argument("tag", metavar="TAG")
    commands.add_parser("kubeconfig", help="print the path of the kubeconfig")
    commands.add_parser("volumes", help="empty released volumes and offer them again")
    for name, text in (
        ("fail", "kill every process of a node and unplug it"),
        ("start", "bring a failed node back"),
        ("cut", "unplug a node that runs on"),
        ("join", "plug a node in again"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("node", metavar="NODE")
    return parser


def _dispatch(arguments: argparse.Namespace, where: Paths) -> None:
    nodes = layout.load()
    # What is there stays what it is, also if Docker has come since.
    on_docker = not builtin.exists(where) and kind.engine_answers()

    def up() -> None:
        if on_docker:
            _cluster(where, nodes, on_docker=True)
            changed = _images(where, nodes, on_docker=True, names=[])
        else:
            host.ensure(host.BUILTIN_PACKAGES, where)
            # Programs are built on it, too.
            images.ensure_base(where)
            builtin.up(nodes, where, images.build_each(where))
            changed = images.load_all(where, nodes)
        # The chart first: it has the rights that a new operator needs.
        deploy.install(where)
        deploy.restart(where, changed)
        deploy.report(where)

    def build_images() -> None:
        names = getattr(arguments, "names", [])
        deploy.restart(where, _images(where, nodes, on_docker=on_docker, names=names))

    def build_tools() -> None:
        if arguments.keda:
            tools.ensure(where, tools.SCALERS)
            return
        _tools(where, on_docker=on_docker)
        tools.ensure(where, tools.JUDGES + tools.CLIENTS + tools.STORES)

    def give_tag() -> None:
        _tag(where, nodes, on_docker=on_docker, name=arguments.image, tag=arguments.tag)

    name = getattr(arguments, "node", "")
    actions: dict[str, Callable[[], None]] = {
        "up": up,
        "cluster": lambda: _cluster(where, nodes, on_docker=on_docker),
        "down": lambda: _down(where, nodes, on_docker=on_docker),
        "tools": build_tools,
        "images": build_images,
        "tag": give_tag,
        "kubeconfig": lambda: _kubeconfig(where),
        "volumes": lambda: _volumes(where, on_docker=on_docker),
        "fail": lambda: builtin.fail_node(nodes, name),
        "start": lambda: builtin.start_node(nodes, name, where),
        "cut": lambda: builtin.cut_node(nodes, name, up=False),
        "join": lambda: builtin.cut_node(nodes, name, up=True),
    }
    actions[arguments.command]()


def main() -> int:
    """Run one command. An error is one line on stderr and exit status 1."""
    arguments = _parser().parse_args()
    where = paths()
    os.environ["PATH"] = f"{where.bin}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    try:
        if arguments.command == "kubeconfig":
            _kubeconfig(where)
            return 0
        host.become_root("tests.cluster")
        host.make_folder(where.cache)
        with (where.cache / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ClusterError("another command is running on the cluster") from error
            _dispatch(arguments, where)
    except (ClusterError, layout.LayoutError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; run the same command again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
