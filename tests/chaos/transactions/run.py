"""One run of transactions: a cluster, its load, the faults of a plan, and the verdict.

It goes on after a fault once every transactional id has committed a transaction that was begun
after it, and all replicas are in sync. At the end no transaction may stay open.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException
from kazoo.client import KazooClient

from odradek.values import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.chaos import run as plain
from tests.chaos.faults import Fault, Kind, Saboteur
from tests.chaos.history import Place
from tests.chaos.load import read_to_end, without_leader
from tests.chaos.run import Verdict, coming_up, note_stuck, out_of_sync, read_images
from tests.chaos.transactions import checker, history
from tests.chaos.transactions.history import History, Outcome
from tests.chaos.transactions.load import Load, ends
from tests.support.broker import Broker, Cluster, FreshBroker
from tests.support.clients import create_topic

SOURCE, OTHER, COPY = "left", "right", "copy"
PARTITIONS = 3
PLACES = tuple(
    Place(topic, number) for topic in (SOURCE, OTHER, COPY) for number in range(PARTITIONS)
)
# What faults aim at: leaders of records, of transactional ids, and of groups.
AIMS = (
    *PLACES,
    *(
        Place(topic, number)
        for topic in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC)
        for number in range(PARTITIONS)
    ),
)
SETTINGS = {
    **plain.SETTINGS,
    "transaction.state.log.num.partitions": str(PARTITIONS),
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # What coordinators wrote is compacted all the time, markers in it included.
    "transaction.state.log.segment.bytes": "65536",
    "offsets.topic.segment.bytes": "65536",
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.delete.retention.ms": "5000",
}
SHOWN = 5
# How long clients may take a paused broker's word after it goes on.
STALE_NS = 10_000_000_000


def run(
    directory: Path,
    plan: Sequence[Fault],
    tell: Callable[[str], None],
    kinds: Mapping[int, type[Broker]] | None = None,
    seed: int = 1,
) -> Verdict:
    """Do a plan to a new cluster below `directory`; `tell` receives a line per fault, `seed`
    chooses what transactions do. Raises NotUpError.
    """
    observed, verdict = History(SOURCE, COPY), Verdict()
    with ExitStack() as stack:
        with coming_up():
            made = Cluster(directory, 3, SETTINGS, kinds, FreshBroker, own_zookeeper=True)
            cluster = stack.enter_context(made)
            for topic in (SOURCE, OTHER, COPY):
                create_topic(cluster.bootstrap, topic, PARTITIONS, 3)
        note_stuck(verdict, "leaders", lambda: without_leader(cluster.bootstrap, PLACES))
        with (
            cluster.zookeeper.client() as client,
            Load(cluster.bootstrap, PLACES, observed, seed) as load,
        ):
            note_stuck(verdict, "first transactions", lambda: load.behind(0))
            saboteur = Saboteur(cluster, AIMS, client, {})
            _do_faults(saboteur, client, load, observed, plan, verdict, tell)
            tell("waiting for every answer")
            load.stop_writing()
            note_stuck(verdict, "in sync at the end", lambda: out_of_sync(client, AIMS))
            note_stuck(verdict, "open after the last write", lambda: _open(cluster, observed))
            note_stuck(verdict, "not copied", lambda: load.not_copied()[:SHOWN])
            load.stop_copying()
            note_stuck(verdict, "open after the last copy", lambda: _open(cluster, observed))
            observed.committed = _read(cluster, "read_committed")
            observed.everything = _read(cluster, "read_uncommitted")
        for broker in cluster.brokers.values():
            broker.kill()
        observed.images = list(read_images(cluster, PLACES))
    history.write(observed, directory / "history.jsonl")
    outcomes = Counter(attempt.outcome for attempt in observed.attempts)
    tell(", ".join(f"{outcome.value}: {count}" for outcome, count in outcomes.items()))
    verdict.acknowledged = sum(
        len(one.sent) for one in observed.attempts if one.outcome is Outcome.COMMITTED
    )
    verdict.in_doubt = outcomes[Outcome.UNKNOWN]
    verdict.violations.update(checker.check(observed))
    return verdict


def _open(cluster: Cluster, observed: History) -> list[str]:
    """Return the partitions with an open transaction, after a look at the ends of all."""
    try:
        observed.ends = ends(cluster.bootstrap, PLACES)
    except KafkaException as error:
        return [repr(error)]
    return checker.hanging(observed)


def _read(cluster: Cluster, isolation: str) -> dict[Place, list[tuple[int, str]]]:
    return read_to_end(cluster.bootstrap, PLACES, isolation=isolation)


def _do_faults(
    saboteur: Saboteur,
    client: KazooClient,
    load: Load,
    observed: History,
    plan: Sequence[Fault],
    verdict: Verdict,
    tell: Callable[[str], None],
) -> None:
    for number, fault in enumerate(plan, 1):
        time.sleep(fault.calm_seconds)
        began_ns = time.monotonic_ns()
        story = saboteur.hurt(fault)
        healed_ns = time.monotonic_ns()
        if fault.kind in (Kind.PAUSE_LEADER, Kind.PAUSE_CONTROLLER):
            observed.stale.append((began_ns, healed_ns + STALE_NS))
        verdict.done[fault.kind] += 1
        what = f"after fault {number}, {fault.kind.value}: {story}"
        note_stuck(verdict, f"no progress {what}", partial(load.behind, healed_ns))
        progress = (time.monotonic_ns() - began_ns) / 1e9
        verdict.seconds_to_progress.append(progress)
        back = note_stuck(verdict, f"not in sync {what}", lambda: out_of_sync(client, AIMS))
        tell(
            f"{fault.kind.value}: {story}; progress {progress:.1f} s after it began, "
            f"all in sync {back:.1f} s later"
        )
