"""The two stores of consumer groups: the coordinators on brokers, and ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError, NotEmptyError

from odradek import lag
from odradek.protocol import consumer_protocol
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import group_offsets, groups
from odradek.terminal_text import tell
from odradek.tools.client import ToolClient
from odradek.tools.errors import NothingDoneError, ToolError, refused
from odradek.tools.retries import Retries
from odradek.tools.zookeeper_client import ask
from odradek.values import TopicPartition
from odradek.zk import consumers, znodes
from odradek.zk.failures import describe
from odradek.zk.payload import ZnodeError

EMPTY, DEAD, STABLE = "Empty", "Dead", "Stable"


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group and its partitions."""

    consumer_id: str
    host: str
    client_id: str
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """The state of a group. `coordinator` is `host:port (id)`, `-` for groups in ZooKeeper.

    `former` are the partitions whose commit is of a former topic of that name.
    """

    group: str
    state: str
    strategy: str = "-"
    coordinator: str = "-"
    members: tuple[MemberDescription, ...] = ()
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    former: frozenset[TopicPartition] = frozenset()


class GroupStore(Protocol):
    """A store of consumer groups. Every method raises ToolError."""

    async def states(self) -> list[tuple[str, str]]:
        """Return every group with its state, sorted."""

    async def describe(self, group: str) -> GroupDescription:
        """Return the state of a group; an unknown group is Dead."""

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set committed offsets of a group without members."""

    async def delete(self, group: str) -> None:
        """Delete a group without members, and its offsets."""


class Coordinators:
    """Groups with a coordinator on a broker. Every method waits for it, as `retries` says."""

    def __init__(self, client: ToolClient) -> None:
        self._client = client

    async def states(self) -> list[tuple[str, str]]:
        """Return every group with its state, sorted."""
        return await Retries(self._client).run(self._states)

    async def _states(self) -> list[tuple[str, str]]:
        found: dict[str, str] = {}
        for node in list(self._client.nodes):
            answer = await self._client.call(node, groups.ListGroupsRequest(), 4)
            if answer.error_code != ErrorCode.NONE:
                raise refused(f"broker {node}", answer.error_code, None)
            found |= {each.group_id: each.group_state for each in answer.groups}
        return sorted(found.items())

    async def describe(self, group: str) -> GroupDescription:
        """Return the state of a group; an unknown group is Dead."""
        return await Retries(self._client).run(lambda: self._describe(group))

    async def _describe(self, group: str) -> GroupDescription:
        node = await self._client.coordinator(group)
        request = groups.DescribeGroupsRequest(groups=[group])
        [described] = (await self._client.call(node, request, 1)).groups
        fetch = group_offsets.OffsetFetchRequest(group_id=group, topics=None)
        fetched = await self._client.call(node, fetch, 2)
        if code := described.error_code or fetched.error_code:
            raise refused(f"group {group}", code, None)
        host, port = self._client.nodes[node]
        return GroupDescription(
            group,
            described.group_state,
            described.protocol_data or "-",
            f"{host}:{port} ({node})",
            tuple(
                MemberDescription(
                    member.member_id,
                    member.client_host,
                    member.client_id,
                    consumer_protocol.assigned(bytes(member.member_assignment)),
                )
                for member in described.members
            ),
            {
                TopicPartition(topic.name, part.partition_index): part.committed_offset
                for topic in fetched.topics
                for part in topic.partitions
                if part.error_code == ErrorCode.NONE and part.committed_offset >= 0
            },
        )

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set committed offsets of a group without members."""
        topics: dict[str, list[group_offsets.OffsetCommitRequestPartition]] = {}
        for partition, offset in sorted(offsets.items()):
            topics.setdefault(partition.topic, []).append(
                group_offsets.OffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=offset,
                    committed_metadata="",
                )
            )
        request = group_offsets.OffsetCommitRequest(
            group_id=group,
            topics=[
                group_offsets.OffsetCommitRequestTopic(name=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
        )
        await Retries(self._client).run(lambda: self._commit(group, request))

    async def _commit(self, group: str, request: group_offsets.OffsetCommitRequest) -> None:
        node = await self._client.coordinator(group)
        answer = await self._client.call(node, request, 3)
        for topic in answer.topics:
            for part in topic.partitions:
                if part.error_code != ErrorCode.NONE:
                    partition = TopicPartition(topic.name, part.partition_index)
                    raise refused(f"partition {partition}", part.error_code, None)

    async def delete(self, group: str) -> None:
        """Delete a group without members, and its offsets."""
        is_lost = False

        async def attempt() -> None:
            nonlocal is_lost
            node = await self._client.coordinator(group)
            request = groups.DeleteGroupsRequest(groups_names=[group])
            try:
                [result] = (await self._client.call(node, request, 1)).results
            except NothingDoneError:
                raise
            except ToolError:
                is_lost = True
                raise
            # The request whose answer is lost may have deleted it.
            is_deleted = is_lost and result.error_code == ErrorCode.GROUP_ID_NOT_FOUND
            if result.error_code != ErrorCode.NONE and not is_deleted:
                raise refused(f"group {group}", result.error_code, None)

        await Retries(self._client).run(attempt)


def broker_addresses(client: KazooClient, protocol: str) -> list[tuple[str, int]]:
    """Return where the registered brokers listen with a security protocol. Raises ToolError.

    Registrations that cannot be read are passed over with a warning.
    """
    found: dict[str, bytes] = {}
    try:
        names = ask(client.get_children, znodes.BROKER_IDS_PATH)
    except NoNodeError:
        raise ToolError("there is no cluster in ZooKeeper: it has no /brokers/ids") from None
    for name in names:
        path = f"{znodes.BROKER_IDS_PATH}/{name}"
        try:
            found[path], _ = ask(client.get, path)
        except NoNodeError:
            continue  # it has stopped since
    registered, unreadable = znodes.decode_brokers(found)
    for error in unreadable:
        tell(f"warning: {error}")
    addresses = [
        (endpoint.host, endpoint.port)
        for one in registered.values()
        for endpoint in one.endpoints
        if endpoint.security_protocol == protocol
    ]
    if not addresses:
        raise ToolError(f"no registered broker has a {protocol} listener", 1)
    return addresses


def _check_name(group: str) -> None:
    """Raise ToolError unless /consumers/G is a child of /consumers, and not that itself."""
    if "/" in group or not consumers.is_path(group):
        raise ToolError(f"{group!r} is no name of a group in ZooKeeper")


class OldGroups:
    """Groups that balance through ZooKeeper, or only have offsets there."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client

    def _children(self, path: str) -> list[str]:
        try:
            return sorted(ask(self._client.get_children, path))
        except NoNodeError:
            return []

    async def states(self) -> list[tuple[str, str]]:
        """Return every group with its state, sorted."""
        return [
            (group, STABLE if self._children(consumers.consumer_ids_path(group)) else EMPTY)
            for group in self._children(consumers.CONSUMERS_PATH)
        ]

    async def describe(self, group: str) -> GroupDescription:
        """Return the state of a group; an unknown group is Dead."""
        _check_name(group)
        if ask(self._client.exists, consumers.group_path(group)) is None:
            return GroupDescription(group, DEAD)
        ids = self._children(consumers.consumer_ids_path(group))
        owned: dict[str, list[TopicPartition]] = {member: [] for member in ids}
        for partition, path in self._leaves(consumers.owners_path(group, "")):
            try:
                owner, _ = consumers.decode_owner(path, ask(self._client.get, path)[0])
            except (NoNodeError, ZnodeError):
                continue
            owned.setdefault(owner, []).append(partition)
        committed, written = {}, {}
        for partition, path in self._leaves(consumers.offsets_path(group, "")):
            try:
                data, stat = ask(self._client.get, path)
                committed[partition] = consumers.decode_commit(path, data)
            except (NoNodeError, ZnodeError):
                continue
            written[partition] = stat.mzxid
        return GroupDescription(
            group,
            STABLE if ids else EMPTY,
            members=tuple(
                MemberDescription(member, "-", "-", tuple(partitions))
                for member, partitions in sorted(owned.items())
            ),
            committed=committed,
            former=self._former(written),
        )

    def _former(self, written: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """Return the partitions whose offset was written before their topic was created."""
        found = {
            topic: ask(self._client.exists, znodes.topic_path(topic))
            for topic in {partition.topic for partition in written}
        }
        created = {topic: stat.czxid for topic, stat in found.items() if stat is not None}
        return frozenset(
            partition
            for partition, zxid in written.items()
            if partition.topic in created and lag.is_of_former_topic(zxid, created[partition.topic])
        )

    def _leaves(self, folder: str) -> list[tuple[TopicPartition, str]]:
        """Return partitions and their znodes FOLDER/T/P."""
        folder = folder.rstrip("/")
        return [
            (TopicPartition(topic, partition), f"{folder}/{topic}/{name}")
            for topic in self._children(folder)
            for name in self._children(f"{folder}/{topic}")
            if (partition := consumers.partition_of(name)) is not None
        ]

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set committed offsets of a group without members."""
        self._refuse_members(group)
        for partition, offset in sorted(offsets.items()):
            path = consumers.offset_path(group, partition.topic, partition.partition)
            try:
                ask(self._client.ensure_path, path)
                ask(self._client.set, path, consumers.encode_offset(offset))
            except KazooException as error:
                raise ToolError(
                    f"failed to write {path}: ZooKeeper: {describe(error)}", 1
                ) from error

    async def delete(self, group: str) -> None:
        """Delete a group without members, and its offsets."""
        self._refuse_members(group)
        if ask(self._client.exists, consumers.group_path(group)) is None:
            raise ToolError(f"group {group}: {ErrorCode.GROUP_ID_NOT_FOUND.name}")
        try:
            ask(self._client.delete, consumers.group_path(group), recursive=True)
        except NotEmptyError as error:
            raise ToolError(f"group {group}: {ErrorCode.NON_EMPTY_GROUP.name}") from error

    def _refuse_members(self, group: str) -> None:
        _check_name(group)
        if self._children(consumers.consumer_ids_path(group)):
            raise ToolError(f"group {group}: {ErrorCode.NON_EMPTY_GROUP.name}")
