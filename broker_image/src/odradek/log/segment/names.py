"""The names of a segment's files: the base offset, and a suffix that says what is in the file."""

from odradek.properties import LONG_MAX

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def file_name(offset: int, suffix: str) -> str:
    """Return Kafka's name of a segment file: the offset in 20 digits, then the suffix."""
    return f"{offset:020d}{suffix}"


def base_offset_of(stem: str) -> int | None:
    """Return the offset of a segment file's name without suffix; None: no broker gave this name."""
    if len(stem) != 20 or not (stem.isascii() and stem.isdecimal()):
        return None
    offset = int(stem)
    return offset if offset <= LONG_MAX else None
