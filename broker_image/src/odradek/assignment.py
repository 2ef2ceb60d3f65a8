"""Assignment of replicas to brokers (row R1), and of partitions to consumer threads (row G1).

Replicas are assigned as Kafka's own tools do it, so that a topic looks the same whoever creates it.
The first replica of partition p goes to the broker at (start + p) mod n of the sorted list. The
others follow with a shift that grows by one after every n partitions, so that the followers of one
leader are spread over all brokers. If brokers have racks, the list alternates between racks, and a
broker is skipped while another rack has no replica. If brokers share nodes, no two replicas of a
partition do: without racks the nodes are the racks, otherwise they count within them.

Everything here is pure: the random start is an argument.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest
from random import Random

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import BrokerId, TopicPartition

Replicas = dict[int, tuple[BrokerId, ...]]
# The node of each broker, where several may share one.
Nodes = Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Start:
    """The start of an assignment: the index of partition 0's first replica, and the first shift."""

    index: int
    shift: int

    @classmethod
    def fixed(cls, index: int) -> "Start":
        """Return a start with equal index and shift, as Kafka uses to add partitions."""
        return cls(index, index)

    @classmethod
    def draw(cls, random: Random, brokers: int) -> "Start":
        """Return a random start, as Kafka uses for a new topic, to spread topics over brokers."""
        return cls(random.randrange(max(1, brokers)), random.randrange(max(1, brokers)))


def assign_replicas(
    brokers: Mapping[BrokerId, str | None],
    partitions: int,
    replication_factor: int,
    start: Start,
    first_partition: int = 0,
    nodes: Nodes | None = None,
) -> Replicas:
    """Return the replicas of `partitions` partitions from `first_partition` on, preferred first.

    `brokers` maps each live broker to its rack, or all of them to None; `nodes` has the node of
    each, of which a partition has one replica at most. Raise KafkaError: INVALID_PARTITIONS,
    INVALID_REPLICATION_FACTOR, or INVALID_REQUEST if only some have a rack.
    """
    if partitions <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Number of partitions {partitions} must be larger than 0.",
        )
    if replication_factor <= 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor {replication_factor} must be larger than 0.",
        )
    if replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {replication_factor} larger than available brokers: "
            f"{len(brokers)}.",
        )
    of_brokers = {broker: nodes.get(broker, str(broker)) for broker in brokers} if nodes else {}
    if of_brokers and replication_factor > len(known := set(of_brokers.values())):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {replication_factor} larger than available nodes: {len(known)}.",
        )
    racks = {rack for rack in brokers.values() if rack is not None}
    if not racks and of_brokers:
        return _assign_by_rack(
            of_brokers, of_brokers, partitions, replication_factor, start, first_partition
        )
    if not racks:
        return _assign_plain(
            sorted(brokers), partitions, replication_factor, start, first_partition
        )
    without = sorted(broker for broker, rack in brokers.items() if rack is None)
    if without:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Not all brokers have a rack: {len(without)} of {len(brokers)} have none: {without}.",
        )
    located = {broker: rack for broker, rack in brokers.items() if rack is not None}
    return _assign_by_rack(
        located, of_brokers, partitions, replication_factor, start, first_partition
    )


def forget_partial_racks(brokers: Mapping[BrokerId, str | None]) -> dict[BrokerId, str | None]:
    """Return the brokers without racks unless all have one (Kafka's RackAwareMode.Safe).

    Automatic topic creation uses this: it does not fail if a broker has no rack.
    """
    if all(rack is not None for rack in brokers.values()):
        return dict(brokers)
    return dict.fromkeys(brokers, None)


def _rounds(
    partitions: int, start: Start, first_partition: int, brokers: int
) -> Iterable[tuple[int, int, int]]:
    """Yield (partition, index of its first replica, shift of the others)."""
    shift = start.shift
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % brokers == 0:
            shift += 1
        yield partition, (partition + start.index) % brokers, shift


def _place(first: int, shift: int, replica: int, brokers: int) -> int:
    """Return the index of follower `replica`: never that of the first, whatever the shift."""
    return (first + 1 + (shift + replica) % (brokers - 1)) % brokers


def _assign_plain(
    brokers: Sequence[BrokerId], partitions: int, factor: int, start: Start, first_partition: int
) -> Replicas:
    size = len(brokers)
    return {
        partition: (
            brokers[first],
            *(brokers[_place(first, shift, replica, size)] for replica in range(factor - 1)),
        )
        for partition, first, shift in _rounds(partitions, start, first_partition, size)
    }


def alternate_racks(racks: Mapping[BrokerId, str]) -> list[BrokerId]:
    """Return the brokers in an order that alternates between racks as long as possible."""
    by_rack: dict[str, list[BrokerId]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    columns = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for column in columns for broker in column if broker is not None]


def _assign_by_rack(
    racks: Mapping[BrokerId, str],
    nodes: Mapping[BrokerId, str],
    partitions: int,
    factor: int,
    start: Start,
    first_partition: int,
) -> Replicas:
    brokers = alternate_racks(racks)
    size, rack_count = len(brokers), len(set(racks.values()))
    assigned: Replicas = {}
    for partition, first, shift in _rounds(partitions, start, first_partition, size):
        replicas = [brokers[first]]
        used_racks = {racks[brokers[first]]}
        used_nodes = {nodes.get(brokers[first])} - {None}
        # Candidates repeat with period size - 1 and visit every other broker, so this ends.
        candidates = (
            brokers[_place(first, shift * rack_count, attempt, size)] for attempt in count()
        )
        skipped = 0
        while len(replicas) < factor:
            broker = next(candidates)
            # A node of two racks, which it was just moved between, may be the only one of its rack.
            rack_is_free = (
                racks[broker] not in used_racks or len(used_racks) == rack_count or skipped >= size
            )
            if not rack_is_free or broker in replicas or nodes.get(broker) in used_nodes:
                skipped += 1
                continue
            skipped = 0
            replicas.append(broker)
            used_racks.add(racks[broker])
            used_nodes |= {nodes.get(broker)} - {None}
        assigned[partition] = tuple(replicas)
    return assigned


