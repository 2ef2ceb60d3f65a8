"""The parts of a broker that serves, and how they are built from what it has before."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from random import Random

from odradek.clock import wall_ms
from odradek.config import BrokerConfig
from odradek.controller.loop import Controller
from odradek.coordination.partitioning import PartitionCount
from odradek.group.coordinator import GroupCoordinator
from odradek.handlers.context import Broker
from odradek.handlers.conversion_memory import ConversionMemory
from odradek.handlers.dispatch import Dispatcher
from odradek.log.manager import LogManager
from odradek.metrics.broker_metrics import BrokerMetrics
from odradek.net.broker_addresses import BrokerAddresses
from odradek.net.connection_quotas import UNLIMITED_RATE, ConnectionQuotas
from odradek.net.listener import Listener
from odradek.quarantine import Quarantines
from odradek.replica.manager import ReplicaManager
from odradek.replica.metadata import MetadataCache
from odradek.security.authorizer import Authorizer
from odradek.security.credentials import ScramCredentials
from odradek.security.listeners import BrokerSecurity
from odradek.server.dynamic_settings import DynamicSettings, SettingChanges
from odradek.server.failed_directories import FailedDirectories
from odradek.server.peers import Peers
from odradek.transaction.coordinator import TransactionCoordinator
from odradek.transaction.markers import ClusterLeaders
from odradek.transaction.verifier import TransactionVerifier
from odradek.values import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, BrokerId
from odradek.zk import znodes
from odradek.zk.producer_ids import ProducerIdManager
from odradek.zk.registration import Registration
from odradek.zk.session import Session


@dataclass(frozen=True, slots=True)
class Foundation:
    """What a broker has before it can serve: settings, logs, and its ways to others."""

    config: BrokerConfig
    cluster_id: str
    session: Session
    quarantines: Quarantines
    metrics: BrokerMetrics
    metadata: MetadataCache
    settings: DynamicSettings
    logs: LogManager
    failed_directories: FailedDirectories
    security: BrokerSecurity
    credentials: ScramCredentials
    # None: everybody may do everything.
    authorizer: Authorizer | None
    quotas: ConnectionQuotas
    peers: Peers
    broker_addresses: BrokerAddresses


@dataclass(frozen=True, slots=True)
class Parts:
    """What serves requests, by listener, and what it works with."""

    replicas: ReplicaManager
    registration: Registration
    controller: Controller
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verifier: TransactionVerifier
    listeners: dict[str, Listener]


def build(base: Foundation) -> Parts:
    """Build the parts, each of which hears of the changes that concern it. Nothing runs yet."""
    listeners: dict[str, Listener] = {}
    replicas = ReplicaManager(
        base.settings.effective,
        base.logs,
        base.session,
        base.metadata,
        base.peers.connect,
        base.settings.configs,
        quarantines=base.quarantines,
        on_replica_failed=base.failed_directories.announce,
    )
    registration = Registration(
        base.session, partial(_registration_now, base.config, listeners), base.quarantines
    )
    controller = Controller(
        base.settings.effective,
        base.session,
        partial(base.peers.connect_to, purpose="controller"),
        registration,
        quarantines=base.quarantines,
    )
    _connect_changes(base, replicas, registration, controller)
    groups = GroupCoordinator(
        base.config,
        replicas,
        PartitionCount(base.session, OFFSETS_TOPIC),
        replicas.role_confirmed,
        quarantines=base.quarantines,
    )
    producer_ids = ProducerIdManager(base.session, base.config.broker_id)
    leaders = ClusterLeaders(base.metadata, base.session)
    transactions = TransactionCoordinator(
        base.config,
        replicas,
        PartitionCount(base.session, TRANSACTIONS_TOPIC),
        producer_ids,
        leaders,
        partial(base.peers.connect, purpose="transactions", reuse_frames=False),
        replicas.end_offset_confirmed,
        replicas.confirm_end_offset,
        base.quarantines,
    )
    verifier = TransactionVerifier(
        base.config.broker_id,
        transactions,
        leaders,
        partial(base.peers.connect, purpose="verification", reuse_frames=False),
        transactions.spawn,
    )
    parts = Parts(replicas, registration, controller, groups, transactions, verifier, listeners)
    _add_listeners(base, _broker(base, parts, producer_ids), listeners)
    _watch(base, parts)
    return parts


def _connect_changes(
    base: Foundation, replicas: ReplicaManager, registration: Registration, controller: Controller
) -> None:
    """Read what may have changed after each registration, and hand changes on."""
    settings, credentials = base.settings, base.credentials
    registration.on_registered(settings.configs.load)
    registration.on_registered(settings.quota_store.load)
    registration.on_registered(credentials.forget_all)
    settings.configs.on_user_change(credentials.forget)
    changes = SettingChanges(base.logs, replicas, controller, base.quotas)
    settings.configs.on_change(changes.of_topics)
    settings.configs.on_broker_change(changes.of_broker)


def _broker(base: Foundation, parts: Parts, producer_ids: ProducerIdManager) -> Broker:
    """Return what request handlers use."""
    config = base.config
    return Broker(
        config=config,
        cluster_id=base.cluster_id,
        replicas=parts.replicas,
        metadata=base.metadata,
        session=base.session,
        controller=parts.controller,
        groups=parts.groups,
        registration=parts.registration,
        transactions=parts.transactions,
        verifier=parts.verifier,
        producer_ids=producer_ids,
        metrics=base.metrics.counters,
        random=Random(),  # noqa: S311 (spreads replicas, no secrets)
        authorizer=base.authorizer,
        answers=base.quotas.answers,
        conversions=ConversionMemory(config.conversion_max_bytes),
        follower_conversions=ConversionMemory(config.conversion_max_bytes),
        quotas=base.settings.client_quotas,
    )


def _add_listeners(base: Foundation, broker: Broker, listeners: dict[str, Listener]) -> None:
    config = base.config
    shared = len(config.listeners) == 1
    for endpoint in config.listeners:
        is_inter_broker = endpoint.name == config.inter_broker_listener_name
        listeners[endpoint.name] = Listener(
            endpoint.host,
            endpoint.port,
            base.quotas,
            Dispatcher(broker, endpoint.name).dispatch,
            # Clients must not block connections between brokers.
            protected=is_inter_broker and not shared,
            is_broker=base.broker_addresses.__contains__ if shared else None,
            quarantines=base.quarantines,
            secure=partial(base.security.transport, endpoint.name),
            guard=base.security.guard(endpoint.name),
            creation_rate=config.listener_creation_rates.get(endpoint.name, UNLIMITED_RATE),
            name=endpoint.name,
        )


def _watch(base: Foundation, parts: Parts) -> None:
    """Let the metrics read the parts' state at each scrape."""
    base.metrics.watch_security(base.security)
    base.metrics.watch(
        {
            "broker_id": str(base.config.broker_id),
            "cluster_id": base.cluster_id,
            "version": version("odradek"),
        },
        parts.replicas,
        parts.controller,
        parts.groups,
        parts.transactions,
        parts.listeners,
        base.quotas,
        base.authorizer,
        base.settings.client_quotas,
    )


def _registration_now(
    config: BrokerConfig, listeners: dict[str, Listener]
) -> znodes.BrokerRegistration:
    """Return the present registration payload, with the bound port for port 0."""
    return znodes.BrokerRegistration(
        broker_id=BrokerId(config.broker_id),
        endpoints=tuple(
            znodes.BrokerEndpoint(
                one.name,
                one.host or os.uname().nodename,
                one.port or listeners[one.name].port,
                one.protocol,
            )
            for one in config.advertised_listeners
        ),
        rack=config.broker_rack,
        timestamp_ms=wall_ms(),
    )
