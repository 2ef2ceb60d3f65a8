"""Topic configs: the broker's defaults overridden by the entries in `/config/topics/T` (Z11).

The defaults themselves can change at run time, see `dynamic_config`. All entries are read at the
start and after a lost session; in between, a notification under `/config/changes` names what
changed. A changed entry applies at once, also to open logs. Invalid entries are logged and ignored,
so that one bad value does not make a topic unusable. Of settings of the broker that contradict each
other, those of the upper layer are ignored. Limits for hosts that cannot be looked up leave the
former ones in force, and are tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from odradek import dynamic_config, topic_config
from odradek.config import BrokerConfig
from odradek.dynamic_config import CLUSTER_DEFAULT, PER_IP_OVERRIDES, LayeredConfig
from odradek.net import addresses
from odradek.properties import INT_MAX, ConfigError, numbers_by_host
from odradek.quarantine import Quarantines, Work
from odradek.topic_config import TopicConfig
from odradek.zk import znodes
from odradek.zk.changes import ConfigChanges
from odradek.zk.session import Session

LOOK_UP_AGAIN_S = 60.0
LOWERED = "max.connections=%d is lowered to %d, half of the descriptors"

logger = logging.getLogger(__name__)


class TopicConfigs:
    """Call it with the name of a topic to get its settings; from any thread.

    The file descriptors allow `most_connections`.
    """

    def __init__(
        self,
        config: BrokerConfig,
        session: Session,
        quarantines: Quarantines | None = None,
        most_connections: int = INT_MAX,
    ) -> None:
        self._layers = LayeredConfig(config, config, most_connections=most_connections)
        self._session = session
        self._known: dict[str, TopicConfig] = {}
        self._entries: dict[str, Mapping[str, str]] = {}
        self._defaults = topic_config.resolve_topic(config, {})
        self._apply: Callable[[Mapping[str, TopicConfig]], None] = lambda changed: None
        self._apply_to_broker: Callable[[BrokerConfig], Awaitable[None]] | None = None
        self._apply_to_client: Callable[[str, str], Awaitable[None]] | None = None
        self._forget_user: Callable[[str], None] = lambda name: None
        self._applied = config
        self._reading_broker = asyncio.Lock()
        self._quarantines = quarantines or Quarantines()
        self._changes = ConfigChanges(session, self._changed, quarantines=self._quarantines)
        self._retry: asyncio.TimerHandle | None = None
        self._retrying: asyncio.Task[None] | None = None

    def __call__(self, topic: str) -> TopicConfig:
        """Return the present settings; the broker's defaults for a topic without entries."""
        return self._known.get(topic, self._defaults)

    @property
    def broker(self) -> LayeredConfig:
        """Return the present settings of the broker."""
        return self._layers

    def on_change(self, apply: Callable[[Mapping[str, TopicConfig]], None]) -> None:
        """Call `apply` with the topics whose settings changed, all at once.

        One changed default can change thousands of topics.
        """
        self._apply = apply

    def on_broker_change(self, apply: Callable[[BrokerConfig], Awaitable[None]]) -> None:
        """Call `apply` with the settings of the broker after each change of them."""
        self._apply_to_broker = apply
        self._applied = self._layers.effective

    def on_client_change(self, apply: Callable[[str, str], Awaitable[None]]) -> None:
        """Call `apply` with the type and name of each user and client id whose configs changed."""
        self._apply_to_client = apply

    def on_user_change(self, forget: Callable[[str], None]) -> None:
        """Call `forget` with the name under /config/users of each user whose entries changed."""
        self._forget_user = forget

    async def start(self) -> None:
        """Watch, then read every topic, so that no change is missed."""
        await self._changes.start()
        await self.load()

    async def load(self) -> None:
        """Read every entry; also after a lost session, whose notifications may be gone."""
        await self.read_broker()
        topics = await self._session.children(f"{znodes.CONFIG_PATH}/topics")
        await self.read(topics)

    async def read(self, topics: Iterable[str]) -> None:
        """Read the entries of topics, also of those that are about to get a log here.

        Known entries may be of a deleted topic of the same name: there is no notification of
        created or deleted topics.
        """
        paths = {znodes.topic_config_path(topic): topic for topic in topics}
        found = await self._session.get_all(paths)
        for path, topic in paths.items():
            data = found[path][0] if path in found else None
            self._entries[topic] = sound_entries(path, data, topic_config.check_topic_entries)
        self._take(paths.values())

    def forget(self, topics: Iterable[str]) -> None:
        """Drop the settings of topics that have no log here any more."""
        for topic in topics:
            self._entries.pop(topic, None)
            self._known.pop(topic, None)

    async def read_broker(self) -> None:
        """Read the dynamic settings of the broker and apply them to every topic.

        One call after the other: what was read first must not be applied last. Settings that could
        not be applied are applied by the next call.
        """
        async with self._reading_broker:
            await self._read_broker()

    async def _read_broker(self) -> None:
        static = self._layers.static
        names = (CLUSTER_DEFAULT, str(static.broker_id))
        paths = [znodes.broker_config_path(name) for name in names]
        found = await self._session.get_all(paths)
        cluster, own = (
            sound_entries(path, found[path][0] if path in found else None, dynamic_config.check)
            for path in paths
        )
        known = [
            await _keep_hosts_known(path, entries, former)
            for path, entries, former in (
                (paths[0], cluster, self._layers.cluster),
                (paths[1], own, self._layers.own),
            )
        ]
        self._look_up_later(needed=not all(known))
        self._layers = self._layer(cluster, own, hosts_known=all(known))
        self._defaults = topic_config.resolve_topic(self._layers.effective, {})
        self._take(self._entries)
        effective = self._layers.effective
        if self._apply_to_broker is not None and effective != self._applied:
            await self._apply_to_broker(effective)
            self._applied = effective

    def _look_up_later(self, *, needed: bool) -> None:
        """Read the settings of the broker again after a pause, if that is needed."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if needed:
            self._retry = asyncio.get_running_loop().call_later(LOOK_UP_AGAIN_S, self._look_up)

    def _look_up(self) -> None:
        async def read() -> None:
            with self._quarantines.guard(Work.CONFIG, PER_IP_OVERRIDES):
                await self.read_broker()

        self._retrying = asyncio.get_running_loop().create_task(read())

    def _layer(
        self, cluster: dict[str, str], own: dict[str, str], *, hosts_known: bool
    ) -> LayeredConfig:
        """Layer the entries, and take out those that contradict others.

        If hosts are not known yet, what is said of all others still holds.
        """
        static, most = self._layers.static, self._layers.most_connections
        for name, entries in ((str(static.broker_id), own), (CLUSTER_DEFAULT, cluster)):
            effective = dynamic_config.layer(static, cluster, own).effective
            for names, reason in dynamic_config.conflicts(effective):
                if PER_IP_OVERRIDES in names and not hosts_known:
                    continue
                for key in entries.keys() & names:
                    _log_ignored(znodes.broker_config_path(name), key, entries.pop(key), reason)
        wanted = dynamic_config.layer(static, cluster, own).effective.max_connections
        if most < wanted < INT_MAX:
            logger.warning(LOWERED, wanted, most)
        return dynamic_config.layer(static, cluster, own, most)

    def _take(self, topics: Iterable[str]) -> None:
        # Thousands of topics have few different sets of entries, and most have none.
        resolved = {frozenset[tuple[str, str]](): self._defaults}
        settings: dict[str, TopicConfig] = {}
        for topic in topics:
            entries = self._entries[topic]
            same = frozenset(entries.items())
            if same not in resolved:
                resolved[same] = topic_config.resolve_topic(self._layers.effective, entries)
            settings[topic] = resolved[same]
        changed = {topic: one for topic, one in settings.items() if self._known.get(topic) != one}
        self._known.update(changed)
        if changed:
            self._apply(changed)

    async def run(self) -> None:
        """Follow changes until cancelled. Hosts are not looked up again after that."""
        try:
            await self._changes.run()
        finally:
            self._look_up_later(needed=False)
            if self._retrying is not None:
                self._retrying.cancel()

    async def _changed(self, entity_type: str, name: str) -> None:
        if entity_type == "topics":
            await self.read([name])
        elif entity_type == "brokers":
            await self.read_broker()
        else:
            if entity_type == "users":
                self._forget_user(name.partition("/")[0])
            if self._apply_to_client is not None:
                await self._apply_to_client(entity_type, name)


def sound_entries(
    path: str, data: bytes | None, check: Callable[[Mapping[str, str]], None]
) -> dict[str, str]:
    """Return the valid entries of a znode; log the others."""
    if data is None:
        return {}
    try:
        entries = znodes.decode_config(path, data)
    except znodes.ZnodeError as error:
        logger.error("ignoring %s: %s", path, error)
        return {}
    sound: dict[str, str] = {}
    for name, text in entries.items():
        try:
            check({name: text})
        except ConfigError as error:
            _log_ignored(path, name, text, error)
        else:
            sound[name] = text
    return sound


def _log_ignored(path: str, name: str, text: str, reason: object) -> None:
    logger.warning("ignoring an invalid entry of %s: %s=%s: %s", path, name, text, reason)


async def _keep_hosts_known(path: str, entries: dict[str, str], former: Mapping[str, str]) -> bool:
    """Replace limits for hosts that cannot be looked up by the former ones of the same znode.

    Return whether all hosts are known.
    """
    text = entries.get(PER_IP_OVERRIDES)
    if text is None or text == former.get(PER_IP_OVERRIDES):
        return True
    try:
        await addresses.numbers_by_address(numbers_by_host(text))
    except OSError as error:
        _log_ignored(path, PER_IP_OVERRIDES, entries.pop(PER_IP_OVERRIDES), error)
        if PER_IP_OVERRIDES in former:
            entries[PER_IP_OVERRIDES] = former[PER_IP_OVERRIDES]
            logger.warning("keeping %s=%s", PER_IP_OVERRIDES, former[PER_IP_OVERRIDES])
        return False
    return True
