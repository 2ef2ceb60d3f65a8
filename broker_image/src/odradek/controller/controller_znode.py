"""The controller's znodes: read /controller, elect this broker, resign (rows C1, Z4, Z5).

An election is one transaction: it creates the ephemeral /controller and increments
/controller_epoch at the version that was read. So each controller epoch has one controller, and
the new version of /controller_epoch fences everything that this controller writes later.
"""

import contextlib
import logging
from dataclasses import dataclass

from odradek.values import BrokerId, ControllerEpoch
from odradek.zk import znodes
from odradek.zk.operations import Create, SetData, TransactionFailedError
from odradek.zk.session import (
    BadVersionError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    Session,
    Watch,
)
from odradek.zk.znodes import ControllerClaim, ZnodeError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerLease:
    """The result of a won election.

    `epoch_zk_version` is the version of /controller_epoch that fences this controller's writes.
    `previous_election_zxid` is the zxid of the election before this one.
    """

    epoch: ControllerEpoch
    epoch_zk_version: int
    previous_election_zxid: int = 0


async def find_controller(session: Session, watch: Watch) -> tuple[BrokerId, bool] | None:
    """Return the controller and whether this session elected it; None if there is none."""
    path = znodes.CONTROLLER_PATH
    stat = await session.exists(path, watch)
    if stat is None:
        return None
    try:
        data, stat = await session.get(path)
    except NoNodeError:
        return None  # deleted since; the watch fires
    try:
        broker_id = znodes.decode_controller(path, data).broker_id
    except ZnodeError:
        logger.exception("failed to read who is controller")
        broker_id = BrokerId(-1)
    return broker_id, stat.owner == session.session_id


async def elect(session: Session, broker_id: BrokerId, now_ms: int) -> ControllerLease | None:
    """Create /controller and increment /controller_epoch in one transaction.

    Return None if another broker was faster. Raise ConnectionLoss if the outcome is unknown.
    """
    path = znodes.CONTROLLER_EPOCH_PATH
    try:
        data, stat = await session.get(path)
    except NoNodeError:
        with contextlib.suppress(NodeExistsError):
            await session.create(path, znodes.encode_controller_epoch(0))
        data, stat = await session.get(path)
    epoch = ControllerEpoch(znodes.decode_controller_epoch(path, data) + 1)
    try:
        _, written = await session.multi(
            [
                Create(
                    znodes.CONTROLLER_PATH,
                    znodes.encode_controller(ControllerClaim(broker_id, now_ms)),
                    ephemeral=True,
                ),
                SetData(path, znodes.encode_controller_epoch(epoch), stat.version),
            ]
        )
    except TransactionFailedError as failure:
        if isinstance(failure.error, NodeExistsError | BadVersionError):
            return None
        raise
    return ControllerLease(epoch, written.version, stat.mzxid)


async def resign(session: Session) -> None:
    """Delete /controller if this session created it."""
    try:
        stat = await session.exists(znodes.CONTROLLER_PATH)
        if stat is not None and stat.owner == session.session_id:
            await session.delete(znodes.CONTROLLER_PATH, stat.version)
    except (NoNodeError, BadVersionError, ConnectionLoss):
        pass  # deleted already, or read again after the reconnect
