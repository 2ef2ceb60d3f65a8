"""The headers of requests and responses.

    request   api_key i16, api_version i16, correlation_id i32, client_id nullable string, tags
    response  correlation_id i32, tags

The client id has an i16 length in every version. The tags are there in flexible versions only.
ControlledShutdown version 0 has no client id. The size of the frame is not part of the header;
`net` writes and reads it.
"""

import struct
from collections.abc import Generator
from typing import Final, NamedTuple

from odradek.protocol import codec
from odradek.protocol.api import APIS, Api, ApiKey
from odradek.protocol.primitives import LENGTH16, LENGTH32, MalformedError, skip_tagged_fields
from odradek.protocol.regions import Buffer, Part

_REQUEST_START: Final = struct.Struct(">hhi")
_CONTROLLED_SHUTDOWN: Final = int(ApiKey.CONTROLLED_SHUTDOWN)
_FLEXIBLE_FROM: Final = {
    int(key): api.flexible_from for key, api in APIS.items() if api.flexible_from is not None
}
_NEVER: Final = 0x8000
_NO_TAGS: Final = b"\0"

_tuple = tuple.__new__


class RequestHeader(NamedTuple):
    """Header of a request; the pair of key and version need not be one that is known here.

    A named tuple, not a dataclass: it is built for every request.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """Return the header and where the body starts; raises MalformedError.

    A key or version that is not known here still gives its first fields; only the body's start is
    then a guess.
    """
    try:
        key, version, correlation_id = _REQUEST_START.unpack_from(frame)
        position = _REQUEST_START.size
        if key == _CONTROLLED_SHUTDOWN and version == 0:
            return RequestHeader(key, version, correlation_id, None), position
        (length,) = LENGTH16.unpack_from(frame, position)
        position += LENGTH16.size
        client_id = None
        if length >= 0:
            start, position = position, position + length
            if position > len(frame):
                raise MalformedError("client id exceeds the frame")
            client_id = str(frame[start:position], "utf-8")
        if version >= _FLEXIBLE_FROM.get(key, _NEVER):
            if frame[position]:
                position, _ = skip_tagged_fields(frame, position, len(frame))
            else:
                position += 1
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedError(f"request header: {error}") from error
    return _tuple(RequestHeader, (key, version, correlation_id, client_id)), position


def encode_request_header(header: RequestHeader) -> bytes:
    """Return the bytes of the header of a known request."""
    start = _REQUEST_START.pack(header.api_key, header.api_version, header.correlation_id)
    if header.api_key == ApiKey.CONTROLLED_SHUTDOWN and header.api_version == 0:
        return start
    if header.client_id is None:
        start += LENGTH16.pack(-1)
    else:
        client_id = header.client_id.encode()
        start += LENGTH16.pack(len(client_id)) + client_id
    flexible = APIS[header.api_key].is_flexible(header.api_version)
    return start + _NO_TAGS if flexible else start


def encode_response_header(api: Api, version: int, correlation_id: int) -> bytes:
    """Return the bytes of the header that precedes an answer of this version."""
    start = LENGTH32.pack(correlation_id)
    return start + _NO_TAGS if version >= api.tagged_response_from else start


def decode_response_header(api: Api, version: int, frame: Buffer) -> tuple[int, int]:
    """Return the correlation id and where the body starts; raises MalformedError."""
    try:
        (correlation_id,) = LENGTH32.unpack_from(frame)
        position = LENGTH32.size
        if api.has_flexible_response_header(version):
            position, _ = skip_tagged_fields(frame, position, len(frame))
    except (struct.error, IndexError) as error:
        raise MalformedError(f"response header: {error}") from error
    return correlation_id, position


def encode_response(api: Api, version: int, correlation_id: int, response: object) -> list[Part]:
    """Return header and body of an answer, ready for the connection to send."""
    header = encode_response_header(api, version, correlation_id)
    return codec.encode_parts(response, version, header)


def encode_response_in_slices(
    api: Api, version: int, correlation_id: int, response: object
) -> Generator[None, None, list[Part]]:
    """As `encode_response`, as a generator that yields in between."""
    header = encode_response_header(api, version, correlation_id)
    return codec.encode_parts_in_slices(response, version, header)
