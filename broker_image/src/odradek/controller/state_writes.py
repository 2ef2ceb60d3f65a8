"""The ZooKeeper operations that write the states of partitions, and their results. Pure."""

from collections.abc import Sequence

from odradek.controller.events import Leadership
from odradek.values import TopicPartition
from odradek.zk import znodes
from odradek.zk.operations import Create, Operation, SetData
from odradek.zk.session import Stat
from odradek.zk.znodes import PartitionState

# A partition, its new state, and the version that it replaces, None for the first state.
StateWrite = tuple[TopicPartition, PartitionState, int | None]


def operations(jobs: Sequence[StateWrite]) -> list[Operation]:
    """Return the writes of states, with the znodes above them that new partitions need.

    Partition 0 brings the one that holds all partitions of its topic.
    """
    found: list[Operation] = []
    for job in jobs:
        (topic, number), _, version = job
        if version is None:
            if number == 0:
                found.append(Create(znodes.partitions_path(topic)))
            found.append(Create(znodes.partition_path(topic, number)))
        found.append(operation(job))
    return found


def operation(job: StateWrite) -> Operation:
    """Return the write of one state."""
    partition, state, version = job
    path, data = znodes.state_path(*partition), znodes.encode_state(state)
    return Create(path, data) if version is None else SetData(path, data, version)


def outcomes(
    jobs: Sequence[StateWrite], written: Sequence[Operation], results: Sequence[object]
) -> list[tuple[StateWrite, Leadership | None]]:
    """Return the states after a transaction, with the versions that its results tell."""
    versions = {
        one.path: result.version if isinstance(result, Stat) else 0
        for one, result in zip(written, results, strict=True)
    }
    return [(job, Leadership(job[1], versions[znodes.state_path(*job[0])])) for job in jobs]
