"""The client of other brokers against a listener, and against peers that break the protocol."""

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from odradek.net.client import PeerClient
from odradek.net.client_info import ClientInfo
from odradek.net.connection_quotas import ConnectionLimits, ConnectionQuotas
from odradek.net.frame import FrameReader
from odradek.net.listener import Listener
from odradek.net.transport import PlainTransport
from odradek.protocol import codec, headers
from odradek.protocol.api import APIS
from odradek.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from odradek.protocol.messages.control import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
)
from odradek.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.protocol.regions import Part
from tests.support.file_regions import CountedRegion

LIMITS = ConnectionLimits(
    max_frame_bytes=1_000_000, max_connections=100, max_connections_per_ip=100, max_idle_ms=60_000
)
Handler = Callable[[headers.RequestHeader, object], Awaitable[object]]


@contextlib.asynccontextmanager
async def peer(handle: Handler, *, reuse_frames: bool = False) -> AsyncIterator[PeerClient]:
    """A listener that answers each decoded request by `handle`, and a client of it."""

    async def dispatch(frame: memoryview, _peer: ClientInfo) -> Sequence[Part]:
        header, position = headers.decode_request_header(frame)
        entry = APIS[header.api_key]
        request, _ = codec.decode(entry.request, header.api_version, frame, position)
        response = await handle(header, request)
        return headers.encode_response(entry, header.api_version, header.correlation_id, response)

    listener = Listener("127.0.0.1", 0, ConnectionQuotas(LIMITS), dispatch)
    await listener.start()
    client = PeerClient("127.0.0.1", listener.port, "tester", reuse_frames=reuse_frames)
    try:
        yield client
    finally:
        await client.close()
        await listener.close(grace_ms=100)


@contextlib.asynccontextmanager
async def raw_peer(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[PeerClient]:
    """A server that does as it likes with each connection, and a client of it."""

    serving: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    async def serve_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving[asyncio.current_task()] = writer
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve_and_close, "127.0.0.1", 0)
    client = PeerClient("127.0.0.1", server.sockets[0].getsockname()[1], "tester")
    try:
        yield client
    finally:
        await client.close()
        server.close()
        while serving:  # one that was just accepted may still come in
            task, writer = serving.popitem()
            writer.transport.abort()
            if task is not None:
                await asyncio.wait({task})
        await server.wait_closed()


async def read_correlation_id(reader: asyncio.StreamReader) -> int:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    frame = await reader.readexactly(size)
    return headers.decode_request_header(frame)[0].correlation_id


def heartbeat_answer(correlation_id: int) -> bytes:
    entry = APIS[12]
    parts = headers.encode_response(entry, 0, correlation_id, HeartbeatResponse(error_code=7))
    answer = b"".join(cast("list[bytes]", parts))  # no regions in it
    return struct.pack(">i", len(answer)) + answer


HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


@pytest.mark.parametrize("version", range(5))
async def test_typed_request_gets_its_typed_response(version: int) -> None:
    async def handle(header: headers.RequestHeader, request: object) -> object:
        assert header.client_id == "tester"
        assert request == HEARTBEAT
        return HeartbeatResponse(error_code=27)

    async with peer(handle) as client:
        for _ in range(3):
            response = await client.call(HEARTBEAT, version, timeout_ms=60_000)
            assert response == HeartbeatResponse(error_code=27)


@pytest.mark.parametrize("version", range(4))
async def test_controlled_shutdown_passes_in_every_version_of_its_header(version: int) -> None:
    async def handle(header: headers.RequestHeader, request: object) -> object:
        assert header.client_id == (None if version == 0 else "tester")
        assert request == ControlledShutdownRequest(broker_id=4)
        return ControlledShutdownResponse(error_code=0, remaining_partitions=[])

    async with peer(handle) as client:
        request = ControlledShutdownRequest(broker_id=4)
        assert (await client.call(request, version, 60_000)).remaining_partitions == []


