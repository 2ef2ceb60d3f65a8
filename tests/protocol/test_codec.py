"""The compiled codec against the interpreter, for every message and version, and hostile bytes."""

import dataclasses
import functools
import tracemalloc
from collections.abc import Callable, Generator, Hashable, Iterable
from itertools import pairwise
from typing import Any, TypeVar, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odradek.protocol import codec, compiler, interpreter, schema
from odradek.protocol.api import APIS
from odradek.protocol.codec import MalformedError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.admin import ElectLeadersRequest, TopicPartitions
from odradek.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from odradek.protocol.messages.control import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchRequest,
    FetchResponse,
)
from odradek.protocol.messages.groups import HeartbeatResponse
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.protocol.messages.topics import DeleteTopicsRequest
from odradek.protocol.primitives import MAX_UNKNOWN_TAGS, read_uvarint, write_uvarint
from odradek.protocol.regions import Part, total_length
from tests.support.file_regions import CountedRegion
from tests.support.messages import every_message, message_id, messages
from tests.support.sampling import how_many

T = TypeVar("T")

EVERY_MESSAGE = pytest.mark.parametrize(("cls", "version"), list(every_message()), ids=message_id)
QUICK = settings(
    max_examples=how_many(2, full=30),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def joined(parts: Iterable[Part]) -> bytes:
    """Return the bytes of parts without regions."""
    return b"".join(cast("Iterable[bytes]", parts))


def outcome(decode: Any, cls: type[Any], version: int, data: bytes) -> Any:
    try:
        return decode(cls, version, data)
    except MalformedError:
        return MalformedError


def finished(work: Generator[None, None, T]) -> T:
    """Return what sliced work returns."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast("T", end.value)


def sliced(cls: type[Any], version: int, data: bytes, offset: int = 0) -> Any:
    return finished(codec.decode_in_slices(cls, version, data, offset))


@EVERY_MESSAGE
@QUICK
@given(data=st.data())
def test_compiled_and_interpreted_codec_agree_on_messages_and_on_damaged_bytes(
    cls: type[Any], version: int, data: st.DataObject
) -> None:
    message = data.draw(messages(cast("Hashable", cls), version))
    encoded = codec.encode(message, version)
    assert encoded == joined(interpreter.encode(message, version))
    assert encoded == finished(codec.encode_in_slices(message, version))
    assert encoded == joined(finished(codec.encode_parts_in_slices(message, version)))
    for decode in (codec.decode, sliced, interpreter.decode):
        assert decode(cls, version, encoded) == (message, len(encoded))
        assert decode(cls, version, b"??" + encoded + b"??", 2) == (message, len(encoded) + 2)
    if not encoded:
        return
    damaged = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    assert outcome(codec.decode, cls, version, cut) is MalformedError
    for broken in (bytes(damaged), cut):
        expected = outcome(interpreter.decode, cls, version, broken)
        assert outcome(codec.decode, cls, version, broken) == expected
        assert outcome(sliced, cls, version, broken) == expected


def slices(work: Generator[None, None, object]) -> int:
    """Return in how many slices the work is done."""
    return 1 + sum(1 for _ in work)


@pytest.mark.parametrize("version", range(7))
def test_elements_of_inner_and_outer_arrays_end_slices(version: int) -> None:
    """A topic per partition or one topic with all: no slice has more than so many of them."""
    for topics, partitions in ((1, 5_000), (5_000, 1), (100, 50)):
        states = [
            UpdateMetadataPartitionState(
                topic_name="t" if version < 5 else "",
                partition_index=index,
                controller_epoch=1,
                leader=1,
                leader_epoch=1,
                isr=[1],
                zk_version=1,
                replicas=[1],
            )
            for index in range(partitions)
        ]
        request = UpdateMetadataRequest(controller_id=1, controller_epoch=1, live_brokers=[])
        if version < 5:
            request.ungrouped_partition_states = states * topics
        else:
            request.topic_states = [
                UpdateMetadataTopicState(topic_name="t", partition_states=states)
            ] * topics
        fewest = 5_000 // compiler.ELEMENTS_PER_SLICE
        assert slices(codec.encode_in_slices(request, version)) > fewest
        data = codec.encode(request, version)
        assert slices(codec.decode_in_slices(UpdateMetadataRequest, version, data)) > fewest


def test_many_strings_are_decoded_in_slices() -> None:
    request = DeleteTopicsRequest(topic_names=["t"] * 10_000, timeout_ms=1)
    data = codec.encode(request, 5)
    assert slices(codec.decode_in_slices(DeleteTopicsRequest, 5, data)) > 10
    assert slices(codec.encode_in_slices(request, 5)) > 10


@pytest.mark.parametrize("version", range(13))
def test_message_cut_at_any_byte_is_malformed(version: int) -> None:
    answer = fetch_response(b"records", None)
    answer.responses[0].partition_responses[0].diverging_epoch = FetchEpochEndOffset(end_offset=2)
    encoded = codec.encode(answer, version)
    for cut in range(len(encoded)):
        for decode in (codec.decode, interpreter.decode):
            with pytest.raises(MalformedError):
                decode(FetchResponse, version, encoded[:cut])


def test_every_declared_class_is_slotted_and_built_with_keywords() -> None:
    for cls, _ in every_message():
        assert not hasattr(object.__new__(cls), "__dict__")
        assert all(field.kw_only for field in dataclasses.fields(cls))


def test_request_and_response_of_an_api_share_versions() -> None:
    for key, entry in APIS.items():
        assert key == entry.key
        assert schema.of(entry.request).versions == schema.of(entry.response).versions
        assert entry.request.__name__ == entry.name + "Request"
        assert entry.response.__name__ == entry.name + "Response"


def produce_request(records: bytes) -> ProduceRequest:
    partition = PartitionProduceData(index=3, records=records)
    topic = TopicProduceData(name="t", partition_data=[partition])
    return ProduceRequest(acks=-1, timeout_ms=10, topic_data=[topic])


@pytest.mark.parametrize("version", [0, 8, 9])
def test_records_are_views_of_the_frame_and_not_copies(version: int) -> None:
    frame = bytearray(codec.encode(produce_request(b"payload"), version))
    decoded, _ = codec.decode(ProduceRequest, version, memoryview(frame))
    records = decoded.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    frame[frame.index(b"payload")] = ord("P")
    assert bytes(records) == b"Payload"


def fetch_response(*record_sets: Any) -> FetchResponse:
    partitions = [
        FetchablePartitionResponse(partition=number, high_watermark=5, record_set=records)
        for number, records in enumerate(record_sets)
    ]
    return FetchResponse(
        responses=[FetchableTopicResponse(topic="t", partition_responses=partitions)]
    )


@pytest.mark.parametrize("version", [0, 4, 11, 12])
@pytest.mark.parametrize("length", [1, 126, 127, 128, 70_000])
def test_parts_with_regions_are_the_bytes_of_the_same_records(version: int, length: int) -> None:
    region = CountedRegion(fd=0, position=0, length=length)
    in_memory = fetch_response(bytes(length), None, b"", b"tail")
    parts = codec.encode_parts(fetch_response(region, None, b"", b"tail"), version)
    assert [part for part in parts if isinstance(part, CountedRegion)] == [region]
    assert total_length(parts) == len(codec.encode(in_memory, version))
    filled = [bytes(length) if part is region else part for part in parts]
    assert joined(filled) == codec.encode(in_memory, version)
    assert region.closed == 0


def test_large_records_in_memory_are_not_copied_into_an_answer() -> None:
    records = memoryview(bytes(100_000))
    parts = codec.encode_parts(fetch_response(records), 11)
    assert any(part is records for part in parts)
    assert joined(parts) == codec.encode(fetch_response(records), 11)


def test_small_pieces_around_records_are_joined() -> None:
    assert len(codec.encode_parts(fetch_response(b"a", b"b", b"c"), 11)) == 1
    region = CountedRegion(fd=0, position=0, length=9)
    assert len(codec.encode_parts(fetch_response(b"a", region, b"c"), 11)) == 3


@pytest.mark.parametrize("version", [0, 5])
def test_announced_array_is_refused_before_memory_is_taken(version: int) -> None:
    count = 50_000_000
    announced = write_uvarint(count + 1) if version >= 4 else count.to_bytes(4)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError):
            codec.decode(DeleteTopicsRequest, version, announced + bytes(100))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_elements_of_all_arrays_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    # A million, the usual bound, takes the interpreter seconds.
    most = 10_000
    monkeypatch.setattr(interpreter, "MAX_ELEMENTS", most)
    compiled = functools.partial(codec.decode, most_elements=most)
    half = most // 2
    topics = [DeleteRecordsTopic(name="", partitions=[]) for _ in range(2)]
    request = DeleteRecordsRequest(topics=topics, timeout_ms=0)
    partition = DeleteRecordsPartition(partition_index=0, offset=0)
    for topic in topics:
        topic.partitions = [partition] * half
    encoded = codec.encode(request, 2)
    decoders: tuple[Callable[..., object], ...] = (compiled, interpreter.decode)
    for decode in decoders:
        with pytest.raises(MalformedError, match="too many elements"):
            decode(DeleteRecordsRequest, 2, encoded)
    topics[0].partitions.pop()
    topics[1].partitions.pop()
    encoded = codec.encode(request, 2)
    for decode in decoders:
        assert decode(DeleteRecordsRequest, 2, encoded) == (request, len(encoded))


def test_null_where_none_is_allowed_is_malformed() -> None:
    null = (-1).to_bytes(4, signed=True)
    with pytest.raises(MalformedError):
        codec.decode(MetadataRequest, 0, null)
    assert codec.decode(MetadataRequest, 1, null) == (MetadataRequest(topics=None), 4)


def test_unknown_tagged_fields_are_skipped() -> None:
    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    encoded = codec.encode(request, 9)
    assert encoded[-1] == 0
    tagged = encoded[:-1] + b"\x02" + b"\x05\x03abc" + b"\x81\x01\x00"
    assert codec.decode(MetadataRequest, 9, tagged) == (request, len(tagged))


def test_tagged_field_equal_to_its_default_is_not_written() -> None:
    plain = FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=0, topics=[])
    named = dataclasses.replace(plain, cluster_id="c")
    assert codec.encode(named, 12) == codec.encode(plain, 12)[:-1] + b"\x01\x00\x02\x02c"


@pytest.mark.parametrize("announced", [9, 14])
def test_tagged_field_must_fill_its_announced_size(announced: int) -> None:
    answer = fetch_response(b"")
    answer.responses[0].partition_responses[0].diverging_epoch = FetchEpochEndOffset(
        epoch=1, end_offset=2
    )
    encoded = codec.encode(answer, 12)
    body = b"\x01\x00\x0d" + (1).to_bytes(4) + (2).to_bytes(8) + b"\x00"
    assert body in encoded
    wrong = encoded.replace(body, b"\x01\x00" + bytes((announced,)) + body[3:])
    for decode in (codec.decode, interpreter.decode):
        with pytest.raises(MalformedError):
            decode(FetchResponse, 12, wrong)


@pytest.mark.parametrize("decode", [codec.decode, interpreter.decode])
@pytest.mark.parametrize("topics", [1, 5])
def test_tags_that_nobody_knows_are_limited_per_message(decode: Any, topics: int) -> None:
    """Metadata 9: topics, each with a name and tags, three flags, and tags."""

    def request(tags_in_all: int) -> bytes:
        each, rest = divmod(tags_in_all, topics)
        data = write_uvarint(topics + 1)
        for count in (each + rest, *[each] * (topics - 1)):
            data += b"\x02t" + write_uvarint(count) + b"\x63\x01x" * count
        return data + bytes(4)

    message, end = decode(MetadataRequest, 9, request(MAX_UNKNOWN_TAGS))
    assert [topic.name for topic in message.topics or ()] == ["t"] * topics
    assert end == len(request(MAX_UNKNOWN_TAGS))
    with pytest.raises(MalformedError, match="too many tagged fields"):
        decode(MetadataRequest, 9, request(MAX_UNKNOWN_TAGS + 1))


@pytest.mark.parametrize("decode", [codec.decode, interpreter.decode])
def test_repeated_tags_count_as_unknown_ones(decode: Any) -> None:
    """Fetch 12 knows one tag, the cluster id, which null leaves at one byte."""
    plain = codec.encode(FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=0, topics=[]), 12)

    def request(count: int) -> bytes:
        return plain[:-1] + write_uvarint(count) + b"\x00\x01\x00" * count

    message, _ = decode(FetchRequest, 12, request(MAX_UNKNOWN_TAGS + 1))
    assert message.cluster_id is None
    with pytest.raises(MalformedError, match="too many tagged fields"):
        decode(FetchRequest, 12, request(MAX_UNKNOWN_TAGS + 2))


def test_text_that_is_not_utf8_is_malformed() -> None:
    with pytest.raises(MalformedError):
        codec.decode(MetadataRequest, 0, (1).to_bytes(4) + (2).to_bytes(2) + b"\xff\xfe")


def test_version_that_was_never_declared_is_unsupported() -> None:
    answer = ApiVersionsResponse(api_keys=[ApiVersion(api_key=1, min_version=0, max_version=1)])
    for version in (-1, 5):
        with pytest.raises(KafkaError) as refused:
            codec.encode(answer, version)
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
        with pytest.raises(KafkaError):
            codec.decode(ApiVersionsResponse, version, b"")


def test_string_too_long_for_the_wire_is_refused_in_both_styles() -> None:
    for version in (8, 9):
        request = MetadataRequest(topics=[MetadataRequestTopic(name="x" * 0x8000)])
        with pytest.raises(Exception, match=r"format|too long"):
            codec.encode(request, version)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16_383, 16_384, 2**31 - 1, 2**32 - 1])
def test_uvarint_round_trips(value: int) -> None:
    encoded = write_uvarint(value)
    assert read_uvarint(b"?" + encoded + b"?", 1) == (value, 1 + len(encoded))


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x10", b"\x80\x80\x80\x80\x80\x00"])
def test_uvarint_above_32_bits_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        read_uvarint(data, 0)


def test_an_array_of_many_numbers_is_read_and_written_in_slices() -> None:
    numbers = list(range(5 * compiler.NUMBERS_AT_ONCE + 1))
    message = ElectLeadersRequest(
        topic_partitions=[TopicPartitions(topic="t", partition_id=numbers)]
    )
    encoded = codec.encode(message, 2)
    assert finished(codec.encode_in_slices(message, 2)) == encoded
    assert sliced(ElectLeadersRequest, 2, encoded) == (message, len(encoded))
    least = len(numbers) // (compiler.NUMBERS_PER_ELEMENT * compiler.ELEMENTS_PER_SLICE)
    assert slices(codec.encode_in_slices(message, 2)) > least
    assert slices(codec.decode_in_slices(ElectLeadersRequest, 2, encoded)) > least


def test_many_small_arrays_of_numbers_end_slices() -> None:
    """A slice has as many of them as it has of few elements with large arrays."""
    count = 10 * compiler.ELEMENTS_PER_SLICE
    topics = [
        TopicPartitions(topic="t", partition_id=list(range(compiler.NUMBERS_PER_ELEMENT)))
        for _ in range(count)
    ]
    encoded = codec.encode(ElectLeadersRequest(topic_partitions=topics), 2)
    work = codec.decode_in_slices(ElectLeadersRequest, 2, encoded)
    assert slices(work) > 2 * count // compiler.ELEMENTS_PER_SLICE


def test_a_message_is_freed_in_slices_but_for_what_others_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "FREED_AT_ONCE", 50)
    topics = [
        TopicProduceData(
            name=f"{number}",
            partition_data=[PartitionProduceData(index=one, records=b"") for one in range(300)],
        )
        for number in range(3)
    ]
    kept, inner = topics[0], [topic.partition_data for topic in topics]
    partition = inner[0][0]
    message = ProduceRequest(acks=1, timeout_ms=0, topic_data=topics)
    sizes = [sum(map(len, inner)) for _ in codec.free_in_slices(message, None, b"")]
    assert not topics
    steps = [before - after for before, after in pairwise([900, *sizes, 0])]
    assert max(steps) <= codec.FREED_AT_ONCE + codec.SHORT
    assert (kept.name, kept.partition_data, partition.index) == ("0", [], 0)


@pytest.mark.parametrize("size", [1, codec.LARGE_PART_BYTES])
def test_a_message_comes_behind_the_start_it_was_given(size: int) -> None:
    data = PartitionProduceData(index=0, records=b"r" * size)
    request = ProduceRequest(
        acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )
    expected = b"start" + codec.encode(request, 8)
    sliced = codec.encode_parts_in_slices(request, 8, b"start")
    for parts in (codec.encode_parts(request, 8, b"start"), finished(sliced)):
        assert b"".join(cast("list[bytes]", parts)) == expected


def test_only_messages_without_arrays_at_any_depth_have_none() -> None:
    assert not schema.has_arrays(HeartbeatResponse)
    assert schema.has_arrays(ApiVersionsResponse)
    for api in APIS.values():
        for cls in (api.request, api.response):
            kinds = [field.type for field in schema.of(cls).fields]
            if any(kind.is_array for kind in kinds):
                assert schema.has_arrays(cls)
