"""Headers, byte by byte, in the versions where they differ; the error codes."""

import pytest

from odradek.protocol import codec, headers
from odradek.protocol.api import APIS, ApiKey
from odradek.protocol.codec import MalformedError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.headers import RequestHeader
from odradek.protocol.messages.api_versions import ApiVersionsResponse
from odradek.protocol.messages.groups import HeartbeatResponse
from odradek.protocol.primitives import MAX_UNKNOWN_TAGS, write_uvarint

HEADERS = [
    pytest.param(RequestHeader(3, 8, 7, "me"), "00030008 00000007 00026d65", id="plain"),
    pytest.param(RequestHeader(3, 9, 7, "me"), "00030009 00000007 00026d65 00", id="flexible"),
    pytest.param(RequestHeader(3, 8, 7, None), "00030008 00000007 ffff", id="no-client-id"),
    pytest.param(RequestHeader(18, 3, 7, ""), "00120003 00000007 0000 00", id="api-versions"),
    pytest.param(RequestHeader(7, 0, 7, None), "00070000 00000007", id="controlled-shutdown-0"),
    pytest.param(RequestHeader(7, 1, 7, "me"), "00070001 00000007 00026d65", id="later-one"),
]


@pytest.mark.parametrize(("header", "encoded"), HEADERS)
def test_request_header_is_these_bytes(header: RequestHeader, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert headers.encode_request_header(header) == data
    assert headers.decode_request_header(data + b"body") == (header, len(data))
    assert headers.decode_request_header(memoryview(data)) == (header, len(data))


@pytest.mark.parametrize(("header", "encoded"), HEADERS)
def test_cut_request_header_is_malformed(header: RequestHeader, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    for cut in range(len(data)):
        with pytest.raises(MalformedError):
            headers.decode_request_header(data[:cut])


def test_client_id_longer_than_the_frame_is_malformed() -> None:
    with pytest.raises(MalformedError):
        headers.decode_request_header(bytes.fromhex("00030008 00000007 7fff 6d65"))


def test_tags_of_a_request_header_are_skipped() -> None:
    data = bytes.fromhex("00030009 00000007 0000 01 05 02 abcd")
    assert headers.decode_request_header(data) == (RequestHeader(3, 9, 7, ""), len(data))


@pytest.mark.parametrize("count", [MAX_UNKNOWN_TAGS, MAX_UNKNOWN_TAGS + 1])
def test_tags_of_a_header_are_limited(count: int) -> None:
    tags = write_uvarint(count) + b"\x05\x00" * count
    request = bytes.fromhex("00030009 00000007 0000") + tags
    response = bytes.fromhex("00000009") + tags
    if count <= MAX_UNKNOWN_TAGS:
        assert headers.decode_request_header(request)[1] == len(request)
        assert headers.decode_response_header(APIS[12], 4, response) == (9, len(response))
        return
    with pytest.raises(MalformedError):
        headers.decode_request_header(request)
    with pytest.raises(MalformedError):
        headers.decode_response_header(APIS[12], 4, response)


def test_unknown_key_and_version_still_give_the_correlation_id() -> None:
    for start in ("7abc0000", "00127fff"):
        header, _ = headers.decode_request_header(bytes.fromhex(start + "00000007 0000 00"))
        assert header.correlation_id == 7
        assert header.api_key in (0x7ABC, 18)


@pytest.mark.parametrize(
    ("key", "version", "encoded"),
    [(12, 3, "00000009"), (12, 4, "0000000900"), (18, 3, "00000009"), (18, 4, "00000009")],
)
def test_response_header_is_these_bytes(key: int, version: int, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert headers.encode_response_header(APIS[key], version, 9) == data
    assert headers.decode_response_header(APIS[key], version, data + b"?") == (9, len(data))
    for cut in range(len(data)):
        with pytest.raises(MalformedError):
            headers.decode_response_header(APIS[key], version, data[:cut])


def test_encoded_response_is_header_and_body_in_one_piece() -> None:
    answer = HeartbeatResponse(throttle_time_ms=1, error_code=2)
    for version in range(5):
        parts = headers.encode_response(APIS[12], version, 9, answer)
        header = headers.encode_response_header(APIS[12], version, 9)
        assert parts == [header + codec.encode(answer, version)]


def test_refusal_of_an_unknown_api_versions_version_is_readable_by_everybody() -> None:
    """KIP-511: error 35 in the layout of version 0, whatever was asked."""
    answer = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[])
    parts = headers.encode_response(APIS[ApiKey.API_VERSIONS], 0, 5, answer)
    assert parts == [bytes.fromhex("00000005 0023 00000000")]


def test_error_codes_have_no_gap_and_kafkas_numbers() -> None:
    assert ErrorCode.NONE.value == 0
    assert ErrorCode.UNKNOWN_SERVER_ERROR.value == -1
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.value == 6
    assert ErrorCode.FENCED_LEADER_EPOCH.value == 74
    assert sorted(ErrorCode) == list(range(-1, len(ErrorCode) - 1))


def test_kafka_error_carries_code_and_message() -> None:
    error = KafkaError(ErrorCode.INVALID_CONFIG, "no such key")
    assert (error.code, error.message) == (ErrorCode.INVALID_CONFIG, "no such key")
    assert str(error) == "INVALID_CONFIG: no such key"
    assert str(KafkaError(ErrorCode.NOT_CONTROLLER)) == "NOT_CONTROLLER"
