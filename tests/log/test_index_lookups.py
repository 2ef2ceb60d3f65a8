"""An index is cut to its entries, or made anew, while others look things up in it.

In a process of its own: to read a map where the file has ended is a fatal signal.
"""

import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from odradek.log.segment import files
from odradek.log.segment import index as segment_index
from odradek.log.segment.index import OffsetIndex
from odradek.protocol.regions import Buffer

LOOKUPS_BESIDE_A_WRITER = """
import sys, threading
from odradek.log.segment.index import OffsetIndex

ENTRIES = 20_000  # of eight bytes: many pages
index = OffsetIndex(sys.argv[1], 0, 1 << 20)
ended = threading.Event()
wrong = []

def fill():
    for offset in range(1, ENTRIES):
        index.append(offset, offset)
    index.trim()

def look():
    while not ended.is_set():
        for offset in range(0, ENTRIES, 977):
            if not 0 <= index.lookup(offset) <= offset:
                wrong.append(offset)

fill()
sys.setswitchinterval(1e-6)
readers = [threading.Thread(target=look) for _ in range(3)]
for one in readers:
    one.start()
for _ in range(30):
    index.reset()
    fill()
ended.set()
for one in readers:
    one.join()
sys.exit(bool(wrong))
"""


def test_index_may_be_made_anew_under_lookups(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOKUPS_BESIDE_A_WRITER, tmp_path / "0.index"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_entries_added_while_a_flush_writes_are_neither_lost_nor_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush runs beside the appends."""
    index = OffsetIndex(str(tmp_path / "x.index"), 0, 8000)
    writing, go_on = threading.Event(), threading.Event()
    real = files.write_all

    def slow(fd: int, buffers: Sequence[Buffer], position: int) -> int:
        with memoryview(buffers[0]):  # as the kernel has it during the call
            writing.set()
            assert go_on.wait(30)
            return real(fd, buffers, position)

    monkeypatch.setattr(segment_index, "write_all", slow)
    index.append(10, 100)
    with ThreadPoolExecutor(3) as threads:
        flushing = threads.submit(index.flush)
        assert writing.wait(30)
        adding = threads.submit(index.append, 20, 200)
        wait([adding], 0.05)  # it has to wait for the flush
        go_on.set()
        flushing.result(30)
        adding.result(30)
    assert index.entries == 2
    assert [index.lookup(offset) for offset in (9, 15, 25)] == [0, 100, 200]
    index.flush()
    assert (tmp_path / "x.index").read_bytes()[:16] == struct.pack(">iiii", 10, 100, 20, 200)
