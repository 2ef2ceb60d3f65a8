"""One run: a cluster, its load, the faults of a plan, then healing, the final read and the verdict.

After each fault everything is healed. The run continues once every partition has acknowledged a
record that was sent after the fault, and every replica is in sync again. If that takes longer than
`HEAL_SECONDS`, it is itself a violation: the cluster must recover by itself.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from tests.chaos import checker, history
from tests.chaos.faults import SESSION_MS, Fault, Kind, Saboteur
from tests.chaos.history import History, Image, Place
from tests.chaos.load import Load, read_states, read_to_end, without_leader
from tests.support.broker import Broker, Cluster, FreshBroker
from tests.support.clients import create_topic
from tests.support.small_disk import SmallDisk

HEAL_SECONDS = 120
SMALL_DISK = "128m"
TOPICS = ("left", "right")
PARTITIONS = 3
PLACES = tuple(Place(topic, number) for topic in TOPICS for number in range(PARTITIONS))
SETTINGS = {
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "replica.lag.time.max.ms": "5000",
    "replica.fetch.wait.max.ms": "300",
    # Many small segments, so that faults also hit the rolling of one.
    "log.segment.bytes": "65536",
    "leader.imbalance.check.interval.seconds": "10",
    "auto.create.topics.enable": "false",
}


@dataclass(slots=True)
class Verdict:
    """The result of a run: its violations by check, and how long after each fault had begun (its
    own duration included) every partition acknowledged new records.
    """

    violations: dict[str, list[str]] = field(default_factory=dict)
    done: Counter[Kind] = field(default_factory=Counter)
    seconds_to_progress: list[float] = field(default_factory=list)
    acknowledged: int = 0
    in_doubt: int = 0

    def __str__(self) -> str:
        times = sorted(self.seconds_to_progress) or [0.0]
        facts = (
            f"{self.acknowledged} acknowledged, {self.in_doubt} in doubt, "
            f"{len(self.seconds_to_progress)} faults, seconds to progress: "
            f"median {times[len(times) // 2]:.1f}, worst {times[-1]:.1f}"
        )
        if not self.violations:
            return f"PASS: {facts}"
        counts = ", ".join(f"{name}: {len(found)}" for name, found in self.violations.items())
        return f"FAIL: {counts} ({facts})"


class NotUpError(Exception):
    """The cluster of a run did not come up, so nothing is known of its promises: why, in a line."""


LONGEST_REASON = 400


@contextmanager
def coming_up() -> Iterator[None]:
    """Raise NotUpError for whatever goes wrong inside."""
    try:
        yield
    except Exception as error:
        raise NotUpError(in_a_line(error)) from error


def in_a_line(error: Exception) -> str:
    """Return what an error says: of a log behind its first words, only the last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return repr(error)
    text = lines[0] if len(lines) == 1 else f"{lines[0].partition(': ')[0]}: {lines[-1]}"
    return text[:LONGEST_REASON]


Scenario = Callable[[Cluster, KazooClient, Load, Verdict], None]


def run(
    directory: Path,
    plan: Sequence[Fault],
    tell: Callable[[str], None],
    kinds: Mapping[int, type[Broker]] | None = None,
) -> Verdict:
    """Do a plan to a new cluster below `directory`; `tell` receives a line per fault.

    The last broker of this project has a small disk, which can be filled. Raises NotUpError.
    """
    kinds = kinds or {}
    ours = max({1, 2, 3} - kinds.keys(), default=None)
    if ours is None:
        return observe(directory, _doing(plan, tell, {}), kinds)
    with ExitStack() as stack:
        with coming_up():
            disk = stack.enter_context(SmallDisk(directory / f"data-{ours}", SMALL_DISK))
        doing = _doing(plan, tell, {ours: disk})
        verdict = observe(directory, doing, {**kinds, ours: disk.broker_class()})
        if verdict.violations:
            shutil.copytree(disk.seen_from_outside(disk.path), directory / f"kept-{ours}")
    return verdict


def _doing(
    plan: Sequence[Fault], tell: Callable[[str], None], disks: Mapping[int, SmallDisk]
) -> Scenario:
    def do_plan(cluster: Cluster, client: KazooClient, load: Load, verdict: Verdict) -> None:
        saboteur = Saboteur(cluster, PLACES, client, disks)
        _do_faults(saboteur, client, load, plan, verdict, tell)
        tell("waiting for every answer")

    return do_plan


