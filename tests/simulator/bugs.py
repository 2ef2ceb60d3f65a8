"""Bugs to plant into the real code, to show that the simulator finds them.

Each bug replaces one decision of the real code by a plausible wrong one. Similar systems have made
these mistakes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from odradek.controller import election
from odradek.handlers.context import ControllerLink
from odradek.log.partition.topic_identity import TopicIdentity
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replica import isr, topic_identities, truncation
from odradek.replica.agreement import LeaderAgreement
from odradek.replica.appends import Appended, Appender
from odradek.replica.fetcher import SourceFetcher
from odradek.replica.isr import Isr
from odradek.replica.manager import ReplicaManager
from odradek.replica.partition import Partition
from odradek.replica.role_changes import RoleChanges
from odradek.replica.stray_replicas import StrayReplicas
from tests.simulator.simulated_log import SimulatedLog
from tests.simulator.transaction_bugs import TRANSACTION_BUGS


async def _acknowledge_at_once(self: Appended) -> None:
    """Do not wait for the in-sync replicas."""


async def _truncate_to_high_watermark(self: Any, client: Any, some: list[Any]) -> None:
    """Truncate to the high watermark, as followers did before KIP-101."""
    for one in some:
        mark = one.partition.high_watermark
        await self.cut(one, truncation.Truncation(mark, complete=True))


def _any_epoch(self: Partition, current_leader_epoch: int = -1) -> ErrorCode:
    """Serve requests with any leader epoch."""
    led = self.leader == self.broker_id
    return ErrorCode.NONE if led else ErrorCode.NOT_LEADER_OR_FOLLOWER


_assign_role = RoleChanges._assign_role


def _assign_any_role(self: RoleChanges, key: Any, state: Any, generation: int) -> ErrorCode:
    """Accept LeaderAndIsr with any leader epoch."""
    partition = self._hosted.partitions.get(key)
    if partition is not None:
        partition.leader_epoch = -1
    return _assign_role(self, key, state, generation)


def _obey(self: RoleChanges, epoch: int) -> bool:
    """Accept requests of any controller epoch."""
    return True


def _count_unconfirmed(self: Isr) -> None:
    """Use an ISR that ZooKeeper has not confirmed."""
    wanted = self.committed if self.pending is None else self.pending
    object.__setattr__(self, "maximal", frozenset(wanted))


def _hear(self: ControllerLink, controller_epoch: int, connection_id: int) -> bool:
    """Accept late requests of a connection that the controller gave up."""
    return True


def _join_anywhere(
    now: Isr, replica: int, replicas: Any, end_offset: int, mark: int, epoch_start: int
) -> bool:
    """Add a follower to the ISR before it has all committed records."""
    return now.pending is None and replica not in now.committed and replica in replicas


def _always_certain(self: ReplicaManager, partition: Partition, since_ms: int = 0) -> bool:
    """Lead until the next LeaderAndIsr, also after the session may have expired."""
    return True


async def _flush_nothing(self: Any, some: Any) -> None:
    """Do not flush what flush.messages requires."""


_lead = Partition.lead


def _lead_without_followers(self: Partition, state: Any) -> None:
    """Take a leadership by half if its epoch cannot be written: without its followers."""
    try:
        _lead(self, state)
    except KafkaError:
        self._take(state)
        self.followers = {}


async def _flush_no_copy(self: SourceFetcher, some: list[Any]) -> list[Any]:
    """Report log ends that flush.messages requires to be on the disk."""
    return some


_flush_where_owed = SourceFetcher._flush_where_owed


async def _flush_if_possible(self: SourceFetcher, some: list[Any]) -> list[Any]:
    """Report log ends also where the flush failed."""
    await _flush_where_owed(self, some)
    return some


def _leave_all(self: StrayReplicas, request: Any) -> None:
    """Keep stray replicas that moved away while this broker was down, as Kafka does."""


def _stay_in_the_epoch(replicas: Any, state: Any, available: Any, unclean: bool) -> Any:
    """Let a leader that restarted unseen go on in its leader epoch, as Kafka does."""
    return election.choose_available(replicas, state, available, unclean)


def _judge_by_id(
    kept: TopicIdentity | None, present: TopicIdentity, *, in_sync: bool
) -> topic_identities.Verdict:
    """Take a topic that got another id for another topic."""
    same = kept is None or kept.topic_id == present.topic_id
    return topic_identities.Verdict.ADOPT if same else topic_identities.Verdict.DELETE


BUGS: dict[str, list[tuple[object, str, Any]]] = {
    "acknowledges before replication": [(Appended, "acknowledged", _acknowledge_at_once)],
    "truncates to the high watermark": [(LeaderAgreement, "truncate", _truncate_to_high_watermark)],
    "ignores leader epochs": [
        (Partition, "check_leader", _any_epoch),
        (RoleChanges, "_assign_role", _assign_any_role),
    ],
    "obeys deposed controllers": [(RoleChanges, "accept_controller", _obey)],
    "hears what a controller said before": [(ControllerLink, "is_current", _hear)],
    "counts an unconfirmed in-sync set": [(Isr, "__post_init__", _count_unconfirmed)],
    "lets followers in too early": [(isr, "may_join", _join_anywhere)],
    "forgets to fsync": [
        (Appender, "_flush_where_owed", _flush_nothing),
        (SourceFetcher, "_flush_where_owed", _flush_no_copy),
        (SimulatedLog, "flush_required", False),
    ],
    "never doubts its leadership": [
        (ReplicaManager, "leadership_confirmed", _always_certain),
        (ReplicaManager, "_end_offset_confirmed_since", _always_certain),
    ],
    "leads by half without descriptors": [(Partition, "lead", _lead_without_followers)],
    "reports what it failed to flush": [(SourceFetcher, "_flush_where_owed", _flush_if_possible)],
    "takes a topic with another id for another topic": [(topic_identities, "judge", _judge_by_id)],
    "leaves what moved away on the disk": [(StrayReplicas, "look_for", _leave_all)],
    "goes on in the epoch of before an outage": [
        (election, "choose_after_restart", _stay_in_the_epoch)
    ],
    **TRANSACTION_BUGS,
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Run the real code with one bug."""
    before = []
    for owner, attribute, wrong in BUGS[name]:
        before.append((owner, attribute, vars(owner)[attribute]))
        setattr(owner, attribute, wrong)
    try:
        yield
    finally:
        for owner, attribute, right in before:
            setattr(owner, attribute, right)
