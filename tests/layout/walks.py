"""The three longest walks through the code, as chains of calls, and how often they change places.

    python -m tests.layout.walks [--at REV | --write]

A produced batch goes from the bytes on a socket to the log and its answer, a fetch to the pieces of
files that are sent, a Topic's body from the watch to the transaction that writes its znodes. A real
broker and a real operator (on a real ZooKeeper) are traced while they do each of these once, after
they were warmed up: those of this checkout, or with `--at` of another revision. `--write` puts them
into ARCHITECTURE.md between the markers.

A walk is read as a person reads it who follows the calls in the order in which they happen: into
each function once, at its first call, and back to the caller before the next call there. Counted
are the stays: each time the walk comes into another file (module), and each time it comes into
another folder right below the package or module on top of it (room), returns too. Left out are
leaves, functions that call none of ours, for a reader takes them by their names; what a decorator
wrote (constructors of dataclasses and named tuples, compiled codecs); and what the operator uses of
the broker's package, as it uses kazoo.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crc32c import crc32c

from tests.layout.walk_trace import RESULT
from tests.support import revision, zookeeper
from tests.support.broker import FreshBroker, wait_until
from tests.support.clients import create_topic
from tests.support.ports import free_port

DOCUMENT = revision.ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- walks -->", "<!-- /walks -->"
WIDTH = 118
TOPIC = "walk"
WARM_UP = 20
TIMES = 5
REST_SECONDS = 0.3
OPERATOR_SECONDS = 240
CLUSTERS = "odradek_operator.cluster"
PATHS = (
    "/brokers/ids",
    "/brokers/topics",
    "/config/topics",
    "/config/brokers",
    "/config/changes",
    "/admin/delete_topics",
    "/consumers",
)

Call = tuple[str, str | None, str]  # task or thread, caller, callee


def module_of(function: str) -> str:
    """Return the module of `module:name`."""
    return function.partition(":")[0]


@dataclass(frozen=True)
class Walk:
    """The functions of a walk in order; a function that is come back to stands there again."""

    steps: tuple[str, ...]

    def places(self, place_of: Callable[[str], str]) -> list[str]:
        """Return the places gone through, each time anew where another lay between."""
        found: list[str] = []
        for one in self.steps:
            place = place_of(one)
            if not found or found[-1] != place:
                found.append(place)
        return found


def walk(calls: Sequence[Call], package: str) -> Walk:
    """Return the walk that follows these calls through the functions of one package."""
    callers = {caller for _, caller, _ in calls}
    steps: list[str] = []
    seen: set[str] = set()
    for _, caller, callee in calls:
        if callee in seen or callee not in callers or not callee.startswith(f"{package}."):
            continue
        seen.add(callee)
        if caller is not None and (not steps or steps[-1] != caller):
            seen.add(caller)
            steps.append(caller)
        steps.append(callee)
    return Walk(tuple(steps))


def room_of(folders: frozenset[str], function: str) -> str:
    """Return the folder right below a package, or the module there."""
    top = ".".join(module_of(function).split(".")[:2])
    return f"{top}/" if top in folders else top


def folders_below(root: Path) -> frozenset[str]:
    """Return the dotted names of the folders right below the packages."""
    return frozenset(
        f"{one.parent.parent.name}.{one.parent.name}"
        for source in revision.SOURCES
        for one in (root / source).glob("*/*/__init__.py")
    )


# --- a broker ---


def varint(value: int) -> bytes:
    """Return a zigzag varint."""
    left, out = (value << 1) ^ (value >> 63), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def batch() -> bytes:
    """Return a record batch of one record, as a producer sends it."""
    inner = b"\0" + varint(0) + varint(0) + varint(-1) + varint(5) + b"value" + varint(0)
    now = int(time.time() * 1000)
    checked = struct.pack(">hiqqqhii", 0, 0, now, now, -1, -1, -1, 1) + varint(len(inner)) + inner
    return struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c(checked)) + checked


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def request(key: int, version: int, body: bytes) -> bytes:
    """Return a framed request."""
    payload = struct.pack(">hhi", key, version, 1) + _string("walk") + body
    return struct.pack(">i", len(payload)) + payload


def produce() -> bytes:
    """Return Produce v8 with acks=all."""
    records = batch()
    body = struct.pack(">hhii", -1, -1, 30_000, 1) + _string(TOPIC)
    return request(0, 8, body + struct.pack(">iii", 1, 0, len(records)) + records)


def fetch() -> bytes:
    """Return Fetch v11 from the beginning."""
    body = struct.pack(">iiiibiii", -1, 0, 1, 1 << 20, 0, 0, -1, 1) + _string(TOPIC)
    body += struct.pack(">iiiqqi", 1, 0, -1, 0, -1, 1 << 20)
    return request(1, 11, body + struct.pack(">i", 0) + _string(""))


class TracedBroker(FreshBroker):
    """A broker of the packages below `root` that notes its calls."""

    root = revision.ROOT

    @property
    def _answer(self) -> Path:
        return self.log_path.with_suffix(".walk")

    def _command(self) -> list[str]:
        path = revision.environment(self.root)["PYTHONPATH"]
        here = ["env", f"PYTHONPATH={path}", f"{RESULT}={self._answer}", sys.executable]
        return [*here, "-m", "tests.layout.walk_trace", "broker"]

    def walk_of(self, frame: bytes) -> Walk:
        """Return the walk that one request makes, once others like it have gone before.

        What happens beside it now and then is not called each time, and is left out.
        """
        with self.connect() as sock:
            answers = sock.makefile("rb")

            def ask() -> None:
                sock.sendall(frame)
                (size,) = struct.unpack(">i", answers.read(4))
                assert len(answers.read(size)) == size

            for _ in range(WARM_UP):
                ask()
            found = [self._traced(ask) for _ in range(TIMES)]
        always = set.intersection(*({call[1:] for call in one} for one in found))
        kept = [[call for call in of_request(one) if call[1:] in always] for one in found]
        return Counter(walk(one, "odradek") for one in kept).most_common(1)[0][0]

    def _traced(self, ask: Callable[[], None]) -> list[Call]:
        time.sleep(REST_SECONDS)  # the answer before was read, but may not be all that was done
        self.signal(signal.SIGUSR1)
        time.sleep(REST_SECONDS)
        ask()
        time.sleep(REST_SECONDS)
        self.signal(signal.SIGUSR2)
        wait_until(self._answer.exists, "the calls are written")
        text = self._answer.read_text()
        self._answer.unlink()
        return [tuple(one) for one in json.loads(text)["calls"]]


def of_request(calls: Sequence[Call]) -> list[Call]:
    """Return the calls of the task that handled the request, and of threads in the meantime."""
    mine = {place for place, _, callee in calls if callee.startswith("odradek.handlers.")}
    assert mine, "no handler was called"
    loop = {place.partition("/")[0] for place in mine}
    numbers = [number for number, one in enumerate(calls) if one[0] in mine]
    meantime = calls[numbers[0] : numbers[-1] + 1]
    return [one for one in meantime if one[0] in mine or one[0].partition("/")[0] not in loop]


def broker_walks(folder: Path, keeper: zookeeper.Server, root: Path) -> Iterator[tuple[str, Walk]]:
    """Yield the walks of a batch and of a fetch."""
    broker = TracedBroker(folder, 1, keeper.connect, {})
    broker.root = root
    try:
        broker.start()
        create_topic(broker.address, TOPIC)
        yield "a produced batch", broker.walk_of(produce())
        yield "a fetch", broker.walk_of(fetch())
    finally:
        broker.kill()


# --- an operator ---


def prepare(keeper: zookeeper.Server, chroot: str) -> contextlib.ExitStack:
    """Make the znodes of a cluster with three brokers, which last until the stack is closed."""
    stack = contextlib.ExitStack()
    with keeper.client() as top:
        top.ensure_path(chroot)
    client = stack.enter_context(keeper.client(chroot))
    for path in PATHS:
        client.ensure_path(path)
    for broker_id in range(3):
        registration = {
            "version": 4,
            "host": "127.0.0.1",
            "port": 9092 + broker_id,
            "jmx_port": -1,
            "timestamp": "0",
            "endpoints": [f"PLAINTEXT://127.0.0.1:{9092 + broker_id}"],
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        }
        data = json.dumps(registration).encode()
        client.create(f"/brokers/ids/{broker_id}", data, ephemeral=True)
    return stack


def operator_walk(folder: Path, keeper: zookeeper.Server, root: Path) -> Walk:
    """Return the walk of a Topic's body to its znodes."""
    result = folder / "operator.walk"
    environment = {
        **revision.environment(root),
        RESULT: str(result),
        "ODRADEK_BROKER_IMAGE": "registry.test/odradek-broker:1",
        "ODRADEK_SPARK_IMAGE": "registry.test/odradek-spark:1",
        "ODRADEK_SPARK_SERVICE_ACCOUNT": "odradek-spark",
        "POD_NAME": "walk",
        "POD_NAMESPACE": "walk",
        "ODRADEK_HEALTH_PORT": str(free_port()),
        "ODRADEK_METRICS_PORT": str(free_port()),
    }
    command = [sys.executable, "-m", "tests.layout.walk_trace", "operator"]
    with prepare(keeper, "/walk"):
        ended = subprocess.run(
            [*command, f"{keeper.connect}/walk"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=OPERATOR_SECONDS,
        )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(result.read_text())
    mine = (found["committed_in"], "MainThread")
    # The cluster itself is looked at beside it.
    calls: list[Call] = [
        (place, caller, callee)
        for place, caller, callee in found["calls"]
        if place.startswith(mine) and not f"{caller} {callee}".count(f"{CLUSTERS}.")
    ]
    return walk(calls, "odradek_operator")


# --- what is shown ---


@dataclass(frozen=True)
class Counts:
    """Stays and different places of a walk, by module and by room."""

    stays: int
    modules: int
    room_stays: int
    rooms: int


@dataclass(frozen=True)
class Shown:
    """A walk with its counts and its chain, wrapped."""

    counts: Counts
    chain: str


def count(one: Walk, folders: frozenset[str]) -> Counts:
    """Return the counts of a walk."""
    modules = one.places(module_of)
    rooms = one.places(lambda function: room_of(folders, function))
    return Counts(len(modules), len(set(modules)), len(rooms), len(set(rooms)))


def chain(one: Walk) -> str:
    """Return the stays of a walk: `module(functions that are read there)`, alone for a return."""
    stays: list[tuple[str, list[str]]] = []
    seen: set[str] = set()
    for step in one.steps:
        module, _, name = step.partition(":")
        if not stays or stays[-1][0] != module:
            stays.append((module, []))
        if step not in seen:
            seen.add(step)
            stays[-1][1].append(name.replace(".<locals>", ""))
    told = [
        module.partition(".")[2] + (f"({', '.join(names)})" if names else "")
        for module, names in stays
    ]
    return textwrap.fill(" > ".join(told), WIDTH, break_long_words=False, break_on_hyphens=False)


def walks(root: Path) -> dict[str, Shown]:
    """Return the three walks of the packages below `root`, by name."""
    folders = folders_below(root)
    with tempfile.TemporaryDirectory(prefix="odradek-walks-") as folder:
        place = Path(folder)
        with zookeeper.Server(place) as keeper:
            found = dict(broker_walks(place, keeper, root))
            found["a Topic's body to its znodes"] = operator_walk(place, keeper, root)
    return {name: Shown(count(one, folders), chain(one)) for name, one in found.items()}


def section(found: Mapping[str, Shown]) -> str:
    """Return what stands in ARCHITECTURE.md."""
    lines = [
        "",
        "Stays in modules and in rooms; in brackets how many different ones.",
        "",
        "| walk | modules | rooms |",
        "|---|---|---|",
    ]
    for name, shown in found.items():
        one = shown.counts
        lines.append(f"| {name} | {one.stays} ({one.modules}) | {one.room_stays} ({one.rooms}) |")
    for name, shown in found.items():
        lines += ["", f"{name[0].upper()}{name[1:]}:", "", "```", shown.chain, "```"]
    return "\n".join(lines) + "\n"


def write(text: str) -> None:
    """Put the section into ARCHITECTURE.md."""
    document = DOCUMENT.read_text()
    head, begin, rest = document.partition(BEGIN)
    _, end, tail = rest.partition(END)
    assert begin, f"no {BEGIN} in {DOCUMENT.name}"
    assert end, f"no {END} in {DOCUMENT.name}"
    DOCUMENT.write_text(f"{head}{begin}{text}{end}{tail}")


def show(title: str, found: Mapping[str, Shown]) -> None:
    """Print the walks."""
    for name, one in found.items():
        counts = one.counts
        print(
            f"{title}: {name}: {counts.stays} stays in {counts.modules} modules, "
            f"{counts.room_stays} in {counts.rooms} rooms\n{one.chain}\n",
            flush=True,
        )


def main() -> int:
    """Print the walks, or write them."""
    parser = argparse.ArgumentParser(description="The three longest walks through the code.")
    parser.add_argument("--at", metavar="REV", help="those of another revision")
    parser.add_argument("--write", action="store_true", help="put them into ARCHITECTURE.md")
    options = parser.parse_args()
    if options.at:
        if options.write:
            parser.error("--write is for this checkout")
        try:
            with revision.sources(options.at) as root:
                show(options.at, walks(root))
        except revision.UnknownRevisionError as error:
            print(f"walks: {error}", file=sys.stderr)
            return 2
        return 0
    found = walks(revision.ROOT)
    show("here", found)
    if options.write:
        write(section(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
