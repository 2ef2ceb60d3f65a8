"""How much memory a process takes."""

import resource
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Bytes of a process that are in memory at present."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()
