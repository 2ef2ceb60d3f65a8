"""The metadata cache: live brokers, partitions and controller, as the controller last sent them.

UpdateMetadata requests fill the cache; the Metadata handler, the fetchers and topic creation read
it. A request replaces the partitions that it names, and the live brokers as a whole. Every change
raises `version`, drops the encoded answers and wakes those who wait for a topic.

What the cache knows is a `MetadataView`, which is replaced and never changed: a request may
describe more partitions than fit in one turn of the event loop, and so may an answer. The new view
is built beside the old one and takes effect at once. An answer is of one view from its start to its
end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from odradek import slices
from odradek.long_lived import LongLivedMetadata
from odradek.replica.purgatory import Purgatory
from odradek.values import NO_LEADER, TopicPartition

if TYPE_CHECKING:
    from odradek.protocol.messages.control import (
        UpdateMetadataPartitionState,
        UpdateMetadataRequest,
    )

MOST_ANSWER_BYTES = 4 * 1024 * 1024
# The memory of a cached answer besides its bytes: its key names the topics.
_QUESTION_BYTES = 1024
# In place of a leader: the topic is being deleted (Kafka's LeaderAndIsr.LeaderDuringDelete).
LEADER_DURING_DELETE = -2


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A live broker: its address on each listener, by the listener's name."""

    broker_id: int
    endpoints: Mapping[str, tuple[str, int]]
    rack: str | None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The state of a partition, as the controller last sent it."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MetadataView:
    """The cluster after one UpdateMetadata."""

    controller_id: int = -1
    brokers: dict[int, BrokerInfo] = field(default_factory=dict)
    topics: dict[str, dict[int, PartitionInfo]] = field(default_factory=dict)

    @property
    def live_controller_id(self) -> int:
        """Return the broker id of the controller, -1 if it is unknown or no live broker."""
        return self.controller_id if self.controller_id in self.brokers else -1

    def on_listener(self, name: str) -> Iterator[tuple[BrokerInfo, str, int]]:
        """Yield the live brokers that have a listener, with host and port there."""
        for broker in self.brokers.values():
            endpoint = broker.endpoints.get(name)
            if endpoint is not None:
                host, port = endpoint
                yield broker, host, port


@dataclass(slots=True)
class _Encoding:
    """An answer that is being encoded, in slices, for the first who asked."""

    done: asyncio.Event = field(default_factory=asyncio.Event)
    answer: bytes | None = None


