"""Which log directory a new log goes into: the one that somebody asked for, or the emptiest."""

from collections.abc import Collection
from typing import Final

from odradek.log.directory import Directory
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import TopicPartition

# Partitions to come that have a preferred directory; the oldest wish goes first.
_MAX_PREFERRED: Final = 10_000


class LogPlacement:
    """The directories that partitions to come prefer."""

    def __init__(self) -> None:
        self._preferred: dict[TopicPartition, str] = {}

    def prefer(self, key: TopicPartition, path: str) -> None:
        """Let the log of a partition that is not here yet be created in this directory (KIP-113).

        Forgotten at the next start, as in Kafka.
        """
        self._preferred.pop(key, None)
        self._preferred[key] = path
        if len(self._preferred) > _MAX_PREFERRED:
            self._preferred.pop(next(iter(self._preferred)), None)

    def forget(self, key: TopicPartition) -> None:
        """Forget what a partition prefers: its log is there."""
        self._preferred.pop(key, None)

    def choose(
        self, key: TopicPartition, online: Collection[Directory], taken: str | None
    ) -> Directory:
        """Return one of the directories for the log of a partition, rather not `taken`.

        Raises KAFKA_STORAGE_ERROR if the one that it prefers is not among them.
        """
        path = self._preferred.get(key)
        if path is None:
            return min(online, key=lambda each: (each.path == taken, len(each)))
        for directory in online:
            if directory.path == path:
                return directory
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"Can not create log {key} because log directory {path} is offline",
        )
