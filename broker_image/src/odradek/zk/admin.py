"""Topic changes as lists of ZooKeeper operations, and the rules for topic names.

The broker (asyncio), the operator (plain kazoo) and Kafka's tools create, grow and delete topics by
writing the same znodes; the controller watches them and acts. Each change is one transaction where
ZooKeeper allows it: a topic never appears without its configuration. `session.Session.multi` or
`operations.commit` applies the lists.
"""

import itertools
import logging
import operator
import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import BrokerId
from odradek.zk import znodes
from odradek.zk.operations import Create, Operation, SetData, TransactionFailedError
from odradek.zk.session import Session
from odradek.zk.znodes import BrokerRegistration, ConfigChange, TopicAssignment

LONGEST_TOPIC_NAME = 249  # with "-" and a partition number it must fit into a folder's name
# Limits of znodes that users can fill, in bytes. A server closes the session of a client that sends
# more than its jute.maxbuffer (1 MiB) at once, with all its pending requests. A topic whose
# partitions are all being reassigned has about 3.5 times its normal size.
LARGEST_TOPIC = 300_000
LARGEST_REASSIGNED_TOPIC = 1_000_000
LARGEST_CONFIG = 600_000
# More partitions do not fit into LARGEST_TOPIC, with one replica each: `"0":[0],`.
MOST_PARTITIONS = LARGEST_TOPIC // 8
logger = logging.getLogger(__name__)

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_SEPARATOR = re.compile(r"[._]")


def check_topic_name(topic: str) -> None:
    """Raise KafkaError INVALID_TOPIC_EXCEPTION for a name that Kafka does not allow."""
    if not topic:
        reason = "it is empty"
    elif topic in (".", ".."):
        reason = "it is '.' or '..'"
    elif len(topic) > LONGEST_TOPIC_NAME:
        reason = f"it is {len(topic)} characters long, the limit is {LONGEST_TOPIC_NAME}"
    elif not _TOPIC_NAME.fullmatch(topic):
        reason = "it has other characters than ASCII letters, digits, '.', '_' and '-'"
    else:
        return
    raise KafkaError(
        ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name {topic[:300]!r} is illegal: {reason}"
    )


def is_legal_topic_name(topic: str) -> bool:
    """Return whether a topic may have this name."""
    try:
        check_topic_name(topic)
    except KafkaError:
        return False
    return True


def metric_name(topic: str) -> str:
    """Return the topic's name in metrics, which have '_' for '.' too."""
    return topic.replace(".", "_")


def check_collision(topic: str, *existing: Collection[str]) -> None:
    """Raise INVALID_TOPIC_EXCEPTION if an existing topic has the same name in metrics.

    Among thousands of topics in a set or a dictionary, it looks at few.
    """
    rivals = {name for names in existing for name in _same_in_metrics(topic, names)} - {topic}
    if rivals:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic {topic!r} collides with existing topics: {', '.join(sorted(rivals))}",
        )


def _same_in_metrics(topic: str, names: Collection[str]) -> Iterator[str]:
    """Yield those of the names that metrics show as `topic`: each '.' and '_' may be the other."""
    first, *others = _SEPARATOR.split(topic)
    if 2 ** len(others) > len(names):
        shared = metric_name(topic)
        yield from (name for name in names if metric_name(name) == shared)
        return
    for separators in itertools.product("._", repeat=len(others)):
        name = first + "".join(map(operator.add, separators, others))
        if name in names:
            yield name


def check_partition_count(count: int) -> None:
    """Raise INVALID_PARTITIONS for more partitions than one znode can hold, however few replicas
    they have. A setting may ask for any number: their replicas must not be chosen before.
    """
    if count > MOST_PARTITIONS:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{count} partitions do not fit into ZooKeeper; the limit of one topic is below "
            f"{MOST_PARTITIONS}.",
        )


def check_topic_size(assignment: TopicAssignment) -> None:
    """Raise INVALID_PARTITIONS for more partitions and replicas than one znode can hold."""
    size = len(znodes.encode_topic(assignment))
    if size > LARGEST_TOPIC:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The replicas of {len(assignment.partitions)} partitions take {size} bytes in "
            f"ZooKeeper; the limit of one topic is {LARGEST_TOPIC}.",
        )


def check_config_size(config: Mapping[str, str]) -> None:
    """Raise INVALID_CONFIG for more configs than one znode can hold."""
    size = len(znodes.encode_config(config))
    if size > LARGEST_CONFIG:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"The settings take {size} bytes in ZooKeeper; the limit is {LARGEST_CONFIG}.",
        )


def new_topic_id() -> str:
    """Return a random topic id (KIP-516); none begins with '-', so that commands can take it."""
    while True:
        topic_id = znodes.new_topic_id(uuid.uuid4())
        if not topic_id.startswith("-"):
            return topic_id


def with_new_id(assignment: TopicAssignment) -> TopicAssignment:
    """Return the assignment of a topic to be created, with its id."""
    return replace(assignment, topic_id=new_topic_id())


