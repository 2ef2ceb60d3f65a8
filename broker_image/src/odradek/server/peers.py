"""The other brokers: where they are, and connections to them on the listener between brokers."""

from __future__ import annotations

import logging

from kazoo.exceptions import KazooException

from odradek.config import BrokerConfig
from odradek.net.client import PeerClient
from odradek.replica.metadata import MetadataCache
from odradek.security.listeners import BrokerSecurity
from odradek.zk import admin
from odradek.zk.session import Session

logger = logging.getLogger(__name__)


class Peers:
    """The brokers of the cluster, as the controller told this one."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: MetadataCache,
        session: Session,
        security: BrokerSecurity,
    ) -> None:
        self._broker_id = config.broker_id
        self._listener = config.inter_broker_listener_name
        self._metadata = metadata
        self._session = session
        self._security = security

    def connect(
        self, broker_id: int, *, purpose: str = "fetcher", reuse_frames: bool = True
    ) -> PeerClient | None:
        """Return a client of a broker, None if it is not alive."""
        address = self._metadata.endpoint(broker_id, self._listener)
        if address is None:
            return None
        return self.connect_to(*address, purpose=purpose, reuse_frames=reuse_frames)

    def connect_to(
        self, host: str, port: int, *, purpose: str, reuse_frames: bool = False
    ) -> PeerClient:
        """Return a client of the broker at an address."""
        return PeerClient(
            host,
            port,
            f"broker-{self._broker_id}-{purpose}",
            security=self._security.of_peers(),
            reuse_frames=reuse_frames,
        )

    def connect_to_controller(self) -> PeerClient | None:
        """Return a client of the controller, None while none is known."""
        return self.connect(self._metadata.controller_id)

    async def hosts(self) -> set[str]:
        """Return the hosts of the live brokers."""
        if self._metadata.initialized:
            return self._metadata.hosts(self._listener)
        # The controller must get through to tell.
        try:
            registered = await admin.read_brokers(self._session)
        except KazooException as failure:
            logger.warning("failed to read the brokers' addresses: %r; retrying", failure)
            return set()
        return {
            endpoint.host
            for broker in registered.values()
            for endpoint in broker.endpoints
            if endpoint.listener == self._listener
        }
