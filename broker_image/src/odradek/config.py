"""Broker configs: Kafka's keys, defaults and bounds.

A `BrokerConfig` is read once (see `config_loading`) and never changes. Every limit of the broker
(queue lengths, sizes, waits) is a field here. Field names are Kafka's keys with underscores for
dots.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from odradek import message_format
from odradek.listener_settings import ListenerSecurity
from odradek.listeners import ListenerEndpoint
from odradek.properties import (
    INT_MAX,
    LONG_MAX,
    boolean,
    decimal,
    integer,
    key,
    non_empty,
    numbers_by_host,
    one_of,
    principals,
    retention,
    scaled,
    words,
    zookeeper_servers,
)
from odradek.values import SECURITY_PROTOCOLS
from odradek.zookeeper_settings import ZooKeeperSecurity

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
CREATION_RATE = "max.connection.creation.rate"
MOST_THREADS = 64
"""Threads of one kind, or tasks in their place, that a setting can have."""
_LEAST_BUFFER_PER_CLEANER = 1024 * 1024
CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

# The second is the name of the first before Kafka 2.4.
AUTHORIZERS = (
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
)
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def _authorizer(text: str) -> str:
    return str(one_of(*AUTHORIZERS)(text)) if text else ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """One broker's settings. Sizes in bytes, `_ms` in milliseconds, -1 for "no limit"."""

    broker_id: int = key("broker.id", -1, integer(0, INT_MAX))
    broker_rack: str | None = key("broker.rack", None, non_empty)
    listeners_text: str = key("listeners", "PLAINTEXT://:9092", non_empty)
    advertised_listeners_text: str | None = key("advertised.listeners", None, non_empty)
    listener_protocols: tuple[str, ...] = key(
        "listener.security.protocol.map",
        tuple(f"{protocol}:{protocol}" for protocol in SECURITY_PROTOCOLS),
        words(),
    )
    # The name of the protocol below if not set, which loading fills in.
    inter_broker_listener_name: str = key("inter.broker.listener.name", "PLAINTEXT", non_empty)
    security_inter_broker_protocol: str = key(
        "security.inter.broker.protocol", "PLAINTEXT", one_of(*SECURITY_PROTOCOLS)
    )
    inter_broker_protocol_version: str = key("inter.broker.protocol.version", "2.1", non_empty)
    log_dirs: tuple[str, ...] = key(
        "log.dirs",
        ("/tmp/kafka-logs",),  # noqa: S108 (Kafka's default, a data folder)
        words(),
        ("log.dir", words()),
    )
    zookeeper_connect: str = key("zookeeper.connect", "", zookeeper_servers)
    zookeeper_session_timeout_ms: int = key(
        "zookeeper.session.timeout.ms", 18_000, integer(1, INT_MAX)
    )
    zookeeper_connection_timeout_ms: int | None = key(
        "zookeeper.connection.timeout.ms", None, integer(1, INT_MAX)
    )

    # authorization
    authorizer_class_name: str = key("authorizer.class.name", "", _authorizer)
    super_users: str = key("super.users", "", principals)
    allow_everyone_if_no_acl_found: bool = key("allow.everyone.if.no.acl.found", False, boolean)

    # topics
    num_partitions: int = key("num.partitions", 1, integer(1, INT_MAX))
    default_replication_factor: int = key("default.replication.factor", 1, integer(1, 32767))
    auto_create_topics_enable: bool = key("auto.create.topics.enable", True, boolean)
    delete_topic_enable: bool = key("delete.topic.enable", True, boolean)
    min_insync_replicas: int = key("min.insync.replicas", 1, integer(1, INT_MAX))
    unclean_leader_election_enable: bool = key("unclean.leader.election.enable", False, boolean)
    compression_type: str = key("compression.type", "producer", one_of(*CODECS))
    message_max_bytes: int = key("message.max.bytes", 1_048_588, integer(0, INT_MAX))

    # connections and requests
    socket_request_max_bytes: int = key(
        "socket.request.max.bytes", 104_857_600, integer(1, INT_MAX)
    )
    # Kafka pins both to 100 KiB; -1 leaves them to Linux, which lets them grow with the distance.
    socket_send_buffer_bytes: int = key("socket.send.buffer.bytes", -1, integer(-1, INT_MAX))
    socket_receive_buffer_bytes: int = key("socket.receive.buffer.bytes", -1, integer(-1, INT_MAX))
    # `within_descriptors` lowers the defaults of both.
    max_connections: int = key("max.connections", INT_MAX, integer(0, INT_MAX))
    max_connections_per_ip: int = key("max.connections.per.ip", INT_MAX, integer(0, INT_MAX))
    max_connections_per_ip_overrides: tuple[str, ...] = key(
        "max.connections.per.ip.overrides", (), numbers_by_host
    )
    # Kafka has no limit by default. A connection takes about a quarter of a millisecond.
    max_connection_creation_rate: int = key(CREATION_RATE, 1000, integer(0, INT_MAX))
    connections_max_idle_ms: int = key("connections.max.idle.ms", 600_000, integer(-1))
    queued_max_request_bytes: int = key("queued.max.request.bytes", -1, integer(-1))
    request_timeout_ms: int = key("request.timeout.ms", 30_000, integer(0, INT_MAX))
    fetch_max_bytes: int = key("fetch.max.bytes", 57_671_680, integer(1024, INT_MAX))
    max_incremental_fetch_session_cache_slots: int = key(
        "max.incremental.fetch.session.cache.slots", 1000, integer(0)
    )

    # replication; the lag limit is the articles' (R3), which Kafka raised to 30 s in 2.5
    replica_lag_time_max_ms: int = key("replica.lag.time.max.ms", 10_000, integer(1))
    replica_lag_max_messages: int | None = key("replica.lag.max.messages", None, integer(1))
    replica_fetch_max_bytes: int = key("replica.fetch.max.bytes", 1_048_576, integer(0, INT_MAX))
    replica_fetch_response_max_bytes: int = key(
        "replica.fetch.response.max.bytes", 10_485_760, integer(0, INT_MAX)
    )
    replica_fetch_wait_max_ms: int = key("replica.fetch.wait.max.ms", 500, integer(0, INT_MAX))
    replica_fetch_min_bytes: int = key("replica.fetch.min.bytes", 1, integer(0, INT_MAX))
    replica_fetch_backoff_ms: int = key("replica.fetch.backoff.ms", 1000, integer(0, INT_MAX))
    replica_socket_timeout_ms: int = key("replica.socket.timeout.ms", 30_000, integer(1, INT_MAX))
    # None: leaders send no consumer to another replica (KIP-392).
    replica_selector_class: str | None = key(
        "replica.selector.class", None, one_of(RACK_AWARE_SELECTOR)
    )
    leader_replication_throttled_rate: int = key(
        "leader.replication.throttled.rate", LONG_MAX, integer(0)
    )
    follower_replication_throttled_rate: int = key(
        "follower.replication.throttled.rate", LONG_MAX, integer(0)
    )
    # One thread per log directory if not set, as in Kafka.
    num_replica_alter_log_dirs_threads: int | None = key(
        "num.replica.alter.log.dirs.threads", None, integer(1, INT_MAX)
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = key(
        "replica.alter.log.dirs.io.max.bytes.per.second", LONG_MAX, integer(0)
    )
    num_replica_fetchers: int = key("num.replica.fetchers", 1, integer(1, INT_MAX))
    replica_high_watermark_checkpoint_interval_ms: int = key(
        "replica.high.watermark.checkpoint.interval.ms", 5000, integer(1)
    )

    # controller
    controlled_shutdown_enable: bool = key("controlled.shutdown.enable", True, boolean)
    controlled_shutdown_max_retries: int = key(
        "controlled.shutdown.max.retries", 3, integer(0, INT_MAX)
    )
    controlled_shutdown_retry_backoff_ms: int = key(
        "controlled.shutdown.retry.backoff.ms", 5000, integer(0)
    )
    controller_socket_timeout_ms: int = key(
        "controller.socket.timeout.ms", 30_000, integer(1, INT_MAX)
    )
    auto_leader_rebalance_enable: bool = key("auto.leader.rebalance.enable", True, boolean)
    leader_imbalance_check_interval_seconds: int = key(
        "leader.imbalance.check.interval.seconds", 300, integer(1)
    )
    leader_imbalance_per_broker_percentage: int = key(
        "leader.imbalance.per.broker.percentage", 10, integer(0, 100)
    )

    # log
    log_segment_bytes: int = key("log.segment.bytes", 1_073_741_824, integer(14, INT_MAX))
    log_roll_ms: int = key(
        "log.roll.ms", 168 * HOUR_MS, integer(1), ("log.roll.hours", scaled(HOUR_MS, 1))
    )
    log_roll_jitter_ms: int = key(
        "log.roll.jitter.ms", 0, integer(0), ("log.roll.jitter.hours", scaled(HOUR_MS, 0))
    )
    log_retention_ms: int = key(
        "log.retention.ms",
        168 * HOUR_MS,
        retention(),
        ("log.retention.hours", retention(HOUR_MS)),
        ("log.retention.minutes", retention(MINUTE_MS)),
    )
    log_retention_bytes: int = key("log.retention.bytes", -1, integer())
    log_retention_check_interval_ms: int = key(
        "log.retention.check.interval.ms", 300_000, integer(1)
    )
    log_cleanup_policy: tuple[str, ...] = key(
        "log.cleanup.policy", ("delete",), words(("delete", "compact"))
    )
    log_cleaner_enable: bool = key("log.cleaner.enable", True, boolean)
    log_cleaner_threads: int = key("log.cleaner.threads", 1, integer(0, INT_MAX))
    log_cleaner_io_max_bytes_per_second: float = key(
        "log.cleaner.io.max.bytes.per.second", float("inf"), decimal(0)
    )
    log_cleaner_dedupe_buffer_size: int = key(
        "log.cleaner.dedupe.buffer.size", 134_217_728, integer(1)
    )
    # Shown and without effect: an entry of the buffer has a fixed size here.
    log_cleaner_io_buffer_load_factor: float = key(
        "log.cleaner.io.buffer.load.factor", 0.9, decimal(0)
    )
    log_cleaner_io_buffer_size: int = key("log.cleaner.io.buffer.size", 524_288, integer(0))
    log_cleaner_backoff_ms: int = key("log.cleaner.backoff.ms", 15_000, integer(0))
    log_cleaner_min_cleanable_ratio: float = key(
        "log.cleaner.min.cleanable.ratio", 0.5, decimal(0, 1)
    )
    log_cleaner_delete_retention_ms: int = key(
        "log.cleaner.delete.retention.ms", 24 * HOUR_MS, integer(0)
    )
    log_cleaner_min_compaction_lag_ms: int = key("log.cleaner.min.compaction.lag.ms", 0, integer(0))
    log_cleaner_max_compaction_lag_ms: int = key(
        "log.cleaner.max.compaction.lag.ms", LONG_MAX, integer(1)
    )
    log_index_size_max_bytes: int = key("log.index.size.max.bytes", 10_485_760, integer(4, INT_MAX))
    log_index_interval_bytes: int = key("log.index.interval.bytes", 4096, integer(0, INT_MAX))
    log_flush_interval_messages: int = key("log.flush.interval.messages", LONG_MAX, integer(1))
    log_flush_interval_ms: int | None = key(
        "log.flush.interval.ms",
        None,
        integer(0),
        ("log.flush.scheduler.interval.ms", integer(1)),
    )
    log_flush_offset_checkpoint_interval_ms: int = key(
        "log.flush.offset.checkpoint.interval.ms", 60_000, integer(0)
    )
    log_flush_start_offset_checkpoint_interval_ms: int = key(
        "log.flush.start.offset.checkpoint.interval.ms", 60_000, integer(0)
    )
    log_segment_delete_delay_ms: int = key("log.segment.delete.delay.ms", 60_000, integer(0))
    log_preallocate: bool = key("log.preallocate", False, boolean)
    log_message_format_version: str = key(
        "log.message.format.version", "2.1", message_format.version
    )
    log_message_timestamp_type: str = key(
        "log.message.timestamp.type", "CreateTime", one_of("CreateTime", "LogAppendTime")
    )
    log_message_timestamp_difference_max_ms: int = key(
        "log.message.timestamp.difference.max.ms", LONG_MAX, integer(0)
    )
    log_message_downconversion_enable: bool = key(
        "log.message.downconversion.enable", True, boolean
    )
    num_io_threads: int = key("num.io.threads", 8, integer(1, INT_MAX))
    # Shown and without effect: one event loop serves the network and most background work.
    num_network_threads: int = key("num.network.threads", 3, integer(1, INT_MAX))
    background_threads: int = key("background.threads", 10, integer(1, INT_MAX))
    num_recovery_threads_per_data_dir: int = key(
        "num.recovery.threads.per.data.dir", 1, integer(1, INT_MAX)
    )
    transactional_id_expiration_ms: int = key(
        "transactional.id.expiration.ms",
        168 * HOUR_MS,
        integer(1, INT_MAX),
    )

    # groups
    group_min_session_timeout_ms: int = key("group.min.session.timeout.ms", 6000, integer(0))
    group_max_session_timeout_ms: int = key("group.max.session.timeout.ms", 1_800_000, integer(0))
    group_initial_rebalance_delay_ms: int = key(
        "group.initial.rebalance.delay.ms", 3000, integer(0)
    )
    group_max_size: int = key("group.max.size", INT_MAX, integer(1, INT_MAX))
    offset_metadata_max_bytes: int = key("offset.metadata.max.bytes", 4096, integer(0))
    offsets_retention_minutes: int = key("offsets.retention.minutes", 10_080, integer(1))
    offsets_retention_check_interval_ms: int = key(
        "offsets.retention.check.interval.ms", 600_000, integer(1)
    )
    offsets_topic_num_partitions: int = key("offsets.topic.num.partitions", 50, integer(1))
    offsets_topic_replication_factor: int = key(
        "offsets.topic.replication.factor", 3, integer(1, 32767)
    )
    offsets_topic_segment_bytes: int = key(
        "offsets.topic.segment.bytes", 104_857_600, integer(1, INT_MAX)
    )
    offsets_load_buffer_size: int = key("offsets.load.buffer.size", 5_242_880, integer(1))

    # transactions
    transaction_max_timeout_ms: int = key(
        "transaction.max.timeout.ms", 900_000, integer(1, INT_MAX)
    )
    transaction_abort_timed_out_interval_ms: int = key(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms", 10_000, integer(1, INT_MAX)
    )
    transaction_remove_expired_interval_ms: int = key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        integer(1, INT_MAX),
    )
    transaction_partition_verification_enable: bool = key(
        "transaction.partition.verification.enable", True, boolean
    )
    transaction_state_log_num_partitions: int = key(
        "transaction.state.log.num.partitions", 50, integer(1, INT_MAX)
    )
    transaction_state_log_replication_factor: int = key(
        "transaction.state.log.replication.factor", 3, integer(1, 32767)
    )
    transaction_state_log_min_isr: int = key(
        "transaction.state.log.min.isr", 2, integer(1, INT_MAX)
    )
    transaction_state_log_segment_bytes: int = key(
        "transaction.state.log.segment.bytes", 104_857_600, integer(1, INT_MAX)
    )
    transaction_state_log_load_buffer_size: int = key(
        "transaction.state.log.load.buffer.size", 5_242_880, integer(1, INT_MAX)
    )

    # client quotas
    quota_window_num: int = key("quota.window.num", 11, integer(1, INT_MAX))
    quota_window_size_seconds: int = key("quota.window.size.seconds", 1, integer(1, INT_MAX))
    controller_quota_window_num: int = key("controller.quota.window.num", 11, integer(1, INT_MAX))
    controller_quota_window_size_seconds: int = key(
        "controller.quota.window.size.seconds", 1, integer(1, INT_MAX)
    )

    # keys of Odradek
    # The node of a broker is the host that it advertises to brokers.
    one_replica_per_node: bool = key("odradek.one.replica.per.node", False, boolean)
    metrics_host: str = key("odradek.metrics.host", "", str)
    metrics_port: int = key("odradek.metrics.port", 0, integer(0, 65535))
    # Users that no token of OAUTHBEARER may name; a * at the end is for any rest of a name.
    refused_token_principals: str = key("odradek.oauthbearer.refused.principals", "", principals)
    queued_max_response_bytes: int = key(
        "odradek.queued.max.response.bytes", 67_108_864, integer(-1)
    )
    conversion_max_bytes: int = key("odradek.conversion.max.bytes", 67_108_864, integer(-1))
    # Kafka bounds none of these. A producer id takes half a kilobyte or one, a group one, a
    # transactional id half of one.
    partition_max_producer_ids: int = key(
        "odradek.partition.max.producer.ids", 10_000, integer(1, INT_MAX)
    )
    max_groups: int = key("odradek.max.groups", 100_000, integer(1, INT_MAX))
    max_transactional_ids: int = key(
        "odradek.max.transactional.ids", 1_000_000, integer(1, INT_MAX)
    )

    # filled by `config_loading`
    listeners: tuple[ListenerEndpoint, ...] = ()
    advertised_listeners: tuple[ListenerEndpoint, ...] = ()
    # By listener, beside max.connection.creation.rate.
    listener_creation_rates: Mapping[str, int] = dataclasses.field(default_factory=dict, hash=False)
    security: Mapping[str, ListenerSecurity] = dataclasses.field(default_factory=dict, hash=False)
    zookeeper_security: ZooKeeperSecurity = dataclasses.field(default_factory=ZooKeeperSecurity)


