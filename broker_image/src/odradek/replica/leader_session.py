"""The fetch session that a follower has with a leader (KIP-227): what the leader knows of it; pure.

A full fetch names all partitions and asks for a session. If the leader begins one, each further
fetch names what is new or changed, and what it is to forget. Leaders without sessions, or without
room for one, answer with session id 0, and the next fetch is full again. As in Kafka's
`FetchSessionHandler`, a session does not outlive its connection or an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from odradek.protocol.messages.fetch import FetchPartition
from odradek.replica.fetch_sessions import FIRST_EPOCH, INITIAL_EPOCH, NO_SESSION, next_epoch
from odradek.values import TopicPartition


class SessionRequest(NamedTuple):
    """What a fetch has to say."""

    session_id: int
    epoch: int
    named: list[tuple[TopicPartition, FetchPartition]]
    forgotten: list[TopicPartition]


class LeaderSession:
    """One session after another. `end` begins anew."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        # Where the leader reads each partition, since the last request.
        self._named: dict[TopicPartition, FetchPartition] = {}
        # Those of them that the next fetch forgets, unless it names them.
        self._left: set[TopicPartition] = set()

    @property
    def is_open(self) -> bool:
        """Return whether the next fetch names only changes."""
        return self._epoch != INITIAL_EPOCH

    @property
    def fetches_unnamed(self) -> bool:
        """Return whether a fetch is of use that names nothing."""
        return self.is_open and len(self._named) > len(self._left)

    def leave(self, key: TopicPartition) -> None:
        """Forget a partition with the next fetch, unless that names it."""
        if key in self._named:
            self._left.add(key)

    def request(self, wanted: Mapping[TopicPartition, FetchPartition]) -> SessionRequest:
        """Return the next fetch, of `wanted` and of what was named before and did not leave.

        Without a session it is of `wanted` only.
        """
        if not self.is_open:
            self._named = dict(wanted)
            self._left.clear()
            return SessionRequest(self._id, self._epoch, list(wanted.items()), [])
        named = self._named
        # Of a busy partition only the offset changes; all the fields take long to compare.
        changed = [
            (key, one)
            for key, one in wanted.items()
            if (former := named.get(key)) is None
            or former.fetch_offset != one.fetch_offset
            or former != one
        ]
        named.update(changed)
        forgotten: list[TopicPartition] = []
        if self._left:
            forgotten = [key for key in self._left if key not in wanted]
            for key in forgotten:
                del named[key]
            self._left.clear()
        return SessionRequest(self._id, self._epoch, changed, forgotten)

    def answered(self, session_id: int) -> None:
        """Note the session id of an answer without error."""
        if self.is_open and session_id == self._id:
            self._epoch = next_epoch(self._epoch)
            return
        was_full = not self.is_open
        self._id = session_id
        if was_full and session_id != NO_SESSION:
            self._epoch = FIRST_EPOCH
        else:
            self.end()

    def end(self) -> None:
        """Fetch all partitions next; that request ends the session for the leader, too."""
        self._epoch = INITIAL_EPOCH
        self._named.clear()
        self._left.clear()
