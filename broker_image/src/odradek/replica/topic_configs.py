"""Topic configs: the broker's defaults overridden by the entries in `/config/topics/T` (Z11).

The defaults themselves can change at run time, see `dynamic_config`. All entries are read at the
start and after a lost session; in between, a notification under `/config/changes` names what
changed. A changed entry applies at once, also to open logs. Invalid entries are logged and ignored,
so that one bad value does not make a topic unusable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from odradek import config as configuration
from odradek import dynamic_config
from odradek.config import BrokerConfig, TopicConfig
from odradek.dynamic_config import CLUSTER_DEFAULT, LayeredConfig
from odradek.properties import ConfigError
from odradek.quarantine import Quarantines
from odradek.zk import znodes
from odradek.zk.changes import ConfigChanges
from odradek.zk.session import Session

logger = logging.getLogger(__name__)


class TopicConfigs:
    """Call it with the name of a topic to get its settings; from any thread."""

    def __init__(
        self, config: BrokerConfig, session: Session, quarantines: Quarantines | None = None
    ) -> None:
        self._layers = LayeredConfig(config, config)
        self._session = session
        self._known: dict[str, TopicConfig] = {}
        self._entries: dict[str, Mapping[str, str]] = {}
        self._defaults = configuration.resolve_topic(config, {})
        self._apply: Callable[[Mapping[str, TopicConfig]], None] = lambda changed: None
        self._apply_to_broker: Callable[[BrokerConfig], Awaitable[None]] | None = None
        self._applied = config
        self._reading_broker = asyncio.Lock()
        self._changes = ConfigChanges(session, self._changed, quarantines=quarantines)

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
            self._entries[topic] = sound_entries(path, data, configuration.check_topic_entries)
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
        self._layers = dynamic_config.layer(static, cluster, own)
        self._defaults = configuration.resolve_topic(self._layers.effective, {})
        self._take(self._entries)
        effective = self._layers.effective
        if self._apply_to_broker is not None and effective != self._applied:
            await self._apply_to_broker(effective)
            self._applied = effective

    def _take(self, topics: Iterable[str]) -> None:
        # Thousands of topics have few different sets of entries, and most have none.
        resolved = {frozenset[tuple[str, str]](): self._defaults}
        settings: dict[str, TopicConfig] = {}
        for topic in topics:
            entries = self._entries[topic]
            same = frozenset(entries.items())
            if same not in resolved:
                resolved[same] = configuration.resolve_topic(self._layers.effective, entries)
            settings[topic] = resolved[same]
        changed = {topic: one for topic, one in settings.items() if self._known.get(topic) != one}
        self._known.update(changed)
        if changed:
            self._apply(changed)

    async def run(self) -> None:
        """Follow changes until cancelled."""
        await self._changes.run()

    async def _changed(self, entity_type: str, name: str) -> None:
        if entity_type == "topics":
            await self.read([name])
        elif entity_type == "brokers":
            await self.read_broker()


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
            logger.warning("ignoring an invalid entry of %s: %s", path, error)
        else:
            sound[name] = text
    return sound