async def test_api_versions_response_header_has_no_tags_in_flexible_versions() -> None:
    async def handle(header: headers.RequestHeader, request: object) -> object:
        return ApiVersionsResponse(api_keys=[], throttle_time_ms=9)

    async with peer(handle) as client:
        for version in range(5):
            response = await client.call(ApiVersionsRequest(), version, 60_000)
            assert response.throttle_time_ms == (9 if version else 0)


async def test_concurrent_calls_get_their_own_answers() -> None:
    async def handle(header: headers.RequestHeader, request: object) -> object:
        assert isinstance(request, HeartbeatRequest)
        await asyncio.sleep(0.001 * (request.generation_id % 3))
        return HeartbeatResponse(error_code=request.generation_id)

    async with peer(handle) as client:
        calls = [
            client.call(HeartbeatRequest(group_id="", generation_id=n, member_id=""), 1, 60_000)
            for n in range(50)
        ]
        assert [answer.error_code for answer in await asyncio.gather(*calls)] == list(range(50))


async def test_fetched_records_stay_valid_after_later_fetches(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"".join(bytes((n,)) * 100_000 for n in range(5)))
    with path.open("rb") as file:

        async def handle(header: headers.RequestHeader, request: object) -> object:
            assert isinstance(request, FetchRequest)
            region = CountedRegion(file.fileno(), request.min_bytes * 100_000, 100_000)
            partition = FetchablePartitionResponse(partition=0, high_watermark=1, record_set=region)
            topic = FetchableTopicResponse(topic="t", partition_responses=[partition])
            return FetchResponse(responses=[topic])

        async with peer(handle) as client:
            fetched = []
            for number in range(5):
                request = FetchRequest(replica_id=1, max_wait_ms=0, min_bytes=number, topics=[])
                for version in (10, 12):
                    response = await client.call(request, version, 60_000)
                    fetched.append(response.responses[0].partition_responses[0].record_set)
    for index, records in enumerate(fetched):
        assert isinstance(records, memoryview)
        assert records == bytes((index // 2,)) * 100_000


async def test_reused_frames_take_memory_once_and_only_while_it_is_needed() -> None:
    sizes = [500_000, 300_000, 500_000, 3_000_000, 300, 500_000]

    async def handle(header: headers.RequestHeader, request: object) -> object:
        assert isinstance(request, FetchRequest)
        records = bytes((request.min_bytes,)) * sizes[request.min_bytes]
        partition = FetchablePartitionResponse(partition=0, high_watermark=1, record_set=records)
        topic = FetchableTopicResponse(topic="t", partition_responses=[partition])
        return FetchResponse(responses=[topic])

    memory: list[bytearray] = []
    async with peer(handle, reuse_frames=True) as client:
        for number, size in enumerate(sizes):
            request = FetchRequest(replica_id=1, max_wait_ms=0, min_bytes=number, topics=[])
            response = await client.call(request, 10, 60_000)
            records = response.responses[0].partition_responses[0].record_set
            assert isinstance(records, memoryview)
            assert records == bytes((number,)) * size
            assert isinstance(records.obj, bytearray)
            memory.append(records.obj)
    assert memory[0] is memory[1] is memory[2]
    assert len(memory[3]) > 3_000_000
    assert len(memory[5]) < 2_000_000


async def test_late_answer_is_a_timeout_and_the_next_call_connects_anew() -> None:
    connections = 0

    async def silent_after_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(heartbeat_answer(await read_correlation_id(reader)))
        while True:
            await read_correlation_id(reader)

    async with raw_peer(silent_after_one) as client:
        assert (await client.call(HEARTBEAT, 0, timeout_ms=60_000)).error_code == 7
        with pytest.raises(TimeoutError):
            await client.call(HEARTBEAT, 0, timeout_ms=50)
        assert (await client.call(HEARTBEAT, 0, timeout_ms=60_000)).error_code == 7
        assert connections == 2


async def test_everybody_who_waits_fails_when_the_peer_goes_away() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            await read_correlation_id(reader)

    async with raw_peer(hang_up) as client:
        calls = [client.call(HEARTBEAT, 0, 60_000) for _ in range(3)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionError] * 3


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda _: heartbeat_answer(999), id="wrong-correlation-id"),
        pytest.param(lambda n: struct.pack(">iih", 6, n, 0)[:9], id="cut-and-closed"),
        pytest.param(lambda n: struct.pack(">iib", 5, n, 0), id="body-too-short"),
        pytest.param(lambda _: struct.pack(">i", -5), id="negative-size"),
        pytest.param(lambda _: struct.pack(">i", 2**31 - 1), id="huge-size"),
        pytest.param(lambda _: struct.pack(">ih", 2, 0), id="no-room-for-a-header"),
        pytest.param(lambda _: b"", id="nothing"),
    ],
)
async def test_answer_that_is_not_the_protocol_is_a_connection_error(
    answer: Callable[[int], bytes],
) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(await read_correlation_id(reader)))

    async with raw_peer(broken) as client:
        with pytest.raises(ConnectionError):
            await client.call(HEARTBEAT, 0, 60_000)