def add_partitions(
    existing: Mapping[int, Sequence[int]],
    brokers: Mapping[BrokerId, str | None],
    partitions: int,
    nodes: Nodes | None = None,
) -> Replicas:
    """Return the replicas of the new partitions of a topic that grows to `partitions` partitions.

    The assignment starts at the first replica of partition 0, with its replication factor. Raise
    KafkaError: INVALID_PARTITIONS if the topic would not grow, and as `assign_replicas`.
    """
    check_growth(len(existing), partitions)
    if not existing.get(0):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The topic has no replicas of partition 0."
        )
    ordered = sorted(brokers)
    first = existing[0][0]
    index = next((place for place, broker in enumerate(ordered) if broker >= first), 0)
    return assign_replicas(
        brokers,
        partitions - len(existing),
        len(existing[0]),
        Start.fixed(index),
        len(existing),
        nodes,
    )


def check_growth(existing: int, wanted: int) -> None:
    """Raise INVALID_PARTITIONS unless `wanted` is more than the topic has."""
    if wanted <= existing:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic currently has {existing} partitions, which is higher than or equal to the "
            f"requested {wanted}.",
        )


def check_manual(
    assignment: Mapping[int, Sequence[int]],
    brokers: Collection[int],
    first_partition: int = 0,
    replication_factor: int | None = None,
    nodes: Nodes | None = None,
) -> Replicas:
    """Return a manual assignment, sorted by partition, if it is valid.

    Partitions must be consecutive from `first_partition`. Lists must have the same length
    (`replication_factor` if given), no duplicates, known brokers only, and no two of one node.
    Raise KafkaError INVALID_REPLICA_ASSIGNMENT.
    """
    if sorted(assignment) != list(range(first_partition, first_partition + len(assignment))):
        raise _bad_assignment(
            f"Partitions must be consecutive from {first_partition}: {sorted(assignment)}."
        )
    if not assignment:
        raise _bad_assignment("No partition is assigned.")
    factor = replication_factor or len(assignment[first_partition])
    known = set(brokers)
    for partition, replicas in sorted(assignment.items()):
        if not replicas:
            raise _bad_assignment(f"Partition {partition} has no replicas.")
        if min(replicas) < 0:
            raise _bad_assignment(f"Partition {partition} has a negative broker id: {replicas}.")
        if len(set(replicas)) != len(replicas):
            raise _bad_assignment(f"Partition {partition} names a broker twice: {list(replicas)}.")
        if len(replicas) != factor:
            raise _bad_assignment(
                f"All partitions should have the same number of replicas: partition {partition} "
                f"has {len(replicas)} and not {factor}."
            )
        unknown = [broker for broker in replicas if broker not in known]
        if unknown:
            raise _bad_assignment(
                f"Partition {partition} names unknown brokers {unknown}; known are {sorted(known)}."
            )
        if reason := same_node(partition, replicas, nodes or {}):
            raise _bad_assignment(reason)
    return {
        partition: tuple(map(BrokerId, replicas))
        for partition, replicas in sorted(assignment.items())
    }


def same_node(partition: object, replicas: Iterable[int], nodes: Nodes) -> str | None:
    """Return which two of the replicas have the same node; None if no two are known to."""
    found: dict[str, int] = {}
    for broker in replicas:
        node = nodes.get(broker)
        if node is None:
            continue
        if node in found:
            return (
                f"Partition {partition} has two replicas on one node: brokers {found[node]} and "
                f"{broker} are on {node}."
            )
        found[node] = broker
    return None


def _bad_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def thread_names(subscriptions: Mapping[str, int]) -> list[str]:
    """Return the thread names `ID-n` of consumers with these numbers of threads, sorted."""
    return sorted(
        f"{consumer}-{n}" for consumer, count in subscriptions.items() for n in range(count)
    )


def assign_range(partitions: Iterable[int], threads: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the consecutive partitions of one topic that each thread owns.

    Threads are sorted by name. Each gets P div C partitions, and the first P mod C threads get one
    more, as with the old consumer's RangeAssignor. If there are fewer partitions than threads, the
    last threads get none.
    """
    ordered, names = sorted(partitions), sorted(threads)
    if not names:
        return {}
    share, extra = divmod(len(ordered), len(names))
    owned = {}
    for place, name in enumerate(names):
        begin = share * place + min(place, extra)
        owned[name] = tuple(ordered[begin : begin + share + (place < extra)])
    return owned


def assign_group(
    subscriptions: Mapping[str, Mapping[str, int]], partitions: Mapping[str, Collection[int]]
) -> dict[TopicPartition, str]:
    """Return the thread `ID-n` that owns each partition of a group's topics.

    `subscriptions` has the number of threads per consumer and topic, `partitions` the partitions of
    the existing topics. Every member computes this alone, so the result must equal that of old
    consumers: topic by topic, each by range over the threads of all consumers that read it.
    """
    by_topic: dict[str, dict[str, int]] = {}
    for consumer, topics in subscriptions.items():
        for topic, threads in topics.items():
            by_topic.setdefault(topic, {})[consumer] = threads
    return {
        TopicPartition(topic, partition): thread
        for topic, threads in by_topic.items()
        for thread, mine in assign_range(partitions.get(topic, ()), thread_names(threads)).items()
        for partition in mine
    }
