"""DescribeCluster (KIP-700): the brokers and the controller, which Metadata tells beside topics.

Everybody is told. What the sender may do to the cluster is told to those who may describe it, if
they ask.
"""

from __future__ import annotations

from odradek.handlers import authorization
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)


async def describe_cluster(
    broker: Broker, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """Return the live brokers that have the listener of the request, with their addresses there."""
    view = broker.metadata.view
    answer = DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=view.live_controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=one.broker_id, host=host, port=port, rack=one.rack)
            for one, host, port in view.on_listener(context.listener)
        ],
    )
    if request.include_cluster_authorized_operations:
        answer.cluster_authorized_operations = authorization.operations_on_cluster(broker, context)
    return answer
