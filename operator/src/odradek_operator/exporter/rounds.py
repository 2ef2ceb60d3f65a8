"""The exporter: one round after the other, and what each leaves for Prometheus.

A round reads committed offsets first and log ends after them: otherwise a busy group would show a
negative lag. What fails in a round keeps its last values and is logged once, until the reason
changes.
"""

from __future__ import annotations

import gzip
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

from odradek import lag as rule
from odradek.http_server import HttpAnswer, HttpRequest, plain
from odradek.values import TopicPartition
from odradek.zk import consumers, znodes
from odradek.zk.client import OPEN, ZooKeeperAccess
from odradek.zk.consumers import TopicPattern
from odradek_operator.exporter import coordinators, logs, page
from odradek_operator.exporter.brokers import RoundBrokers
from odradek_operator.exporter.coordinators import GroupCommits
from odradek_operator.exporter.lags import GroupRead, Lags, Moment
from odradek_operator.exporter.logs import Logs, Topic
from odradek_operator.group import znodes as group_znodes
from odradek_operator.group.znodes import ZnodeGroup
from odradek_operator.shared import observe
from odradek_operator.shared.broker_client import OperatorClient
from odradek_operator.shared.broker_security import SecurityFile
from odradek_operator.shared.zookeeper import Pool, UnreachableError, ZooKeeper

log = logging.getLogger(__name__)

KINDS: Final = ("zookeeper", "broker", "group", "topic", "round")
_MOST_NAMES: Final = 5
# /healthz answers 503 if no round succeeded for so many intervals.
_INTERVALS: Final = 3

