"""A client of a fetch session (KIP-227), whose requests go straight to the handler."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.handlers import fetch, fetch_answers, topic_rules
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from odradek.replica.fetch_sessions import FetchSession
from odradek.values import TopicPartition


class SessionClient:
    """A client on one connection, which keeps a session as Kafka's clients do."""

    def __init__(self, broker: Broker, replica_id: int = -1, version: int = 11) -> None:
        self.broker = broker
        self.replica_id = replica_id
        self.session_id = 0
        self.epoch = 0
        self.context = RequestContext(version, "c", "PLAINTEXT", "h", 1)

    def request(
        self,
        named: Sequence[tuple[TopicPartition, int]] = (),
        forgotten: Sequence[TopicPartition] = (),
        wait_ms: int = 0,
        max_bytes: int = 1 << 20,
        leader_epoch: int = -1,
    ) -> FetchRequest:
        return FetchRequest(
            replica_id=self.replica_id,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[
                FetchTopic(
                    topic=key.topic,
                    partitions=[
                        FetchPartition(
                            partition=key.partition,
                            fetch_offset=offset,
                            log_start_offset=0 if self.replica_id >= 0 else -1,
                            current_leader_epoch=leader_epoch,
                            partition_max_bytes=1 << 20,
                        )
                    ],
                )
                for key, offset in named
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic=key.topic, partitions=[key.partition]) for key in forgotten
            ],
        )

    async def answer(self, request: FetchRequest) -> FetchResponse:
        rule = topic_rules.fetch if self.broker.authorizer is not None else None
        answer = (
            await rule(self.broker, request, self.context, fetch.fetch)
            if rule
            else await fetch.fetch(self.broker, request, self.context)
        )
        assert isinstance(answer, FetchResponse)
        if answer.error_code == ErrorCode.NONE:
            self.session_id = answer.session_id
            self.epoch = self.epoch + 1 if answer.session_id else 0
        return answer

    async def fetch(
        self,
        *named: tuple[TopicPartition, int],
        forgotten: Sequence[TopicPartition] = (),
        wait_ms: int = 0,
        max_bytes: int = 1 << 20,
        leader_epoch: int = -1,
    ) -> dict[TopicPartition, FetchablePartitionResponse]:
        request = self.request(named, forgotten, wait_ms, max_bytes, leader_epoch)
        answer = await self.answer(request)
        assert answer.error_code == ErrorCode.NONE
        found = parts(answer)
        fetch_answers.discard(answer)
        return found

    @property
    def session(self) -> FetchSession:
        [found] = [
            one for one in self.broker.replicas.fetch_sessions if one.session_id == self.session_id
        ]
        return found


def parts(answer: FetchResponse) -> dict[TopicPartition, FetchablePartitionResponse]:
    """Return what an answer says of each partition."""
    return {
        TopicPartition(topic.topic, part.partition): part
        for topic in answer.responses
        for part in topic.partition_responses
    }