def conflicts(config: BrokerConfig) -> Iterator[tuple[Collection[str], str]]:
    """Yield the names of settings that contradict each other, and how, as Kafka's KafkaConfig."""
    if 0 < config.queued_max_request_bytes < config.socket_request_max_bytes:
        yield (
            ("queued.max.request.bytes", "socket.request.max.bytes"),
            "queued.max.request.bytes must be larger or equal to socket.request.max.bytes",
        )
    if config.max_connections_per_ip == 0 and not config.max_connections_per_ip_overrides:
        yield (
            ("max.connections.per.ip", "max.connections.per.ip.overrides"),
            "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides "
            "property is set.",
        )
    threads = config.log_cleaner_threads
    if threads and config.log_cleaner_dedupe_buffer_size // threads <= _LEAST_BUFFER_PER_CLEANER:
        yield (
            ("log.cleaner.threads", "log.cleaner.dedupe.buffer.size"),
            "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
        )
    for name, most in (
        ("replica.socket.timeout.ms", config.replica_socket_timeout_ms),
        ("replica.lag.time.max.ms", config.replica_lag_time_max_ms),
    ):
        if config.replica_fetch_wait_max_ms > most:
            yield (
                ("replica.fetch.wait.max.ms", name),
                f"replica.fetch.wait.max.ms should always be less than or equal to {name}",
            )


def bounded_threads(setting: int) -> int:
    """Return how many threads, or tasks in their place, a setting has: it may be any number."""
    return min(setting, MOST_THREADS)


def within_descriptors(config: BrokerConfig, connections: int) -> BrokerConfig:
    """Return settings that take at most so many descriptors for connections.

    An address has half of them by default, so that none can take all.
    """
    most = min(config.max_connections, connections)
    per_ip = config.max_connections_per_ip
    if per_ip == INT_MAX > most:
        per_ip = max(1, most // 2)
    return dataclasses.replace(config, max_connections=most, max_connections_per_ip=per_ip)
