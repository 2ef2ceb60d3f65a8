"""Leaders inside a step: ask a rule of `election` what should stand; write it where it differs.

Leaders are never set directly. A state is written on the version that it was decided on, and what
ZooKeeper then says comes back as `StatesWritten`.
"""

from collections.abc import Iterable

from odradek.controller import election
from odradek.controller.context import Draft
from odradek.controller.election import Cause
from odradek.controller.events import Leadership
from odradek.values import TopicPartition


def examine_all(
    draft: Draft, partitions: Iterable[TopicPartition], cause: Cause = Cause.AVAILABILITY
) -> None:
    """Examine several partitions."""
    for partition in partitions:
        examine(draft, partition, cause)


def examine(draft: Draft, partition: TopicPartition, cause: Cause) -> None:
    """Write the state that should stand, if it is another than what stands."""
    if draft.is_deleted(partition):
        return
    replicas, available = draft.holders(partition), draft.available(partition)
    leadership = draft.leaderships.get(partition)
    if leadership is None:
        first = election.choose_first(replicas, available)
        if first is not None:
            draft.create_state(partition, draft.next_state(None, first.leader, first.isr))
        return
    unclean = draft.allows_unclean(partition)
    choice = election.choose(cause, replicas, leadership.state, available, unclean)
    if choice is not None:
        wanted = draft.next_state(leadership.state, choice.leader, choice.isr)
        draft.update_state(partition, Leadership(wanted, leadership.zk_version), cause)
