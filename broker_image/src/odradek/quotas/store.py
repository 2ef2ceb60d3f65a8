"""Quotas in ZooKeeper: read at the start, after a lost session, and upon notices of changes.

While ZooKeeper is away the limits that were read last count. Invalid limits are logged and ignored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from odradek import slices
from odradek.quotas.client_quotas import ClientQuotas
from odradek.quotas.entities import (
    CLIENTS,
    CREATION_RATE,
    IPS,
    USERS,
    Limits,
    QuotaEntity,
    of_path,
    parse_creation_rate,
    parse_limits,
    plain_address,
)
from odradek.zk import znodes
from odradek.zk.session import NoNodeError, Session

logger = logging.getLogger(__name__)

Configs = Mapping[str, str]


def path_of(entity: QuotaEntity) -> str:
    """Return the znode with the quotas of an entity."""
    return znodes.config_path(entity.entity_type, entity.name)


async def read_all(session: Session) -> dict[QuotaEntity, Configs]:
    """Return the configs of all users, client ids and addresses that have a znode.

    Users have other configs than quotas, and may have none.
    """
    users = await _children(session, f"{znodes.CONFIG_PATH}/{USERS}")
    entities = [QuotaEntity(user) for user in users]
    for few in slices.cut(users):
        asked = [_children(session, f"{path_of(QuotaEntity(user))}/{CLIENTS}") for user in few]
        for user, found in zip(few, await asyncio.gather(*asked), strict=True):
            entities += [QuotaEntity(user, client_id) for client_id in found]
    for client_id in await _children(session, f"{znodes.CONFIG_PATH}/{CLIENTS}"):
        entities.append(QuotaEntity(client_id=client_id))
    for ip in await _children(session, f"{znodes.CONFIG_PATH}/{IPS}"):
        entities.append(QuotaEntity(ip=ip))
    configs: dict[QuotaEntity, Configs] = {}
    for some in slices.cut(entities):
        configs.update(await _read(session, some))
    return configs


async def read(session: Session, entity: QuotaEntity) -> Configs:
    """Return the configs of one entity, none if it has no znode."""
    return (await _read(session, [entity])).get(entity, {})


async def _children(session: Session, path: str) -> list[str]:
    try:
        return await session.children(path)
    except NoNodeError:
        return []


async def _read(session: Session, entities: list[QuotaEntity]) -> dict[QuotaEntity, Configs]:
    paths = {path_of(entity): entity for entity in entities}
    found = await session.get_all(paths)
    configs: dict[QuotaEntity, Configs] = {}
    for path, (data, _) in found.items():
        try:
            configs[paths[path]] = znodes.decode_config(path, data)
        except znodes.ZnodeError as error:
            logger.error("ignoring %s: %s", path, error)
    return configs


class QuotaStore:
    """Keeps the limits of a broker as ZooKeeper has them.

    `limit_addresses` is called with the creation rates of addresses, DEFAULT among them, when they
    change.
    """

    def __init__(
        self,
        session: Session,
        quotas: ClientQuotas,
        limit_addresses: Callable[[Mapping[str, int]], None],
    ) -> None:
        self._session = session
        self._quotas = quotas
        self._limit_addresses = limit_addresses
        self._rates: dict[str, int] = {}
        # What was read first must not be applied last.
        self._reading = asyncio.Lock()

    async def load(self) -> None:
        """Read all limits. Changes must be watched before."""
        async with self._reading:
            found = await read_all(self._session)
            self._quotas.replace({entity: _sound(entity, each) for entity, each in found.items()})
            self._rates = {}
            for entity, each in found.items():
                self._set_rate(entity, each)
            self._limit_addresses(dict(self._rates))

    async def changed(self, entity_type: str, name: str) -> None:
        """Read the limits of an entity that a notice names, if it is one that has quotas."""
        entity = of_path(entity_type, name)
        if entity is not None:
            async with self._reading:
                configs = await read(self._session, entity)
                if entity.ip is None:
                    self._quotas.change(entity, _sound(entity, configs))
                else:
                    self._set_rate(entity, configs)
                    self._limit_addresses(dict(self._rates))

    def _set_rate(self, entity: QuotaEntity, configs: Configs) -> None:
        """Keep the rate of an address, if the entity is one."""
        if entity.ip is None:
            return
        try:
            address = plain_address(entity.ip)
        except ValueError:
            logger.warning("ignoring %s: it is no address", path_of(entity))
            return
        self._rates.pop(address, None)
        try:
            rate = parse_creation_rate(configs)
        except ValueError:
            text = "ignoring an invalid entry of %s: %s=%s"
            logger.warning(text, path_of(entity), CREATION_RATE, configs[CREATION_RATE])
            return
        if rate is not None:
            self._rates[address] = rate


def _sound(entity: QuotaEntity, configs: Configs) -> Limits:
    limits, invalid = parse_limits(configs)
    for name in invalid:
        logger.warning(
            "ignoring an invalid entry of %s: %s=%s",
            path_of(entity),
            name,
            configs[name],
        )
    return limits
