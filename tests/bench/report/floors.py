"""Servers that do the least: what a client reaches against them is what it can reach at all.

    python -m tests.bench.report.floors write FILE     receive, CRC-32C, pwrite
    python -m tests.bench.report.floors send FILE      sendfile
    python -m tests.bench.report.floors hollow BYTES   a broker that keeps nothing
    python -m tests.bench.report.floors keep FOLDER    a broker that checks and writes batches
    python -m tests.bench.report.floors pass           a broker that passes records on

Each prints its port and serves until it is killed. `write` takes frames of batches of
`BATCH_BYTES`, checks and writes each batch, and answers each frame with four bytes. `send` answers
each frame with `SENT_BYTES` of the file. `hollow` acknowledges what producers send and drops it,
and serves consumers one batch of records of BYTES bytes over and over; it has one broker, and every
topic that it is asked for. `keep` is the same broker, but compares the CRC-32C of each batch and
writes the batch to a file per partition in FOLDER before it acknowledges. `pass` is the same broker
with one partition whose records it does pass on: who sends a batch has its thread send the batch to
all fetches that wait, without a look at the records. It keeps the last `KEPT_BATCHES`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from odradek.log.records import records
from odradek.protocol import codec, headers
from odradek.protocol.api import APIS, ApiKey
from odradek.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
)
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from odradek.protocol.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.protocol.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from odradek.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from odradek.protocol.regions import total_length

BATCH_BYTES: Final = 64 * 1024
SENT_BYTES: Final = 1024 * 1024
PARTITIONS: Final = 6
NODE_ID: Final = 1
MEMBER: Final = "member"
# So far nobody consumes.
ENDLESS: Final = 1 << 40
_SIZE: Final = struct.Struct(">i")
KEPT_BATCHES: Final = 256
_OFFSET: Final = struct.Struct(">q")
# Where a batch says how many records follow its first.
_LAST_DELTA: Final = struct.Struct(">i")
_LAST_DELTA_AT: Final = 23
# Where it has the CRC-32C of what follows.
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
# The newest versions that `hollow` speaks; newer ones would name topics by id.
SPOKEN: Final = {
    ApiKey.PRODUCE: (3, 8),
    ApiKey.FETCH: (4, 11),
    ApiKey.LIST_OFFSETS: (1, 5),
    ApiKey.METADATA: (1, 8),
    ApiKey.OFFSET_COMMIT: (2, 7),
    ApiKey.OFFSET_FETCH: (1, 5),
    ApiKey.FIND_COORDINATOR: (0, 2),
    ApiKey.JOIN_GROUP: (2, 3),
    ApiKey.HEARTBEAT: (0, 3),
    ApiKey.LEAVE_GROUP: (0, 3),
    ApiKey.SYNC_GROUP: (0, 3),
    ApiKey.API_VERSIONS: (0, 2),
}


class Floor:
    """One of the servers as a child process; a context manager."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    @property
    def pid(self) -> int:
        """Process id of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def bootstrap(self) -> str:
        """The address."""
        return f"127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        """Return a connection."""
        return socket.create_connection(("127.0.0.1", self.port), 60)

    def __enter__(self) -> Floor:
        line = [sys.executable, "-m", "tests.bench.report.floors", *self._words]
        self._process = subprocess.Popen(
            line, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()


class _Frames:
    """The frames of one connection, each a view of one buffer that grows with the largest."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = memoryview(bytearray(SENT_BYTES))

    def __iter__(self) -> Iterator[memoryview]:
        head = memoryview(bytearray(_SIZE.size))
        while self._fill(head):
            (size,) = _SIZE.unpack(head)
            if size > len(self._buffer):
                self._buffer = memoryview(bytearray(size))
            frame = self._buffer[:size]
            if not self._fill(frame):
                return
            yield frame

    def _fill(self, view: memoryview) -> bool:
        while view:
            received = self._sock.recv_into(view)
            if not received:
                return False
            view = view[received:]
        return True


