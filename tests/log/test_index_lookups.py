"""An index is cut to its entries, or made anew, while others look things up in it.

In a process of its own: to read a map where the file has ended is a fatal signal.
"""

import subprocess
import sys
from pathlib import Path

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