async def test_peer_that_is_not_there_is_a_connection_error() -> None:
    async def silent(_frame: memoryview, _peer: ClientInfo) -> None:
        return None

    listener = Listener("127.0.0.1", 0, ConnectionQuotas(LIMITS), silent)
    await listener.start()
    await listener.close()
    for host in ("127.0.0.1", "no-such-host.invalid"):
        with pytest.raises(ConnectionError):
            await PeerClient(host, listener.port, "tester").call(HEARTBEAT, 0, 60_000)


async def test_cancelled_call_leaves_the_others_their_answers() -> None:
    release = asyncio.Event()

    async def handle(header: headers.RequestHeader, request: object) -> object:
        assert isinstance(request, HeartbeatRequest)
        await release.wait()
        return HeartbeatResponse(error_code=request.generation_id)

    async with peer(handle) as client:
        first, second = (
            asyncio.create_task(
                client.call(HeartbeatRequest(group_id="", generation_id=n, member_id=""), 0, 60_000)
            )
            for n in (1, 2)
        )
        await asyncio.sleep(0.02)
        first.cancel()
        release.set()
        assert (await second).error_code == 2
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_call_cut_off_while_sending_does_not_leave_half_a_request() -> None:
    cut_off = asyncio.Event()

    async def never_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await cut_off.wait()

    async with raw_peer(never_read) as client:
        records = PartitionProduceData(index=0, records=bytes(8_000_000))
        topic = TopicProduceData(name="t", partition_data=[records])
        large = ProduceRequest(acks=1, timeout_ms=1, topic_data=[topic])
        calls = [client.call(large, 8, timeout_ms=200) for _ in range(3)]
        large_calls = asyncio.gather(*calls, return_exceptions=True)
        failures = {type(result) for result in await large_calls}
        assert failures <= {TimeoutError, ConnectionError, BrokenPipeError}
        with pytest.raises((TimeoutError, ConnectionError)):
            await client.call(HEARTBEAT, 0, timeout_ms=100)
        cut_off.set()


async def test_name_that_no_host_can_have_is_a_connection_error() -> None:
    client = PeerClient("broker..example.com", 9092, "tester")
    with pytest.raises(ConnectionError, match="is not a host name"):
        await client.call(HEARTBEAT, 0, timeout_ms=60_000)


async def test_an_answer_that_cannot_be_read_fails_its_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        monkeypatch.setattr(FrameReader, "received", lambda self, count: 1 / 0)
        writer.write(b"answer")
        await writer.drain()
        await reader.read()

    async with raw_peer(serve) as client:
        with pytest.raises(ConnectionError, match="receiving failed"):
            await client.call(ApiVersionsRequest(), 0, 60_000)


async def test_an_alert_of_tls_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"x")
        await writer.drain()
        await reader.read()

    def refuse(transport: PlainTransport, buffer: memoryview) -> int:
        error = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 (_ssl.c:2580)")
        error.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
        raise error

    monkeypatch.setattr(PlainTransport, "recv_into", refuse)
    async with raw_peer(serve) as client:
        with pytest.raises(ConnectionError, match=r"set ssl\.keystore") as failed:
            await client.call(ApiVersionsRequest(), 0, 60_000)
    assert "_ssl.c" not in str(failed.value)