class _Appended:
    """A new file that is written at its end."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._position = 0

    def append(self, piece: memoryview) -> None:
        """Write a piece at the end."""
        os.pwrite(self._fd, piece, self._position)
        self._position += len(piece)


def _write(sock: socket.socket, path: Path) -> None:
    written = _Appended(path)
    for frame in _Frames(sock):
        for start in range(0, len(frame), BATCH_BYTES):
            piece = frame[start : start + BATCH_BYTES]
            crc32c(piece)
            written.append(piece)
        sock.sendall(_SIZE.pack(0))


def _send(sock: socket.socket, path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    for _ in _Frames(sock):
        sock.sendall(_SIZE.pack(SENT_BYTES))
        position = 0
        while position < SENT_BYTES:
            position += os.sendfile(sock.fileno(), fd, position, SENT_BYTES - position)


class _Hollow:
    """Answers requests of one connection."""

    def __init__(self, sock: socket.socket, port: int, record_bytes: int) -> None:
        self._sock = sock
        self._port = port
        count = max(1, BATCH_BYTES // (record_bytes + 10))
        values = [(None, b"v" * record_bytes)] * count
        self._batch = records.make(values, time.time_ns() // 1_000_000)
        self._records_per_batch = count
        self._served: dict[int, bytearray] = {}
        self._sending = threading.Lock()
        # Correlation id and version of the request that is being answered.
        self._asked = (0, 0)
        self._answers: dict[type, Callable[[Any, int], object]] = {
            ApiVersionsRequest: self._api_versions,
            MetadataRequest: self._metadata,
            ProduceRequest: self._produce,
            FetchRequest: self._fetch,
            FindCoordinatorRequest: self._coordinator,
            JoinGroupRequest: self._join,
            SyncGroupRequest: self._sync,
            HeartbeatRequest: lambda _request, _version: HeartbeatResponse(),
            LeaveGroupRequest: lambda _request, _version: LeaveGroupResponse(),
            OffsetFetchRequest: self._committed,
            OffsetCommitRequest: self._commit,
            ListOffsetsRequest: self._offsets,
        }

    def serve(self) -> None:
        """Answer until the client goes."""
        for frame in _Frames(self._sock):
            header, position = headers.decode_request_header(frame)
            api, version = APIS[header.api_key], header.api_version
            if api.key == ApiKey.API_VERSIONS:
                # A newer client asks again with what it is told.
                version = 0
                request: Any = ApiVersionsRequest()
            else:
                request, _ = codec.decode(api.request, version, frame, position)
            self._asked = header.correlation_id, version
            answer = self._answers[api.request](request, header.api_version)
            if answer is not None:
                self._send(api.key, header.correlation_id, version, answer)

    def _send(self, key: ApiKey, correlation_id: int, version: int, answer: object) -> None:
        start = headers.encode_response_header(APIS[key], version, correlation_id)
        parts: list[Any] = codec.encode_parts(answer, version)
        size = len(start) + total_length(parts)
        views = [memoryview(one) for one in (_SIZE.pack(size) + start, *parts)]
        with self._sending:
            while views:
                sent = self._sock.sendmsg(views)
                while views and sent >= len(views[0]):
                    sent -= len(views.pop(0))
                if sent:
                    views[0] = views[0][sent:]

    def _api_versions(self, _: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
        unsupported = 35 if version > SPOKEN[ApiKey.API_VERSIONS][1] else 0
        spoken = [
            ApiVersion(api_key=key, min_version=a, max_version=b) for key, (a, b) in SPOKEN.items()
        ]
        return ApiVersionsResponse(error_code=unsupported, api_keys=spoken)

    def _metadata(self, request: MetadataRequest, _: int) -> MetadataResponse:
        here = MetadataResponseBroker(node_id=NODE_ID, host="127.0.0.1", port=self._port)
        partitions = [
            MetadataResponsePartition(
                partition_index=number,
                leader_id=NODE_ID,
                leader_epoch=0,
                replica_nodes=[NODE_ID],
                isr_nodes=[NODE_ID],
            )
            for number in range(PARTITIONS)
        ]
        topics = [
            MetadataResponseTopic(name=one.name or "", partitions=partitions)
            for one in request.topics or []
        ]
        return MetadataResponse(brokers=[here], controller_id=NODE_ID, topics=topics)

    def _produce(self, request: ProduceRequest, _: int) -> ProduceResponse:
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    partition_responses=[
                        PartitionProduceResponse(index=one.index, base_offset=0)
                        for one in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    def _fetch(self, request: FetchRequest, _: int) -> FetchResponse | None:
        return FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic=topic.topic,
                    partition_responses=[
                        FetchablePartitionResponse(
                            partition=one.partition,
                            high_watermark=ENDLESS,
                            record_set=self._records(one.partition, one.fetch_offset),
                        )
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _records(self, partition: int, offset: int) -> bytes | bytearray:
        count = SENT_BYTES // len(self._batch)
        served = self._served.setdefault(partition, bytearray(self._batch * count))
        first = offset - offset % self._records_per_batch
        for number in range(count):
            base = first + number * self._records_per_batch
            _OFFSET.pack_into(served, number * len(self._batch), base)
        return served

    def _coordinator(self, _: FindCoordinatorRequest, __: int) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(node_id=NODE_ID, host="127.0.0.1", port=self._port)

    def _join(self, request: JoinGroupRequest, _: int) -> JoinGroupResponse:
        chosen = request.protocols[0]
        return JoinGroupResponse(
            generation_id=1,
            protocol_name=chosen.name,
            leader=MEMBER,
            member_id=MEMBER,
            members=[JoinGroupResponseMember(member_id=MEMBER, metadata=chosen.metadata)],
        )

    def _sync(self, request: SyncGroupRequest, _: int) -> SyncGroupResponse:
        return SyncGroupResponse(assignment=request.assignments[0].assignment)

    def _committed(self, request: OffsetFetchRequest, _: int) -> OffsetFetchResponse:
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponsePartition(partition_index=one, committed_offset=-1)
                        for one in topic.partition_indexes
                    ],
                )
                for topic in request.topics or []
            ]
        )

    def _commit(self, request: OffsetCommitRequest, _: int) -> OffsetCommitResponse:
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=one.partition_index)
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _offsets(self, request: ListOffsetsRequest, _: int) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(partition_index=one.partition_index, offset=0)
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )


@dataclass(slots=True)
class _Kept:
    """The partitions of `keep`, a file each."""

    folder: Path
    lock: threading.Lock = field(default_factory=threading.Lock)
    files: dict[str, _Appended] = field(default_factory=dict)

    def append(self, topic: str, partition: int, batch: memoryview) -> None:
        """Check and write a batch."""
        (crc,) = _CRC.unpack_from(batch, _CRC_AT)
        assert crc32c(batch[_CRC_AT + _CRC.size :]) == crc, "a batch is damaged"
        name = f"{topic}-{partition}"
        with self.lock:
            if name not in self.files:
                self.files[name] = _Appended(self.folder / name)
            self.files[name].append(batch)


class _Keeping(_Hollow):
    """Answers requests of one connection to `keep`."""

    def __init__(self, sock: socket.socket, port: int, kept: _Kept) -> None:
        super().__init__(sock, port, 0)
        self._kept = kept

    def _produce(self, request: ProduceRequest, version: int) -> ProduceResponse:
        for topic in request.topic_data:
            for one in topic.partition_data:
                assert isinstance(one.records, memoryview)
                self._kept.append(topic.name, one.index, one.records)
        return super()._produce(request, version)


@dataclass(slots=True)
class _Passed:
    """The partition of `pass`: its last batches by their ends, and what answers who waits."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    end: int = 0
    batches: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=KEPT_BATCHES))
    waiting: list[Callable[[], None]] = field(default_factory=list)

    def append(self, sent: memoryview) -> None:
        """Keep a copy of a batch, at the end."""
        batch = bytearray(sent)
        _OFFSET.pack_into(batch, 0, self.end)
        self.end += _LAST_DELTA.unpack_from(batch, _LAST_DELTA_AT)[0] + 1
        self.batches.append((self.end, bytes(batch)))

    def read(self, offset: int) -> bytes:
        """Return what is kept of the batches from an offset on."""
        found: list[bytes] = []
        for end, batch in reversed(self.batches):
            if end <= offset:
                break
            found.append(batch)
        return b"".join(reversed(found))


