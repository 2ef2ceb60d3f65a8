"""Requests from the controller, as a broker's handlers receive them."""

from __future__ import annotations

from odradek.protocol.messages.control import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
)


def update(
    *states: UpdateMetadataPartitionState, brokers: tuple[int, ...] = (1, 2), epoch: int = 1
) -> UpdateMetadataRequest:
    """Return an UpdateMetadata of broker 1. Broker N has port 9000 + N; 2 has INTERNAL too."""
    return UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=epoch,
        ungrouped_partition_states=list(states),
        live_brokers=[
            UpdateMetadataBroker(
                id=number,
                endpoints=[
                    UpdateMetadataEndpoint(
                        port=9000 + number,
                        host=f"host-{number}",
                        listener=listener,
                        security_protocol=0,
                    )
                    for listener in (("PLAINTEXT", "INTERNAL") if number == 2 else ("PLAINTEXT",))
                ],
            )
            for number in brokers
        ],
    )


def state(
    topic: str = "orders", index: int = 0, leader: int = 1, replicas: tuple[int, ...] = (1, 2)
) -> UpdateMetadataPartitionState:
    """Return one partition's state in UpdateMetadata."""
    return UpdateMetadataPartitionState(
        topic_name=topic,
        partition_index=index,
        controller_epoch=1,
        leader=leader,
        leader_epoch=3,
        isr=list(replicas),
        zk_version=0,
        replicas=list(replicas),
    )
