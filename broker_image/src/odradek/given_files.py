"""Files that a user names: what is read of them is bounded, as /dev/zero would take all memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 64 * 1024**2


def read(path: Path) -> bytes:
    """Return what is in a file. Raises OSError, also if it is larger than MOST_BYTES."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def read_text(path: Path) -> str:
    """Return the text in a file of UTF-8, without the mark that some editors write first.

    Raises OSError as `read` does, and UnicodeDecodeError.
    """
    return read(path).decode("utf-8-sig")