class _Passing(_Hollow):
    """Answers requests of one connection to `pass`."""

    def __init__(self, sock: socket.socket, port: int, passed: _Passed) -> None:
        super().__init__(sock, port, 0)
        self._passed = passed

    def _produce(self, request: ProduceRequest, version: int) -> ProduceResponse:
        with self._passed.lock:
            for topic in request.topic_data:
                for one in topic.partition_data:
                    assert isinstance(one.records, memoryview)
                    self._passed.append(one.records)
            waiting, self._passed.waiting = self._passed.waiting, []
        for answer in waiting:
            answer()
        return super()._produce(request, version)

    def _fetch(self, request: FetchRequest, version: int) -> FetchResponse | None:
        offsets = [one.fetch_offset for topic in request.topics for one in topic.partitions]
        with self._passed.lock:
            if all(offset >= self._passed.end for offset in offsets):
                self._passed.waiting.append(partial(self._answer, request, *self._asked))
                return None
        return super()._fetch(request, version)

    def _answer(self, request: FetchRequest, correlation_id: int, version: int) -> None:
        """Answer a fetch that waited; its client may be gone."""
        with contextlib.suppress(OSError):
            self._send(ApiKey.FETCH, correlation_id, version, super()._fetch(request, version))

    def _records(self, partition: int, offset: int) -> bytes:
        with self._passed.lock:
            return self._passed.read(offset)


def _serve(listener: socket.socket, work: Callable[[socket.socket], None]) -> None:
    while True:
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def served(sock: socket.socket = sock) -> None:
            with contextlib.suppress(ConnectionError), sock:
                work(sock)

        threading.Thread(target=served, daemon=True).start()


def main(mode: str, argument: str = "") -> None:
    """Serve; print the port first."""
    passed, kept = _Passed(), _Kept(Path(argument))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        print(port, flush=True)
        works: dict[str, Callable[[socket.socket], None]] = {
            "write": lambda sock: _write(sock, Path(argument)),
            "send": lambda sock: _send(sock, Path(argument)),
            "hollow": lambda sock: _Hollow(sock, port, int(argument)).serve(),
            "keep": lambda sock: _Keeping(sock, port, kept).serve(),
            "pass": lambda sock: _Passing(sock, port, passed).serve(),
        }
        _serve(listener, works[mode])


if __name__ == "__main__":
    main(*sys.argv[1:])
