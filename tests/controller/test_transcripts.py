"""Transcripts of the controller's flows, replayed against the pure core."""

import os
from pathlib import Path

import pytest

from tests.controller import transcript

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_core_acts_as_the_transcript_says(path: Path) -> None:
    """Set ODRADEK_RECORD=1 to record the present actions of the core, and review the diff."""
    now = transcript.replay(path.read_text())
    if os.environ.get("ODRADEK_RECORD"):
        path.write_text(now)
    assert now == path.read_text()
