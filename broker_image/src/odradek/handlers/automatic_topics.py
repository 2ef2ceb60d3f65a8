"""Topics that are created on first use: those of coordinators, and others if it is allowed."""

from __future__ import annotations

import asyncio
import logging

from kazoo.exceptions import KazooException

from odradek import assignment
from odradek.config import BrokerConfig
from odradek.handlers import replica_lists
from odradek.handlers.context import Broker, RequestContext
from odradek.net.rare_log import RareLog
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from odradek.zk import admin
from odradek.zk.operations import TransactionFailedError
from odradek.zk.znodes import TopicAssignment

# Nobody waits for the partitions' leaders; this is the limit of the writes.
TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)
_rare_log = RareLog(logger)
_COUNTS = {
    OFFSETS_TOPIC: "offsets.topic.num.partitions",
    TRANSACTIONS_TOPIC: "transaction.state.log.num.partitions",
}
_FACTORS = {
    OFFSETS_TOPIC: "offsets.topic.replication.factor",
    TRANSACTIONS_TOPIC: (
        "transaction.state.log.replication.factor and transaction.state.log.min.isr"
    ),
}


async def create(broker: Broker, topic: str, context: RequestContext) -> ErrorCode:
    """Create a topic on first use; return the error code for the client, mostly retriable."""
    try:
        admin.check_collision(topic, broker.metadata.topics)
        brokers = assignment.forget_partial_racks(replica_lists.racks(broker))
        partitions, factor, entries = _shape(broker.config, topic)
        admin.check_partition_count(partitions)
        replicas = assignment.assign_replicas(
            brokers,
            partitions,
            factor,
            assignment.Start.draw(broker.random, len(brokers)),
            nodes=replica_lists.nodes(broker),
        )
        admin.check_topic_size(TopicAssignment(replicas))
        context.count_mutations(len(replicas))
        async with asyncio.timeout(TIMEOUT_S):
            await admin.apply_create_topic(
                broker.session, topic, TopicAssignment(replicas), entries
            )
        logger.info("created topic %s on first use, with %d partitions", topic, len(replicas))
    except KafkaError as refusal:
        if refusal.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            _warn_of_settings(topic, refusal)
            return refusal.code
    except (KazooException, TimeoutError) as failure:
        logger.warning("failed to create topic %s: %r", topic, failure)
    except TransactionFailedError as failure:
        logger.error("failed to create topic %s: %s", topic, failure)
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.LEADER_NOT_AVAILABLE


def _warn_of_settings(topic: str, refusal: KafkaError) -> None:
    """Say what to do where settings keep a topic from being made: clients only wait."""
    if refusal.code is ErrorCode.INVALID_PARTITIONS:
        # Clients make up names: each would be a kind of line of its own.
        _rare_log.log(
            logging.WARNING,
            "failed to create topic %s: %s: lower %s",
            topic,
            refusal,
            _COUNTS.get(topic, "num.partitions"),
        )
    setting = _FACTORS.get(topic)
    if setting is not None and refusal.code is ErrorCode.INVALID_REPLICATION_FACTOR:
        _rare_log.log(
            logging.WARNING,
            f"failed to create topic {topic}: {refusal}: start more brokers, or lower {setting}",
        )


def _shape(config: BrokerConfig, topic: str) -> tuple[int, int, dict[str, str]]:
    """Return partitions, replication factor and configs of a topic created on first use."""
    if topic == OFFSETS_TOPIC:
        entries = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }
        return config.offsets_topic_num_partitions, config.offsets_topic_replication_factor, entries
    if topic == TRANSACTIONS_TOPIC:
        entries = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        }
        count = config.transaction_state_log_num_partitions
        return count, config.transaction_state_log_replication_factor, entries
    return config.num_partitions, config.default_replication_factor, {}