def create_topic(
    topic: str,
    assignment: TopicAssignment,
    config: Mapping[str, str],
    *,
    config_exists: bool = False,
) -> list[Operation]:
    """Return the transaction that creates a topic: first its configuration, then its partitions.

    `config_exists` replaces a configuration that an earlier topic of this name left behind.
    """
    path, data = znodes.topic_config_path(topic), znodes.encode_config(config)
    return [
        SetData(path, data) if config_exists else Create(path, data),
        Create(znodes.topic_path(topic), znodes.encode_topic(assignment)),
    ]


def grow_topic(topic: str, assignment: TopicAssignment, version: int) -> list[Operation]:
    """Return the transaction that sets all partitions of a topic, if its znode has `version`."""
    return [SetData(znodes.topic_path(topic), znodes.encode_topic(assignment), version)]


def request_deletion(topic: str) -> list[Operation]:
    """Return the transaction that requests the deletion of a topic."""
    return [Create(znodes.delete_topic_path(topic))]


def change_config(
    entity_type: str, name: str, config: Mapping[str, str], version: int | None
) -> list[Operation]:
    """Return the transaction that replaces an entity's overrides and notifies the brokers.

    `version` is the version of its znode that was read, None if there was no znode.
    """
    path, data = znodes.config_path(entity_type, name), znodes.encode_config(config)
    notice = znodes.encode_config_change(ConfigChange(f"{entity_type}/{name}"))
    return [
        Create(path, data) if version is None else SetData(path, data, version),
        Create(
            f"{znodes.CONFIG_CHANGES_PATH}/{znodes.CONFIG_CHANGE_PREFIX}", notice, sequence=True
        ),
    ]


# --- the same from asyncio, with Kafka's error codes --------------------------------------------


async def apply_create_topic(
    session: Session, topic: str, assignment: TopicAssignment, config: Mapping[str, str]
) -> None:
    """Create a topic with a new id. Raises KafkaError TOPIC_ALREADY_EXISTS."""
    config_exists = False
    assignment = with_new_id(assignment)
    while True:
        try:
            wanted = create_topic(topic, assignment, config, config_exists=config_exists)
            await session.multi(wanted)
        except TransactionFailedError as failure:
            is_config = failure.index == 0
            if is_config and isinstance(failure.error, NodeExistsError | NoNodeError):
                if await session.exists(znodes.topic_path(topic)) is None:
                    config_exists = isinstance(failure.error, NodeExistsError)
                    continue
            elif not isinstance(failure.error, NodeExistsError):
                raise
            raise KafkaError(
                ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic}' already exists."
            ) from None
        return


async def apply_grow_topic(
    session: Session, topic: str, added: Mapping[int, tuple[BrokerId, ...]]
) -> None:
    """Add partitions to a topic.

    Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION, REASSIGNMENT_IN_PROGRESS, or INVALID_PARTITIONS if
    a partition exists already or the znode would be too large.
    """
    path = znodes.topic_path(topic)
    while True:
        try:
            data, stat = await session.get(path)
            current = znodes.decode_topic(path, data)
            if current.partitions.keys() & added.keys():
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"Topic '{topic}' already has {len(current.partitions)} partitions.",
                )
            if current.adding or current.removing:
                raise KafkaError(
                    ErrorCode.REASSIGNMENT_IN_PROGRESS, f"Topic '{topic}' is being reassigned."
                )
            grown = TopicAssignment({**current.partitions, **added}, topic_id=current.topic_id)
            check_topic_size(grown)
            await session.multi(grow_topic(topic, grown, stat.version))
        except NoNodeError:
            raise _unknown_topic(topic) from None
        except TransactionFailedError as failure:
            if isinstance(failure.error, BadVersionError):
                continue  # the topic changed meanwhile: read it again
            if isinstance(failure.error, NoNodeError):
                raise _unknown_topic(topic) from None
            raise
        return


async def partition_count(session: Session, topic: str) -> int:
    """Return how many partitions a topic has. Raises UNKNOWN_TOPIC_OR_PARTITION, ZnodeError."""
    path = znodes.topic_path(topic)
    try:
        data, _ = await session.get(path)
    except NoNodeError:
        raise _unknown_topic(topic) from None
    return len(znodes.decode_topic(path, data).partitions)


async def apply_request_deletion(session: Session, topic: str) -> None:
    """Request a deletion; repeating it is no error. Raises UNKNOWN_TOPIC_OR_PARTITION."""
    if await session.exists(znodes.topic_path(topic)) is None:
        raise _unknown_topic(topic)
    try:
        await session.multi(request_deletion(topic))
    except TransactionFailedError as failure:
        if not isinstance(failure.error, NodeExistsError):
            raise


def _unknown_topic(topic: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{topic}' does not exist.")


async def read_brokers(session: Session) -> dict[BrokerId, BrokerRegistration]:
    """Return the registered brokers; unreadable registrations are passed over, with a log line."""
    names = await session.children(znodes.BROKER_IDS_PATH)
    found = await session.get_all(f"{znodes.BROKER_IDS_PATH}/{name}" for name in names)
    registered, unreadable = znodes.decode_brokers(
        {path: data for path, (data, _) in found.items()}
    )
    for error in unreadable:
        logger.warning("passing over the registration of a broker: %s", error)
    return registered
