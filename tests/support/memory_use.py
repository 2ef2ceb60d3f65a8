"""Measures the memory of a process."""

import resource
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()
