"""The file `partition.metadata`: the topic that the folder of a partition belongs to (KIP-516).

    version: 0
    topic_id: pPhN7wW2Rxa2B9JxJ5hXBA
    czxid: 8123

The first two lines are Kafka's (since 2.8), which reads no further. The third one is ours: the
ZooKeeper transaction that created the topic's znode. It tells a topic that lost its id, or got
another one, from a topic that was deleted and created again. Kafka 2.8 with an older
`inter.broker.protocol.version` deletes the file, as it may then use the folder for another topic.
"""

import os
import re
from dataclasses import dataclass

from odradek.log.segment.files import write_atomically

FILE_NAME = "partition.metadata"

_CONTENT = re.compile(
    rb"version:\s+0\r?\ntopic_id:\s+([A-Za-z0-9_-]{22})\r?(?:\nczxid:\s+([0-9]{1,19}))?\s*"
)


class CorruptIdentityError(Exception):
    """A `partition.metadata` in another format than the one above."""


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """What tells a topic from others of the same name, before and after it.

    `topic_id` is 16 bytes in URL-safe base64 without padding, `czxid` the creation of the topic's
    znode; None where Kafka wrote the file.
    """

    topic_id: str
    czxid: int | None = None


def read(folder: str) -> TopicIdentity | None:
    """Return the topic of a partition's folder, None if it has no such file.

    Raises CorruptIdentityError, and OSError.
    """
    path = os.path.join(folder, FILE_NAME)
    try:
        with open(path, "rb") as file:
            data = file.read(1000)
    except FileNotFoundError:
        return None
    found = _CONTENT.fullmatch(data)
    if found is None:
        raise CorruptIdentityError(f"{path}: not the format of {FILE_NAME}")
    return TopicIdentity(found[1].decode(), int(found[2]) if found[2] else None)


def write(folder: str, identity: TopicIdentity) -> None:
    """Replace the file durably. Raises OSError."""
    czxid = "" if identity.czxid is None else f"\nczxid: {identity.czxid}"
    text = f"version: 0\ntopic_id: {identity.topic_id}{czxid}\n"
    write_atomically(os.path.join(folder, FILE_NAME), text.encode())
