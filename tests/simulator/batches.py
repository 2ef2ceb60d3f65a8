"""Batches as the simulated logs and the simulated network have them: values instead of bytes.

What coordinators write comes as bytes, and they read it as bytes: such batches keep their payload.
"""

from __future__ import annotations

import marshal
from dataclasses import dataclass
from typing import NamedTuple

from odradek.log.records import batch, contents
from odradek.log.records.batch import CONTROL, TRANSACTIONAL, Header
from odradek.log.records.contents import Marker


class Batch(NamedTuple):
    """Records that were written together.

    Of a marker, `marker` is the coordinator epoch and whether it commits; `payload` are the bytes
    of what a coordinator wrote for itself.
    """

    base_offset: int
    leader_epoch: int
    producer_id: int
    base_sequence: int
    values: tuple[str, ...]
    producer_epoch: int = 0
    attributes: int = 0
    marker: tuple[int, bool] | None = None
    payload: bytes = b""

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self.base_offset + len(self.values)

    @property
    def is_transactional(self) -> bool:
        """Return whether readers of committed records have to know how its transaction ended."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_from_client(self) -> bool:
        """Return whether a producer wrote it, so that no other batch has its values."""
        return self.base_sequence >= 0

    def header(self) -> Header:
        """Return the header fields that the producer states read."""
        count = len(self.values)
        return Header(
            self.base_offset, 0, self.leader_epoch, 2, 0, self.attributes, count - 1, 0, 0,
            self.producer_id, self.producer_epoch, self.base_sequence, count,
        )  # fmt: skip

    def end_of_transaction(self) -> Marker | None:
        """Return the marker of a control batch."""
        return None if self.marker is None else Marker(*self.marker)

    def data(self) -> bytes:
        """Return the bytes of what a coordinator wrote for itself, at their place in the log."""
        header = batch.parse(self.payload)
        return b"".join(batch.stamp(self.payload, header, self.base_offset, self.leader_epoch))


def from_coordinator(data: bytes) -> Batch:
    """Return the batch of a coordinator: a marker, or records of its topic."""
    header = batch.parse(data)
    if not header.attributes & CONTROL:
        values = tuple(f"{one.key!r}={one.value!r}" for one in contents.decode(data, 0))
        return Batch(0, -1, header.producer_id, header.base_sequence, values, payload=data)
    marker = contents.marker_of(header, data)
    assert marker is not None
    outcome = "commits" if marker.commits else "aborts"
    return Batch(
        0,
        -1,
        header.producer_id,
        header.base_sequence,
        (f"{header.producer_id} {outcome} in epoch {header.producer_epoch}",),
        header.producer_epoch,
        header.attributes,
        (marker.coordinator_epoch, marker.commits),
    )


def pack(batches: list[Batch]) -> bytes:
    """Return batches as the network carries them."""
    return marshal.dumps([tuple(one) for one in batches])


def unpack(data: bytes) -> list[Batch]:
    """Return the batches that `pack` packed."""
    return [Batch(*one) for one in marshal.loads(data)]


@dataclass(slots=True)
class Region:
    """A range of a log: in a response, or for a coordinator that reads its topic."""

    data: bytes

    @property
    def length(self) -> int:
        """Return the number of bytes."""
        return len(self.data)

    def read(self) -> bytes:
        """Return the bytes of what coordinators wrote for themselves."""
        return b"".join(one.data() for one in unpack(self.data))

    def close(self) -> None:
        """Do nothing: no file is open."""

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
