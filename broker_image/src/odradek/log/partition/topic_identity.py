"""The file `partition.metadata`: the topic that the folder of a partition belongs to (KIP-516).

    version: 0
    topic_id: pPhN7wW2Rxa2B9JxJ5hXBA
    czxid: 8123
    zookeeper: 1763855560123

The first two lines are Kafka's (since 2.8), which reads no further. The others are ours: the
ZooKeeper transaction that created the topic's znode, and the creation time of `/cluster/id`, by
which one ZooKeeper is told from another that replaces it. They tell a topic that lost its id, or
got another one, from a topic that was deleted and created again. Kafka 2.8 with an older
`inter.broker.protocol.version` deletes the file, as it may then use the folder for another topic.
"""

import os
import re
from dataclasses import dataclass

from odradek.log.segment.files import open_file, read_file, sync, write_all

FILE_NAME = "partition.metadata"
FORMER_MARK = "had-former-topic"
"""An empty file in the folder of a log whose topic was made anew under the name of a former one.
Kafka ignores it, and so do older releases, to which a further line above would be damage.
"""

_CONTENT = re.compile(
    rb"version:\s+0\r?\ntopic_id:\s+([A-Za-z0-9_-]{22})\r?"
    rb"(?:\nczxid:\s+([0-9]{1,19})\nzookeeper:\s+([0-9]{1,19}))?\s*"
)


class CorruptIdentityError(Exception):
    """A `partition.metadata` in another format than the one above."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The creation of a topic: the czxid of its znode, in the ZooKeeper whose `/cluster/id` was
    created at `zookeeper_ms` (ms since 1970).
    """

    czxid: int
    zookeeper_ms: int


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """What tells a topic from others of the same name, before and after it.

    `topic_id` is 16 bytes in URL-safe base64 without padding. `incarnation` is None where Kafka
    wrote the file.
    """

    topic_id: str
    incarnation: Incarnation | None = None

    def __str__(self) -> str:
        made = self.incarnation
        if made is None:
            return f"topic id {self.topic_id}"
        return f"topic id {self.topic_id} czxid {made.czxid} zookeeper {made.zookeeper_ms}"


def read(folder: str) -> TopicIdentity | None:
    """Return the topic of a partition's folder, None if it has no such file.

    Raises CorruptIdentityError, and OSError.
    """
    path = os.path.join(folder, FILE_NAME)
    try:
        data = read_file(path)
    except FileNotFoundError:
        return None
    found = _CONTENT.fullmatch(data)
    if found is None:
        raise CorruptIdentityError(f"{path}: not the format of {FILE_NAME}")
    made = Incarnation(int(found[2]), int(found[3])) if found[2] else None
    return TopicIdentity(found[1].decode(), made)


def write(folder: str, identity: TopicIdentity) -> None:
    """Replace the file. Raises OSError.

    The content is on the disk before the name, which the first flush of the log makes durable with
    the others of its folder. Kafka does not start on an empty file.
    """
    made = identity.incarnation
    lines = ["version: 0", f"topic_id: {identity.topic_id}"]
    if made is not None:
        lines += [f"czxid: {made.czxid}", f"zookeeper: {made.zookeeper_ms}"]
    path = os.path.join(folder, FILE_NAME)
    temporary = path + ".tmp"
    fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(fd, ["\n".join([*lines, ""]).encode()], 0)
        sync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)


def mark_former(folder: str) -> None:
    """Make the mark of a topic that had a former one, and the folder if there is none. Raises
    OSError.

    As with `write`, the first flush of the log makes the name durable.
    """
    os.makedirs(folder, exist_ok=True)
    os.close(open_file(os.path.join(folder, FORMER_MARK), os.O_WRONLY | os.O_CREAT))