def observe(
    directory: Path,
    scenario: Scenario,
    kinds: Mapping[int, type[Broker]] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Verdict:
    """Judge what clients see of a new cluster below `directory` while a scenario takes place;
    `kinds` as for `Cluster`, `settings` on top of the usual ones. Raises NotUpError.
    """
    observed = History()
    verdict = Verdict()
    wanted = {**SETTINGS, **(settings or {})}
    with ExitStack() as stack:
        with coming_up():
            made = Cluster(directory, 3, wanted, kinds, FreshBroker, own_zookeeper=True)
            cluster = stack.enter_context(made)
            for topic in TOPICS:
                create_topic(cluster.bootstrap, topic, PARTITIONS, 3)
        note_stuck(verdict, "leaders", lambda: without_leader(cluster.bootstrap, PLACES))
        with (
            cluster.zookeeper.client() as client,
            Load(cluster.bootstrap, PLACES, observed, client) as load,
        ):
            note_stuck(verdict, "first records", lambda: load.behind(0))
            scenario(cluster, client, load, verdict)
            load.stop_sending()
            note_stuck(verdict, "in sync at the end", lambda: out_of_sync(client))
            load.read_committed()
            observed.final = read_to_end(cluster.bootstrap, PLACES)
            verdict.in_doubt = sum(load.failed.values())
        observed.high_watermarks = {
            place: records[-1][0] + 1 if records else 0 for place, records in observed.final.items()
        }
        for broker in cluster.brokers.values():
            broker.kill()
        observed.images = list(read_images(cluster))
    history.write(observed, directory / "history.jsonl")
    verdict.acknowledged = len(observed.acknowledged)
    verdict.violations.update(checker.check(observed))
    return verdict


def _do_faults(
    saboteur: Saboteur,
    client: KazooClient,
    load: Load,
    plan: Sequence[Fault],
    verdict: Verdict,
    tell: Callable[[str], None],
) -> None:
    for number, fault in enumerate(plan, 1):
        time.sleep(fault.calm_seconds)
        began_ns = time.monotonic_ns()
        story = saboteur.hurt(fault)
        healed_ns = time.monotonic_ns()
        verdict.done[fault.kind] += 1
        what = f"after fault {number}, {fault.kind.value}: {story}"
        note_stuck(verdict, f"no progress {what}", partial(load.behind, healed_ns))
        progress = (time.monotonic_ns() - began_ns) / 1e9
        verdict.seconds_to_progress.append(progress)
        back = note_stuck(verdict, f"not in sync {what}", lambda: out_of_sync(client))
        tell(
            f"{fault.kind.value}: {story}; progress {progress:.1f} s after it began, "
            f"all in sync {back:.1f} s later"
        )


def note_stuck(verdict: Verdict, what: str, missing: Callable[[], Sequence[object]]) -> float:
    """Wait until nothing is missing, and return the seconds; a violation names what is missing."""
    began = time.monotonic()
    while left := missing():
        if time.monotonic() > began + HEAL_SECONDS:
            verdict.violations.setdefault("stuck", []).append(f"{what}: {left}")
            break
        time.sleep(0.1)
    return time.monotonic() - began


def out_of_sync(client: KazooClient, places: Sequence[Place] = PLACES) -> list[str]:
    """Return the partitions that lack a leader or an in-sync replica."""
    try:
        states = list(read_states(client, places))
    except KazooException as error:
        return [repr(error)]
    return [
        f"{one.place} led by {one.leader} with {one.isr} in sync"
        for one in states
        if one.leader == -1 or len(one.isr) < len(one.replicas)
    ]


def read_images(cluster: Cluster, places: Sequence[Place] = PLACES) -> list[Image]:
    """Return the bytes of every replica of the partitions."""
    return [
        Image(
            broker_id,
            place,
            b"".join(
                path.read_bytes() for path in sorted((broker.log_dir / str(place)).glob("*.log"))
            ),
        )
        for broker_id, broker in cluster.brokers.items()
        for place in places
    ]
