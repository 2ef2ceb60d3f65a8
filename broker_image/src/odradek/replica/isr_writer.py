"""Writes changed in-sync sets to ZooKeeper.

The `state` znode is set only if it still has the version that the leader knows (Z2), so a deposed
leader changes nothing. After a lost connection the outcome of a write is unknown: the leader works
with the larger set until it has read the znode again. `isr_notices` announces changed partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kazoo.exceptions import BadVersionError, KazooException, NoNodeError

from odradek.quarantine import Quarantines, Work
from odradek.replica.hosted import HostedPartitions
from odradek.replica.isr_notices import IsrNotices
from odradek.replica.partition import IsrChange
from odradek.replica.registrations import FollowerRegistrations
from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch
from odradek.zk import znodes

if TYPE_CHECKING:
    from odradek.zk.session import Session

RETRY_S = 0.5
CONCURRENT_WRITES = 32

logger = logging.getLogger(__name__)


class IsrWriter:
    """Writes proposed changes and settles them with their partitions."""

    def __init__(
        self,
        session: Session,
        hosted: HostedPartitions,
        registrations: FollowerRegistrations,
        clock_ms: Callable[[], int],
        quarantines: Quarantines,
    ) -> None:
        self._session = session
        self._hosted = hosted
        self._registrations = registrations
        self._quarantines = quarantines
        self._notices = IsrNotices(session, clock_ms)
        # Bounded by the partitions: each has at most one pending change.
        self._proposed: asyncio.Queue[IsrChange] = asyncio.Queue()
        # Changes that ZooKeeper may hold, because their outcome is unknown.
        self._tried: set[IsrChange] = set()
        self.shrinks = 0
        self.expands = 0

    def submit(self, change: IsrChange) -> None:
        """Queue a change, which its partition holds as pending."""
        self._proposed.put_nowait(change)

    async def run(self) -> None:
        """Write changes and notifications until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONCURRENT_WRITES):
                tasks.create_task(self._write_proposed())
            tasks.create_task(
                self._quarantines.keep_running(Work.ISR_NOTICE, "in-sync sets", self._notices.run)
            )

    async def _write_proposed(self) -> None:
        while True:
            change = await self._proposed.get()
            try:
                await self._settle(change)
            except Exception as error:
                # It stays pending, so its partition counts on both sets until then.
                pause_s = self._quarantines.put(Work.ISR_WRITE, change.key, error)
                asyncio.get_running_loop().call_later(pause_s, self.submit, change)
            else:
                self._quarantines.release(Work.ISR_WRITE, change.key)

    async def _settle(self, change: IsrChange) -> None:
        key = change.key
        path = znodes.state_path(key.topic, key.partition)
        state = znodes.PartitionState(
            leader=BrokerId(change.leader),
            leader_epoch=LeaderEpoch(change.leader_epoch),
            isr=tuple(map(BrokerId, change.isr)),
            controller_epoch=ControllerEpoch(change.controller_epoch),
        )
        while self._is_expected(change):
            try:
                if change not in self._tried and not await self._is_current(change):
                    self._withdraw(change)
                    return
                self._tried.add(change)
                version = await self._write(path, state, change.zk_version)
            except KazooException as failure:
                logger.warning(
                    "%s: failed to write ISR %s of leader epoch %d: %r; retrying",
                    key,
                    change.isr,
                    change.leader_epoch,
                    failure,
                )
                await asyncio.sleep(RETRY_S)
                continue
            self._finish(change, version)
            self._tried.discard(change)
            if version is not None and change.joins is not None:
                await self._remove_former_life(change)
            return
        self._tried.discard(change)

    async def _is_current(self, change: IsrChange) -> bool:
        """Return whether the replica that joins is still registered as it was."""
        return change.joins is None or await self._registrations.is_current(change.joins)

    def _withdraw(self, change: IsrChange) -> None:
        logger.info(
            "%s: not adding a replica to ISR %s: it registered anew; waiting for its next fetch",
            change.key,
            change.previous,
        )
        partition = self._hosted.partitions.get(change.key)
        if partition is not None:
            partition.withdraw(change)

    async def _remove_former_life(self, change: IsrChange) -> None:
        """Remove a replica again that registered anew while its joining was written."""
        assert change.joins is not None
        joined = change.joins.broker_id
        while True:
            partition = self._hosted.partitions.get(change.key)
            if (
                partition is None
                or not partition.is_leader
                or partition.leader_epoch != change.leader_epoch
                or joined not in partition.isr.maximal
            ):
                return
            try:
                if await self._is_current(change):
                    return
                removal = partition.propose_removal(joined)
                if removal is not None:
                    self.submit(removal)
                    return
            except Exception as failure:
                logger.warning("%s: failed to check who joined: %r; retrying", change.key, failure)
            await asyncio.sleep(RETRY_S)

    def _is_expected(self, change: IsrChange) -> bool:
        partition = self._hosted.partitions.get(change.key)
        return partition is not None and partition.expects(change)

    async def _write(
        self, path: str, state: znodes.PartitionState, known_version: int
    ) -> int | None:
        """Return the znode's version with `state` in it, None if it surely holds something else."""
        try:
            stat = await self._session.set(path, znodes.encode_state(state), known_version)
        except NoNodeError:
            return None
        except BadVersionError:
            # Also after a write of ours whose answer was lost.
            data, stat = await self._session.get(path)
            ours = stat.version == known_version + 1 and data == znodes.encode_state(state)
            return int(stat.version) if ours else None
        return int(stat.version)

    def _finish(self, change: IsrChange, version: int | None) -> None:
        partition = self._hosted.partitions.get(change.key)
        if partition is None or not partition.expects(change):
            return
        if version is None:
            # An earlier attempt whose answer was lost may have been written, and a newer state may
            # build on it: the larger set counts until the controller sends the present one.
            logger.info(
                "%s: failed to write ISR %s of leader epoch %d: the znode is newer than version %d",
                change.key,
                change.isr,
                change.leader_epoch,
                change.zk_version,
            )
            return
        grew = len(change.isr) > len(change.previous)
        self.expands += grew
        self.shrinks += not grew
        logger.info(
            "%s: ISR %s -> %s in leader epoch %d",
            change.key,
            change.previous,
            change.isr,
            change.leader_epoch,
        )
        if partition.confirm(change, version):
            self._hosted.wake_high_watermark(change.key)
        self._hosted.wake_low_watermark(change.key)
        self._hosted.sessions.changed(change.key, wakes=False)
        self._notices.add(change.key)
