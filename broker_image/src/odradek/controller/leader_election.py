"""Leader election inside a step: apply a rule of `election`, and write the state if it changes.

Leaders are never set directly. A state is written at the version that the decision is based on, and
the result comes back as `StatesWritten`.
"""

from collections.abc import Iterable

from odradek.controller import election
from odradek.controller.context import Draft
from odradek.controller.election import Cause
from odradek.controller.events import Leadership
from odradek.values import TopicPartition


def elect_all(
    draft: Draft, partitions: Iterable[TopicPartition], cause: Cause = Cause.AVAILABILITY
) -> None:
    """Elect the leaders of several partitions."""
    for partition in partitions:
        elect(draft, partition, cause)


def elect(draft: Draft, partition: TopicPartition, cause: Cause) -> None:
    """Write the state that the rule for `cause` gives, if it differs from the present one."""
    if draft.in_deleted_topic(partition):
        return
    replicas, available = draft.kept_replicas(partition), draft.available(partition)
    leadership = draft.leaderships.get(partition)
    if leadership is None:
        first = election.choose_first(replicas, available)
        if first is not None:
            state = draft.first_state(partition.topic, first.leader, first.isr)
            draft.create_state(partition, state)
        return
    unclean = draft.allows_unclean(partition)
    choice = election.choose(cause, replicas, leadership.state, available, unclean)
    if choice is not None:
        wanted = draft.next_state(leadership.state, choice.leader, choice.isr)
        draft.update_state(partition, Leadership(wanted, leadership.zk_version), cause)