class MetadataCache:
    """Only the event loop uses it; reads are dictionary lookups."""

    def __init__(self) -> None:
        self.version = 0
        self.view = MetadataView()
        # Held by the one who updates.
        self.updating = asyncio.Lock()
        self._told = asyncio.Event()
        self._answers: dict[Hashable, bytes] = {}
        self._answer_bytes = 0
        self._encodings: dict[Hashable, _Encoding] = {}
        self._waiting: Purgatory[str] = Purgatory()
        self._long_lived = LongLivedMetadata()

    @property
    def controller_id(self) -> int:
        """Return the broker id of the controller, -1 if it is unknown."""
        return self.view.controller_id

    @property
    def brokers(self) -> dict[int, BrokerInfo]:
        """Return the live brokers by id."""
        return self.view.brokers

    @property
    def topics(self) -> dict[str, dict[int, PartitionInfo]]:
        """Return the partitions of each topic."""
        return self.view.topics

    def update(self, request: UpdateMetadataRequest) -> None:
        """Apply an UpdateMetadata request of any version."""
        for _ in self.update_in_slices(request):
            pass

    def update_in_slices(self, request: UpdateMetadataRequest) -> Generator[None, None, None]:
        """As `update`; the caller holds `updating`."""
        brokers = {
            broker.id: BrokerInfo(
                broker.id,
                # Before version 3 there is no listener name: it is that of the protocol.
                {e.listener or "PLAINTEXT": (e.host, e.port) for e in broker.endpoints}
                or {"PLAINTEXT": (broker.v0_host, broker.v0_port)},
                broker.rack,
            )
            for broker in request.live_brokers
        }
        topics = dict(self.view.topics)
        copied: set[str] = set()
        former: list[PartitionInfo] = []
        partitions = 0
        for part in slices.cut(described(request)):
            partitions += len(part)
            for topic, state in part:
                if topic not in copied:
                    copied.add(topic)
                    known = topics.get(topic, {})
                    former += known.values()
                    topics[topic] = dict(known)
                if state.leader == LEADER_DURING_DELETE:
                    topics[topic].pop(state.partition_index, None)
                    continue
                topics[topic][state.partition_index] = PartitionInfo(
                    state.leader,
                    state.leader_epoch,
                    tuple(state.replicas),
                    tuple(state.isr),
                    tuple(state.offline_replicas),
                )
            if len(part) == slices.STEPS_PER_SLICE:
                yield
        for few in slices.cut(copied, slices.KEYS_AT_ONCE):
            for topic in few:
                if not topics[topic]:
                    del topics[topic]
            if len(few) == slices.KEYS_AT_ONCE:
                yield
        self.view = MetadataView(request.controller_id, brokers, topics)
        self.version += 1
        self._told.set()
        self._forget_answers()
        # Thousands may wait, each for a topic of its own: they are asked about their own news only.
        self._waiting.wake_each(copied)
        # With the former view, 300 000 of them would be freed at once.
        slices.discard(former)
        self._long_lived.described(partitions)

    @property
    def initialized(self) -> bool:
        """Return whether any UpdateMetadata has come yet."""
        return self._told.is_set()

    async def wait_until_initialized(self) -> None:
        """Wait for the first UpdateMetadata."""
        await self._told.wait()

    def endpoint(self, broker_id: int, listener: str) -> tuple[str, int] | None:
        """Return (host, port) of a live broker on the named listener, or None."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else broker.endpoints.get(listener)

    def hosts(self, listener: str) -> set[str]:
        """Return the hosts of the live brokers on the named listener."""
        brokers = self.brokers.values()
        return {one.endpoints[listener][0] for one in brokers if listener in one.endpoints}

    def partition(self, topic: str, index: int) -> PartitionInfo | None:
        """Return the state of a partition, None if the controller never sent one."""
        return self.topics.get(topic, {}).get(index)

    def leaderless(self) -> int:
        """Return how many partitions of the cluster have no leader."""
        return sum(
            info.leader == NO_LEADER
            for partitions in list(self.topics.values())
            for info in list(partitions.values())
        )

    def has_leaders(self, topic: str, partitions: int) -> bool:
        """Return whether the first `partitions` partitions of the topic all have a leader."""
        known = self.topics.get(topic, {})
        return all(
            index in known and known[index].leader != NO_LEADER for index in range(partitions)
        )

    async def wait_for_leaders(self, topic: str, partitions: int, timeout_ms: float) -> bool:
        """Wait until `has_leaders`; return False on timeout."""
        return self.has_leaders(topic, partitions) or await self._waiting.wait(
            (topic,), timeout_ms, lambda: self.has_leaders(topic, partitions)
        )

    async def wait_until_led(
        self, leaders: Mapping[TopicPartition, int], timeout_ms: float
    ) -> bool:
        """Wait until partitions have these leaders; return False on timeout."""

        def are_led() -> bool:
            known = {key: self.partition(*key) for key in leaders}
            return all(
                info is not None and info.leader == leaders[key] for key, info in known.items()
            )

        topics = {key.topic for key in leaders}
        return are_led() or await self._waiting.wait(topics, timeout_ms, are_led)

    async def wait_until_gone(self, topic: str, timeout_ms: float) -> bool:
        """Wait until no partition of the topic is known; return False on timeout."""
        return topic not in self.topics or await self._waiting.wait(
            (topic,), timeout_ms, lambda: topic not in self.topics
        )

    def cached_answer(self, question: Hashable) -> bytes | None:
        """Return the cached answer to a question, None if anything changed since."""
        return self._answers.get(question)

    async def encoded_answer(
        self, question: Hashable, encode: Callable[[MetadataView], Awaitable[bytes]]
    ) -> bytes:
        """Return the encoded answer to a question, and cache it until the next change.

        Whoever asks the same while it is encoded waits for it: many ask as soon as anything
        changed.
        """
        version = self.version
        while (encoding := self._encodings.get((version, question))) is not None:
            await encoding.done.wait()
            if encoding.answer is not None:
                return encoding.answer
        encoding = self._encodings[version, question] = _Encoding()
        try:
            encoding.answer = await encode(self.view)
        finally:
            del self._encodings[version, question]
            encoding.done.set()
        if version == self.version:
            self._cache_answer(question, encoding.answer)
        return encoding.answer

    def _cache_answer(self, question: Hashable, answer: bytes) -> None:
        if self._answer_bytes > MOST_ANSWER_BYTES:
            self._forget_answers()
        self._answers[question] = answer
        self._answer_bytes += len(answer) + _QUESTION_BYTES

    def _forget_answers(self) -> None:
        self._answers.clear()
        self._answer_bytes = 0

    def close(self) -> None:
        """End every wait."""
        self._told.set()
        self._waiting.close()


def described(
    request: UpdateMetadataRequest,
) -> Iterator[tuple[str, UpdateMetadataPartitionState]]:
    """Yield topic and state of each partition, in every version's layout."""
    for state in request.ungrouped_partition_states:
        yield state.topic_name, state
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield topic.topic_name, state
