"""The four codecs of record batches, with bounded output.

gzip and zstd are plain streams. lz4 is the frame format with independent blocks of 64 KiB, all that
Kafka's Java reader accepts. snappy is what Java clients write (the xerial block stream: an 8-byte
mark, two versions, then length-prefixed raw blocks) or, from other clients, one raw block.
Decompression never produces more than `limit` bytes: a bomb costs the limit, not the machine
(CVE-2023-34455 and its kin).
"""

import struct
from collections.abc import Callable

import cramjam

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
CODECS = {"uncompressed": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
"""Values of compression.type; `producer` keeps what came."""

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEAD = _XERIAL + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
# Frame mark, flags (version 1, independent blocks), block size 64 KiB, check byte of those two.
_LZ4_HEAD = bytes.fromhex("04224d18604082")
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 0x80000000
_LZ4_END = bytes(4)
_FIRST_GUESS = 64 * 1024

View = bytes | bytearray | memoryview


class CompressionError(Exception):
    """Bytes the codec cannot read, or more output than allowed (`too_large`)."""

    def __init__(self, reason: str, *, too_large: bool = False) -> None:
        super().__init__(reason)
        self.too_large = too_large


def compress(codec: int, data: View) -> bytes:
    """Compress `data` as a Java client would."""
    if codec == NONE:
        return bytes(data)
    if codec == SNAPPY:
        return _compress_xerial(data)
    if codec == LZ4:
        return _compress_lz4(data)
    return bytes((cramjam.gzip if codec == GZIP else cramjam.zstd).compress(data))


def decompress(codec: int, data: View, limit: int) -> bytes | memoryview:
    """Decompress into at most `limit` bytes. Raises CompressionError."""
    if codec == NONE:
        return memoryview(data)
    if codec == SNAPPY:
        return _decompress_snappy(data, limit)
    if codec == GZIP:
        return _into_bounded(cramjam.gzip.decompress_into, data, limit)
    if codec == LZ4:
        return _into_bounded(cramjam.lz4.decompress_into, data, limit)
    if codec == ZSTD:
        return _into_bounded(cramjam.zstd.decompress_into, data, limit)
    raise CompressionError(f"compression codec {codec}")


def _into_bounded(into: Callable[[View, bytearray], int], data: View, limit: int) -> memoryview:
    """Try ever larger buffers: the formats need not say how long their content is."""
    size = min(limit, max(_FIRST_GUESS, 4 * len(data)))
    while True:
        buffer = bytearray(size)
        try:
            return memoryview(buffer)[: into(data, buffer)]
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise CompressionError(str(error)) from error
            if size >= limit:
                raise CompressionError(f"more than {limit} bytes", too_large=True) from error
        size = min(limit, size * 4)


def _compress_lz4(data: View) -> bytes:
    view = memoryview(data)
    parts = [_LZ4_HEAD]
    for start in range(0, len(view), _LZ4_BLOCK):
        plain = view[start : start + _LZ4_BLOCK]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += [struct.pack("<I", len(block)), block]
        else:
            parts += [struct.pack("<I", len(plain) | _LZ4_STORED), bytes(plain)]
    parts.append(_LZ4_END)
    return b"".join(parts)


def _compress_xerial(data: View) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEAD]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += [struct.pack(">i", len(block)), block]
    return b"".join(parts)


def _decompress_snappy(data: View, limit: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL)]) != _XERIAL:
        return _raw_block(view, limit)
    parts: list[bytes] = []
    position, total = len(_XERIAL_HEAD), 0
    while position < len(view):
        if len(view) - position < 4:
            raise CompressionError("snappy block length cut off")
        (length,) = struct.unpack_from(">i", view, position)
        position += 4
        if not 0 <= length <= len(view) - position:
            raise CompressionError(f"snappy block of {length} bytes")
        parts.append(_raw_block(view[position : position + length], limit - total))
        total += len(parts[-1])
        position += length
    return b"".join(parts)


def _raw_block(block: memoryview, limit: int) -> bytes:
    try:
        length = cramjam.snappy.decompress_raw_len(block)
        if length > limit:
            raise CompressionError(f"more than {limit} bytes", too_large=True)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CompressionError(str(error)) from error
