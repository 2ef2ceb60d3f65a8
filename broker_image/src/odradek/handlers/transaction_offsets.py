"""TxnOffsetCommit: offsets that a group commits in a producer's transaction (KIP-98, KIP-447)."""

from __future__ import annotations

from functools import partial

from odradek import slices
from odradek.clock import wall_ms
from odradek.group.offsets import CommittedOffset
from odradek.handlers import group_offsets
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import transactions as messages

FIRST_THAT_KNOWS_LOADING = 2
"""Clients of older versions end at COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)."""


async def txn_offset_commit(
    broker: Broker, request: messages.TxnOffsetCommitRequest, context: RequestContext
) -> messages.TxnOffsetCommitResponse:
    """Store offsets that count once the transaction is committed; refuse each unknown partition by
    itself.
    """
    now_ms = wall_ms()

    def commit(partition: messages.TxnOffsetCommitRequestPartition) -> CommittedOffset:
        return CommittedOffset(
            partition.committed_offset,
            partition.committed_metadata or "",
            now_ms,
            partition.committed_leader_epoch,
        )

    commits, errors = await slices.run(
        group_offsets.commits_in_slices(broker, request.topics, commit)
    )
    if commits:
        member = (request.member_id, request.group_instance_id, request.generation_id)
        producer = (request.producer_id, request.producer_epoch)
        verify = partial(broker.verifier.verify, request.transactional_id)
        errors.update(
            await broker.groups.commits.commit_in_transaction(
                request.group_id, member, producer, commits, verify
            )
        )
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if context.version < FIRST_THAT_KNOWS_LOADING and loading in errors.values():
        later = ErrorCode.COORDINATOR_NOT_AVAILABLE
        errors = {key: later if code is loading else code for key, code in errors.items()}
    answers = await slices.run(
        group_offsets.error_per_partition(
            request.topics,
            errors,
            messages.TxnOffsetCommitResponseTopic,
            messages.TxnOffsetCommitResponsePartition,
        )
    )
    slices.discard(commits, errors)
    return messages.TxnOffsetCommitResponse(topics=answers)
