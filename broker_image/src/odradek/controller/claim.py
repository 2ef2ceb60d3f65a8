"""The race for controller in ZooKeeper: look, claim, yield (rows C1, Z4, Z5).

Taking office is one transaction: it creates the ephemeral /controller and bumps /controller_epoch
on the version that was read. So there is one controller an epoch, and the znode version that the
bump gave fences all that this controller writes later.
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
class Office:
    """A term of office; `fence` is the version of /controller_epoch that belongs to it.

    `former` is the zxid at which the term before this one began.
    """

    epoch: ControllerEpoch
    fence: int
    former: int = 0


async def find_controller(session: Session, watch: Watch) -> tuple[BrokerId, bool] | None:
    """Return who is controller and whether this session claimed it; None where nobody did."""
    path = znodes.CONTROLLER_PATH
    stat = await session.exists(path, watch)
    if stat is None:
        return None
    try:
        data, stat = await session.get(path)
    except NoNodeError:
        return None  # gone since; the watch fires
    try:
        broker_id = znodes.decode_controller(path, data).broker_id
    except ZnodeError:
        logger.exception("cannot tell who is controller")
        broker_id = BrokerId(-1)
    return broker_id, stat.owner == session.session_id


async def claim(session: Session, broker_id: BrokerId, now_ms: int) -> Office | None:
    """Take office: create /controller and bump /controller_epoch in one transaction.

    Returns None where somebody else was faster. Raises ConnectionLoss where the outcome is unknown.
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
    return Office(epoch, written.version, stat.mzxid)


async def yield_office(session: Session) -> None:
    """Remove /controller if it is this session's."""
    try:
        stat = await session.exists(znodes.CONTROLLER_PATH)
        if stat is not None and stat.owner == session.session_id:
            await session.delete(znodes.CONTROLLER_PATH, stat.version)
    except (NoNodeError, BadVersionError, ConnectionLoss):
        pass  # gone already, or looked at again when the connection is back
