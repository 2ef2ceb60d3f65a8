"""What waits for the controller: things to read again, signals, answers, and callers.

The same item is never queued twice, so the queue is bounded by the number of things that can be
read again plus the requests that brokers have not answered.
"""

import asyncio
import enum
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odradek.controller.events import Event
from odradek.controller.office import Signal
from odradek.values import TopicPartition
from odradek.zk import znodes
from odradek.zk.session import WatchEvent

if TYPE_CHECKING:
    from odradek.controller.term import Term


class Reading(enum.Enum):
    """What is to be read again."""

    BROKERS = "brokers"
    TOPICS = "topics"
    DELETIONS = "deletions"
    ISR_CHANGES = "isr-changes"
    LOG_DIR_EVENTS = "log-dir-events"
    PREFERRED = "preferred-election"
    REASSIGNMENT = "reassignment"
    MOVING_STATES = "moving-states"  # those that `take_states` names


@dataclass(frozen=True, slots=True)
class TopicWritten:
    """One topic's znode is to be read again."""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicConfigWritten:
    """One topic's configuration is to be read again."""

    topic: str


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Somebody waits for what `work` does with the term of office."""

    work: Callable[["Term"], Awaitable[Any]]
    future: asyncio.Future[Any]


Item = Reading | TopicWritten | TopicConfigWritten | Call | Signal | Event


class Inbox:
    """A queue without repetitions, filled and emptied on one event loop."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._queued: set[Item] = set()
        self._came = asyncio.Event()
        self._states: set[TopicPartition] = set()
        self._watches: dict[Item, Callable[[WatchEvent], None]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> None:
        """Queue an item, unless it is queued already."""
        if item not in self._queued:
            self._queued.add(item)
            self._items.append(item)
            self._came.set()

    async def get(self) -> Item:
        """Take the oldest item, waiting for one."""
        while not self._items:
            self._came.clear()
            await self._came.wait()
        item = self._items.popleft()
        self._queued.discard(item)
        return item

    def watch(self, item: Item) -> Callable[[WatchEvent], None]:
        """Return the watch that queues `item`: always the same, so that it is set once a path."""
        if item not in self._watches:
            self._watches[item] = lambda _: self.put(item)
        return self._watches[item]

    def watch_topic(self, event: WatchEvent) -> None:
        """Queue the topic whose znode changed."""
        self.put(TopicWritten(event.path.rpartition("/")[2]))

    def read_states(self, partitions: Iterable[TopicPartition]) -> None:
        """Queue the states of partitions to be read again."""
        self._states.update(partitions)
        self.put(Reading.MOVING_STATES)

    def watch_state(self, event: WatchEvent) -> None:
        """Queue the partition whose state changed."""
        partition = znodes.parse_state_path(event.path)
        self.read_states([TopicPartition(*partition)])

    def take_states(self) -> set[TopicPartition]:
        """Return the partitions whose states are to be read, and forget them."""
        taken, self._states = self._states, set()
        return taken

    def calls(self) -> list[Call]:
        """Return the callers that wait."""
        return [item for item in self._items if isinstance(item, Call)]