# (kind, name) -> reason.
Failures = dict[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class Filter:
    """Names that are wanted: patterns match whole names."""

    include: TopicPattern | None = None
    exclude: TopicPattern | None = None

    def __contains__(self, name: str) -> bool:
        """Return whether a name is wanted."""
        if self.include is not None and not self.include.fullmatch(name):
            return False
        return self.exclude is None or not self.exclude.fullmatch(name)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says. `zookeeper` is host:port[,host:port...][/chroot].

    `client_config` is a file with settings of Kafka's clients, read anew for each round, since it
    changes with passwords and authorities; `listener` the name of the one it is for. `access` is
    how to connect to ZooKeeper.
    """

    zookeeper: str
    interval_seconds: float
    groups: Filter = Filter()
    topics: Filter = Filter()
    client_config: Path | None = None
    listener: str | None = None
    access: ZooKeeperAccess = OPEN


class Exporter:
    """Reads one cluster round by round. `answer` may be called from another thread."""

    def __init__(
        self,
        options: Options,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._clock = clock
        self._wall = wall
        self._pool = Pool(_refuse_writes, options.access)
        config = options.client_config
        self._security = None if config is None else SecurityFile(config)
        self._logs = Logs()
        self._lags = Lags()
        self._failures: Failures = {}
        self._failed = Counter(dict.fromkeys(KINDS, 0))
        self._succeeded_at: float | None = None
        self._page = page.render(self._lags, page.Rounds(self._failed, None))

    def round(self) -> None:
        """Read everything once, and make the next page of it."""
        began = self._clock()
        failures: Failures = {}
        try:
            if self._read(self._pool.get(self._options.zookeeper), failures):
                self._succeeded_at = self._clock()
        except UnreachableError as error:
            failures["zookeeper", self._options.zookeeper] = str(error)
        except Exception as error:
            if ("round", "") not in self._failures:
                log.exception("a round failed")
            failures["round", ""] = f"{type(error).__name__}: {error}"
        self._report(failures)
        rounds = page.Rounds(self._failed, self._clock() - began)
        self._page = page.render(self._lags, rounds)

    def _read(self, zookeeper: ZooKeeper, failures: Failures) -> bool:
        """Read commits, then ends; return whether any broker answered. Raises UnreachableError."""
        security = None if self._security is None else self._security.present()
        endpoints = _endpoints(zookeeper, failures, self._options.listener)
        with OperatorClient(endpoints, security) as client:
            brokers = RoundBrokers(client)
            lags = self._lags
            old = self._read_znodes(zookeeper)
            read = coordinators.read(brokers, self._options.groups.__contains__, lags.coordinated)
            failures.update({("group", name): why for name, why in read.failures.items()})
            unread = {
                name
                for name in lags.coordinated
                if name not in read.groups and name not in read.gone
            }
            names = (old.keys() | read.groups.keys()) - unread - read.failures.keys()
            named = lags.topics
            for name in names:
                named.update(one.topic for one in (old[name].committed if name in old else ()))
                if name in read.groups:
                    named.update(one.topic for one in read.groups[name].committed)
                    named.update(read.groups[name].assigned)
            wanted = [topic for topic in named if topic in self._options.topics]
            topics, unreadable = logs.topics(zookeeper, wanted)
            failures.update({("topic", name): why for name, why in unreadable.items()})
            partitions = [
                TopicPartition(name, number)
                for name, topic in topics.items()
                for number in topic.partitions
            ]
            bounds = self._logs.read(zookeeper, brokers, partitions)
            failures.update(_without_leader(partitions, bounds))
            now = Moment(self._clock(), self._wall())
            lags.keep_ends(topics, bounds, now.at)
            for name in names:
                merged = _merge(old.get(name), read.groups.get(name), topics)
                lags.update(name, merged, topics, unreadable, bounds, now)
            gone = lags.groups.keys() - names - unread - read.failures.keys()
            lags.forget(gone, topics.keys() | unreadable.keys(), now.at)
            reasons = {**read.unlisted, **brokers.failures}
            failures.update({("broker", str(one)): why for one, why in reasons.items()})
            return bool(brokers.answering)

    def _read_znodes(self, zookeeper: ZooKeeper) -> dict[str, ZnodeGroup]:
        """Return the groups of /consumers, remembered while ZooKeeper reports no change."""
        listed = zookeeper.children([consumers.CONSUMERS_PATH])[consumers.CONSUMERS_PATH] or ()
        names = [name for name in listed if name in self._options.groups]
        return group_znodes.read_groups(zookeeper.cached, names)

    def _report(self, failures: Failures) -> None:
        """Count failures, and log those that are new or have another reason."""
        news: dict[tuple[str, str], list[str]] = {}
        for (kind, name), why in failures.items():
            self._failed[kind] += 1
            if self._failures.get((kind, name)) != why:
                news.setdefault((kind, why), []).append(name)
        for (kind, why), names in news.items():
            log.warning("failed to read %s %s: %s; retrying", kind, _shown(names), why)
        self._failures = failures

    @property
    def healthy(self) -> bool:
        """Return whether a round succeeded in the last three intervals."""
        since = self._succeeded_at
        if since is None:
            return False
        return self._clock() - since <= _INTERVALS * self._options.interval_seconds

    def probe(self, request: HttpRequest) -> HttpAnswer | None:
        """Answer a probe, or return None."""
        if request.path != "/healthz":
            return None
        if self.healthy:
            return plain(HTTPStatus.OK, "ok")
        text = f"no round succeeded in the last {_INTERVALS} intervals"
        return plain(HTTPStatus.SERVICE_UNAVAILABLE, text)

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer /metrics with the page of the last round."""
        if request.path != "/metrics":
            return plain(HTTPStatus.NOT_FOUND, "/metrics /healthz")
        headers = {"Content-Type": page.CONTENT_TYPE}
        body = self._page
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
        else:
            body = gzip.decompress(body)
        return HttpAnswer("200 OK", headers, body)

    def close(self) -> None:
        """End the session with ZooKeeper."""
        self._pool.close()


def _refuse_writes() -> None:
    raise AssertionError("the exporter writes nothing")


def _endpoints(
    zookeeper: ZooKeeper, failures: Failures, listener: str | None
) -> dict[int, tuple[str, int]]:
    names = zookeeper.children([znodes.BROKER_IDS_PATH])[znodes.BROKER_IDS_PATH] or ()
    found = zookeeper.read(map(znodes.broker_path, znodes.broker_ids(names)))
    registered, unreadable = znodes.decode_brokers(
        {path: znode.data for path, znode in found.items() if znode is not None}
    )
    for error in unreadable:
        failures["broker", error.path.rpartition("/")[2]] = str(error)
    if not registered:
        failures["broker", "any"] = "none is registered"
    endpoints = observe.endpoints(registered, listener)
    if registered and not endpoints:
        failures["broker", "any"] = f"none has the listener {listener}"
    return endpoints


def _without_leader(
    partitions: list[TopicPartition], bounds: Mapping[TopicPartition, logs.LogBounds]
) -> Failures:
    missing: dict[str, list[int]] = {}
    for one in partitions:
        if one not in bounds:
            missing.setdefault(one.topic, []).append(one.partition)
    return {
        ("topic", name): f"no leader answers for partition {_shown(sorted(numbers))}"
        for name, numbers in missing.items()
    }


def _shown(names: Sequence[object]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(map(str, names[:_MOST_NAMES])) + more


def _merge(
    old: ZnodeGroup | None, found: GroupCommits | None, topics: Mapping[str, Topic]
) -> GroupRead:
    """Return a group as its stores hold it: members of either, and the larger of two offsets.

    An offset znode that is older than its topic counts only where the coordinator has none.
    """
    committed = dict(found.committed) if found else {}
    former = set()
    for partition, one in old.committed.items() if old else ():
        topic = topics.get(partition.topic)
        if topic is not None and rule.is_of_former_topic(one.written, topic.incarnation):
            if partition not in committed:
                former.add(partition)
                committed[partition] = one.offset
        else:
            committed[partition] = max(one.offset, committed.get(partition, -1))
    return GroupRead(
        members=(old.members if old else 0) + (found.members if found else 0),
        simple=found is not None and found.simple and old is None,
        in_coordinator=found is not None,
        committed=committed,
        former=former,
        assigned=found.assigned if found else frozenset(),
    )
