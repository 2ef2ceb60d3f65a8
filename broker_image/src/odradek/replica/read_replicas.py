"""Which replica a consumer reads (KIP-392): the rule of Kafka's RackAwareReplicaSelector; pure.

As in Kafka, that is the leader if it is in the consumer's rack or if no replica there has its
offset; else the replica there that is most caught up. Only replicas that are in sync count, as in
Kafka since 3.4 (KAFKA-14372): another one may be far behind.
"""

from __future__ import annotations

from collections.abc import Mapping

from odradek.replica import isr as rules
from odradek.replica.fetch_specs import NO_PREFERENCE, ConsumerLocation
from odradek.replica.metadata import BrokerInfo
from odradek.replica.partition import Partition


def preferred(
    partition: Partition,
    offset: int,
    location: ConsumerLocation,
    brokers: Mapping[int, BrokerInfo],
) -> int:
    """Return the broker that a consumer at `offset` is to fetch from, NO_PREFERENCE for the leader.

    `partition` is the leader's, and `brokers` are those that live.
    """

    def is_near(broker_id: int) -> bool:
        broker = brokers.get(broker_id)
        return (
            broker is not None
            and broker.rack == location.rack
            and location.listener in broker.endpoints
        )

    if is_near(partition.broker_id):
        return NO_PREFERENCE
    near = [
        (progress.end_offset, rules.caught_up_ms(progress), replica)
        for replica, progress in partition.followers.items()
        if replica in partition.isr.committed
        and max(progress.start_offset, 0) <= offset <= progress.end_offset
        and is_near(replica)
    ]
    return max(near)[-1] if near else NO_PREFERENCE
