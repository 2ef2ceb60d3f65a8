"""The settings that a broker takes while it runs: who reads them, and whom a change concerns."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from odradek import descriptors
from odradek.config import BrokerConfig
from odradek.controller.loop import Controller
from odradek.dynamic_config import PER_IP_OVERRIDES
from odradek.log.manager import LogManager
from odradek.net.addresses import numbers_by_address
from odradek.net.connection_quotas import AddressRates, ConnectionLimits, ConnectionQuotas
from odradek.quarantine import Quarantines
from odradek.quotas.client_quotas import ClientQuotas, Windows
from odradek.quotas.rates import Window
from odradek.quotas.store import QuotaStore
from odradek.replica.manager import ReplicaManager
from odradek.replica.topic_configs import TopicConfigs
from odradek.topic_config import TopicConfig
from odradek.zk.session import Session

NEVER_IDLE_MS = 2**31 - 1

logger = logging.getLogger(__name__)


class DynamicSettings:
    """Configs of topics and of this broker, and quotas of clients and addresses, in ZooKeeper."""

    def __init__(self, config: BrokerConfig, session: Session, quarantines: Quarantines) -> None:
        self.configs = TopicConfigs(config, session, quarantines, descriptors.budget().connections)
        self.address_rates = AddressRates()
        self.client_quotas = ClientQuotas(_windows(config))
        self.quota_store = QuotaStore(session, self.client_quotas, self.address_rates.limit)
        self.configs.on_client_change(self.quota_store.changed)

    @property
    def effective(self) -> BrokerConfig:
        """The broker's config with the dynamic settings of this moment."""
        return self.configs.broker.effective

    async def start(self) -> None:
        """Read everything once, and watch for changes."""
        await self.configs.start()
        await self.quota_store.load()

    async def connection_quotas(self) -> ConnectionQuotas:
        """Return the quotas of connections. Raises OSError for a host without an address."""
        config = self.effective
        of_ip = await numbers_by_address(config.max_connections_per_ip_overrides)
        return ConnectionQuotas(_limits(config, of_ip), self.address_rates)


@dataclass(frozen=True, slots=True)
class SettingChanges:
    """Hands changed settings to the parts that keep them; the others look theirs up."""

    logs: LogManager
    replicas: ReplicaManager
    controller: Controller
    quotas: ConnectionQuotas

    def of_topics(self, changed: Mapping[str, TopicConfig]) -> None:
        """Apply the changed configs of topics."""
        self.logs.update_topic_configs(changed)
        for topic in changed:
            self.controller.topic_config_changed(topic)

    async def of_broker(self, config: BrokerConfig) -> None:
        """Apply a changed config of the broker."""
        self.logs.reconfigure(config)
        self.replicas.resize_fetchers(config.num_replica_fetchers)
        self.controller.default_unclean_changed(config.unclean_leader_election_enable)
        try:
            of_ip = await numbers_by_address(config.max_connections_per_ip_overrides)
        except OSError as error:
            logger.error("keeping the former %s: %s", PER_IP_OVERRIDES, error)
            of_ip = dict(self.quotas.limits.max_connections_of_ip)
        self.quotas.change_limits(_limits(config, of_ip))


def _windows(config: BrokerConfig) -> Windows:
    return Windows(
        Window(config.quota_window_num, config.quota_window_size_seconds * 1000),
        Window(
            config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1000
        ),
    )


def _limits(config: BrokerConfig, of_ip: Mapping[str, int]) -> ConnectionLimits:
    idle = config.connections_max_idle_ms
    return ConnectionLimits(
        max_frame_bytes=config.socket_request_max_bytes,
        max_connections=config.max_connections,
        max_connections_per_ip=config.max_connections_per_ip,
        max_idle_ms=idle if idle > 0 else NEVER_IDLE_MS,
        max_connections_of_ip=of_ip,
        max_creation_rate=config.max_connection_creation_rate,
        max_queued_bytes=config.queued_max_request_bytes,
        max_answer_bytes=config.queued_max_response_bytes,
        socket_send_bytes=config.socket_send_buffer_bytes,
        socket_receive_bytes=config.socket_receive_buffer_bytes,
    )
