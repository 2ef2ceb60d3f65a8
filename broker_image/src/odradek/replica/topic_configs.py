"""The settings of each topic: the broker's defaults with the topic's own entries from
`/config/topics/T` (Z11).

All entries are read at the start and after a lost session; in between a notice under
`/config/changes` names what changed. A changed entry is in force at once, also for
open logs. Entries that make no sense are logged and left out, so that one bad value does not take a
topic away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from odradek import config as configuration
from odradek.config import BrokerConfig, TopicConfig
from odradek.properties import ConfigError
from odradek.zk import znodes
from odradek.zk.changes import ConfigChanges
from odradek.zk.session import Session

logger = logging.getLogger(__name__)


class TopicConfigs:
    """Call it with a topic's name for the topic's settings; from any thread."""

    def __init__(self, config: BrokerConfig, session: Session) -> None:
        self._config = config
        self._session = session
        self._known: dict[str, TopicConfig] = {}
        self._defaults = configuration.resolve_topic(config, {})
        self._apply: Callable[[str, TopicConfig], None] = lambda topic, settings: None
        self._changes = ConfigChanges(session, self._changed)

    def __call__(self, topic: str) -> TopicConfig:
        """The settings as known now; the broker's defaults for a topic without entries."""
        return self._known.get(topic, self._defaults)

    def on_change(self, apply: Callable[[str, TopicConfig], None]) -> None:
        """Call `apply(topic, settings)` whenever a topic's settings differ from before."""
        self._apply = apply

    async def start(self) -> None:
        """Begin to watch, then read every topic: nothing is missed in between."""
        await self._changes.start()
        await self.load()

    async def load(self) -> None:
        """Read the entries of every topic; also after a lost session, whose notices may be gone."""
        topics = await self._session.children(f"{znodes.CONFIG_PATH}/topics")
        await self._read(topics)

    async def ensure(self, topic: str) -> None:
        """Read the entries of a topic that is about to get its first log here."""
        if topic not in self._known:
            await self._read([topic])

    async def _read(self, topics: list[str]) -> None:
        paths = {znodes.topic_config_path(topic): topic for topic in topics}
        found = await self._session.get_all(paths)
        for path, topic in paths.items():
            entries: Mapping[str, str] = {}
            if path in found:
                try:
                    entries = znodes.decode_config(path, found[path][0])
                except znodes.ZnodeError as error:
                    logger.error("%s: %s", topic, error)
            self._take(topic, self._resolve(topic, entries))

    def _resolve(self, topic: str, entries: Mapping[str, str]) -> TopicConfig:
        sound: dict[str, str] = {}
        for name, text in entries.items():
            try:
                configuration.check_topic_entries({name: text})
            except ConfigError as error:
                logger.warning("topic %s: %s; the broker's value holds", topic, error)
            else:
                sound[name] = text
        return configuration.resolve_topic(self._config, sound)

    def _take(self, topic: str, settings: TopicConfig) -> None:
        if self._known.get(topic) != settings:
            self._known[topic] = settings
            self._apply(topic, settings)

    async def run(self) -> None:
        """Follow changes until cancelled."""
        await self._changes.run()

    async def _changed(self, entity_type: str, name: str) -> None:
        if entity_type == "topics":
            await self._read([name])
