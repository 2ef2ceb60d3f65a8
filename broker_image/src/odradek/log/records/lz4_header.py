"""The check byte of an lz4 frame's header, right and as producers of magic 0 computed it.

The byte is bits 8 to 15 of the xxHash32 of the frame descriptor. Kafka before 0.10 took the frame's
mark into the hash, so its frames look damaged to every other reader. Inside magic 0 messages that
error belongs to the format: Kafka's brokers and clients write it there and do not check it
(KAFKA-3160).

Descriptor, after the mark of 4 bytes: flags, block size, content size of 8 bytes where bit 3 of the
flags is set, dictionary id of 4 bytes where bit 0 is set, then the check byte.
"""

_MARK_SIZE = 4
_CONTENT_SIZE_FLAG = 0x08
_DICTIONARY_FLAG = 0x01
_PRIMES = 2654435761, 2246822519, 3266489917, 668265263, 374761393
_MASK = 0xFFFFFFFF


def with_right_check(frame: bytes) -> bytes:
    """Return the frame with the check byte that the lz4 format demands."""
    return _with_check(frame, _MARK_SIZE)


def with_old_check(frame: bytes) -> bytes:
    """Return the frame with the check byte that clients of magic 0 expect."""
    return _with_check(frame, 0)


def _with_check(frame: bytes, hashed_from: int) -> bytes:
    if len(frame) <= _MARK_SIZE:
        return frame
    flags = frame[_MARK_SIZE]
    at = _MARK_SIZE + 2
    at += 8 if flags & _CONTENT_SIZE_FLAG else 0
    at += 4 if flags & _DICTIONARY_FLAG else 0
    if at >= len(frame):
        return frame  # cut off: decompression reports it
    check = xxhash32(frame[hashed_from:at]) >> 8 & 0xFF
    return frame[:at] + bytes((check,)) + frame[at + 1 :]


def xxhash32(data: bytes) -> int:
    """Return the xxHash32 of `data` with seed 0; for headers, not for bulk."""
    first, second, third, fourth, fifth = _PRIMES
    position = 0
    if len(data) >= 16:
        lanes = [first + second & _MASK, second, 0, -first & _MASK]
        while position + 16 <= len(data):
            for number in range(4):
                word = int.from_bytes(data[position : position + 4], "little")
                lanes[number] = _rotated(lanes[number] + word * second, 13) * first & _MASK
                position += 4
        value = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    else:
        value = fifth
    value += len(data)
    while position + 4 <= len(data):
        word = int.from_bytes(data[position : position + 4], "little")
        value = _rotated(value + word * third, 17) * fourth & _MASK
        position += 4
    for byte in data[position:]:
        value = _rotated(value + byte * fifth, 11) * first & _MASK
    value &= _MASK
    value = (value ^ value >> 15) * second & _MASK
    value = (value ^ value >> 13) * third & _MASK
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK
