"""Writes the checkpoint of a query over topic `t`, as Spark does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795254846676,"conf":{}}'


def checkpoint(
    folder: Path,
    ends: Sequence[Mapping[str, int]],
    finished: int,
    start: Mapping[str, int] | None = None,
) -> Path:
    """Write `len(ends)` planned batches, of which the first `finished` are finished."""
    for kind in ("offsets", "commits", "sources/0"):
        (folder / kind).mkdir(parents=True)
        (folder / kind / ".0.crc").touch()
    begun = json.dumps({"t": start or {}})
    (folder / "sources" / "0" / "0").write_text(f"\0v1\n{begun}")
    for number, each in enumerate(ends):
        text = f"v1\n{METADATA}\n{json.dumps({'t': each})}"
        (folder / "offsets" / str(number)).write_text(text)
    for number in range(finished):
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":7}')
    return folder
