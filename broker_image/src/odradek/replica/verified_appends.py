"""Appends that wait until the coordinator has said that their transaction is ongoing (KIP-890).

A Produce that was delayed until its transaction ended would else open one that nobody ends, and
readers of committed records would stop there for ever. See `odradek.log.partition.verification`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from odradek.log.partition.verification import Verification
from odradek.protocol.errors import NO_ERROR, ErrorCode
from odradek.replica.appends import Appended, Appender, AppendOutcome, Unverified
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.log.records.batch import Origin
    from odradek.protocol.regions import Buffer

Verify: TypeAlias = Callable[
    [Mapping[TopicPartition, Verification]], Awaitable[Mapping[TopicPartition, ErrorCode]]
]
"""Asks the coordinator of one transactional id whether each partition is in the transaction: NONE,
NOT_ENOUGH_REPLICAS if that is not known, else why it is not.
"""

_REASON = {
    ErrorCode.INVALID_TXN_STATE: "the partition is not in an ongoing transaction",
    ErrorCode.NOT_ENOUGH_REPLICAS: "the coordinator of the transaction cannot be asked now",
}


class VerifyingAppender:
    """Appends of clients with a transactional id."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender

    async def begin(
        self,
        entries: Iterable[tuple[TopicPartition, Buffer]],
        acks: int,
        timeout_ms: int,
        origin: Origin,
        verify: Verify,
    ) -> Appended:
        """As `Appender.begin`; the first batches of transactions are appended once `verify` allows
        it. All of them are asked for together.
        """
        appended = await self._appender.begin(entries, acks, timeout_ms, origin)
        # Once more where the log has forgotten what was said, as in a new leader epoch.
        while unverified := _unverified(appended.outcomes):
            found = await verify({one.key: verification for _, one, verification in unverified})
            allowed: list[tuple[int, Unverified]] = []
            for number, one, verification in unverified:
                error = _settle(verification, found[one.key])
                appended.outcomes[number] = AppendOutcome(
                    one.key, error, message=_REASON.get(error)
                )
                if error is NO_ERROR:
                    allowed.append((number, one))
            again = await self._appender.begin(
                [(one.key, one.batch) for _, one in allowed], acks, timeout_ms, origin
            )
            for (number, _), outcome in zip(allowed, again.outcomes, strict=True):
                appended.outcomes[number] = outcome
            appended.add(again)
        return appended


def _unverified(
    outcomes: Iterable[AppendOutcome],
) -> list[tuple[int, Unverified, Verification]]:
    """Return what is unverified of outcomes, with their numbers."""
    return [
        (number, one, one.verification)
        for number, one in enumerate(outcomes)
        if isinstance(one, Unverified) and one.verification is not None
    ]


async def verified(unverified: Unverified, verify: Verify) -> ErrorCode:
    """Ask the coordinator about one batch; return NONE if it may be appended, else the error."""
    assert unverified.verification is not None
    found = await verify({unverified.key: unverified.verification})
    return _settle(unverified.verification, found[unverified.key])


def _settle(verification: Verification, found: ErrorCode) -> ErrorCode:
    """Note what the coordinator said; return NONE if the batch may be appended, else the error.

    What was there when a marker came is late, whatever the coordinator said: the partition may be
    in the next transaction.
    """
    if verification.ended:
        return ErrorCode.INVALID_TXN_STATE
    if found is NO_ERROR:
        verification.verified = True
    elif found is not ErrorCode.NOT_ENOUGH_REPLICAS:
        verification.refused = True
    return found
