"""The controller's queue: changed znodes, candidate events, answers of brokers, and calls.

No item is queued twice, except for answers of brokers and new defaults. So the queue is bounded by
the number of znodes that can change, of requests that wait in the outbox, and of those defaults.
"""

import asyncio
import enum
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from odradek.controller.candidacy import CandidateEvent
from odradek.controller.events import Event, ReplicasAnswered, ReplicasFailed, UncleanChanged
from odradek.values import TopicPartition
from odradek.zk import znodes
from odradek.zk.session import WatchEvent


class ZnodeChange(enum.Enum):
    """Znodes that changed and must be read again."""

    BROKERS = "brokers"
    TOPICS = "topics"
    CREATED_TOPICS = "created-topics"  # those that `take_created` returns
    DELETIONS = "deletions"
    ISR_CHANGES = "isr-changes"
    LOG_DIR_EVENTS = "log-dir-events"
    PREFERRED = "preferred-election"
    REASSIGNMENT = "reassignment"
    REASSIGNED_STATES = "reassigned-states"  # of the partitions that `take_states` returns
    KNOWN_TOPICS = "known-topics"  # each of them: the watches on their znodes were lost


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic's znode changed and must be read again."""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicConfigChange:
    """A topic's configuration changed and must be read again."""

    topic: str


@dataclass(frozen=True, slots=True, eq=False)
class ControllerCall:
    """A call that waits for its turn: `work` is called with the active controller."""

    work: Callable[[Any], Awaitable[Any]]
    future: asyncio.Future[Any]


# Answers of a broker, and new defaults: the last one counts, so each is queued.
_IN_ORDER = (ReplicasAnswered, ReplicasFailed, UncleanChanged)

Item = ZnodeChange | TopicChange | TopicConfigChange | ControllerCall | CandidateEvent | Event


class EventQueue:
    """A queue without duplicates except for what counts in its order, filled and emptied on one
    event loop.
    """

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._queued: set[Item] = set()
        self._not_empty = asyncio.Event()
        self._states: set[TopicPartition] = set()
        self._created: set[str] = set()
        self._watches: dict[Item, Callable[[WatchEvent], None]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> None:
        """Add an item; except for those whose order counts, only if it is not queued already."""
        if isinstance(item, _IN_ORDER):
            self._items.append(item)
            self._not_empty.set()
        elif item not in self._queued:
            self._queued.add(item)
            self._items.append(item)
            self._not_empty.set()

    async def get(self) -> Item:
        """Remove and return the oldest item; wait for one if there is none."""
        while not self._items:
            self._not_empty.clear()
            await self._not_empty.wait()
        item = self._items.popleft()
        self._queued.discard(item)
        return item

    def watch(self, item: Item) -> Callable[[WatchEvent], None]:
        """Return the watch that queues `item`: always the same one, so it is set once per path."""
        if item not in self._watches:
            self._watches[item] = lambda _: self.put(item)
        return self._watches[item]

    def on_topic_change(self, event: WatchEvent) -> None:
        """Queue the topic whose znode changed."""
        self.put(TopicChange(event.path.rpartition("/")[2]))

    def put_created(self, topic: str) -> None:
        """Queue a topic that was just created and must be read."""
        self._created.add(topic)
        self.put(ZnodeChange.CREATED_TOPICS)

    def take_created(self) -> set[str]:
        """Remove and return the topics that were just created."""
        taken, self._created = self._created, set()
        return taken

    def put_states(self, partitions: Iterable[TopicPartition]) -> None:
        """Queue partitions whose states must be read again."""
        self._states.update(partitions)
        self.put(ZnodeChange.REASSIGNED_STATES)

    def on_state_change(self, event: WatchEvent) -> None:
        """Queue the partition whose state changed."""
        partition = znodes.parse_state_path(event.path)
        self.put_states([TopicPartition(*partition)])

    def take_states(self) -> set[TopicPartition]:
        """Remove and return the partitions whose states must be read again."""
        taken, self._states = self._states, set()
        return taken

    def calls(self) -> list[ControllerCall]:
        """Return the waiting calls."""
        return [item for item in self._items if isinstance(item, ControllerCall)]
