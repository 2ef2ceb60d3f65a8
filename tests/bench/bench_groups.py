"""Groups of this broker and of Apache Kafka 2.8.2 by turns.

    python -m tests.bench.bench_groups [rounds]

Commits a second; the time a group of 100 members takes to settle after one joins and after one
dies (its session not counted); the time to read 100 000 offsets at a start, as each system logs it;
memory for each group with 100 offsets. The clients are the same for both: bare requests, so that no
client library is what is measured. What counts is the ratio.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import group_offsets, groups
from tests.support import zookeeper
from tests.support.broker import Broker, FreshBroker, wait_until
from tests.support.clients import create_topic
from tests.support.kafka_broker import KafkaBroker

TOPIC = "t"
PARTITIONS = 100
GROUPS = 1000
COMMIT_SECONDS = 4.0
COMMITTERS = 8
IN_FLIGHT = 5
MEMBERS = 100
SESSION_MS = 6000
HEARTBEAT_S = 0.2
TIMEOUT_MS = 60_000
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "zookeeper.session.timeout.ms": "10000",
    "zookeeper.connection.timeout.ms": "60000",
}
LOADED = re.compile(
    r"coordinating (?P<groups>\d+) groups, read in (?P<ours>\d+) ms"
    r"|Finished loading offsets and group metadata from __consumer_offsets-0 in (?P<theirs>\d+) m"
)


def commit_request(group: str, partitions: int, offset: int) -> group_offsets.OffsetCommitRequest:
    return group_offsets.OffsetCommitRequest(
        group_id=group,
        topics=[
            group_offsets.OffsetCommitRequestTopic(
                name=TOPIC,
                partitions=[
                    group_offsets.OffsetCommitRequestPartition(
                        partition_index=number, committed_offset=offset, committed_metadata=""
                    )
                    for number in range(partitions)
                ],
            )
        ],
    )


async def commit(client: PeerClient, group: str, partitions: int, offset: int) -> None:
    while True:
        answer = await client.call(commit_request(group, partitions, offset), 3, TIMEOUT_MS)
        codes = {part.error_code for topic in answer.topics for part in topic.partitions}
        if codes == {ErrorCode.NONE}:
            return
        await client.call(groups.FindCoordinatorRequest(key=group), 1, TIMEOUT_MS)
        await asyncio.sleep(0.1)


async def commits_a_second(broker: Broker) -> float:
    clients = [PeerClient("127.0.0.1", broker.port, "bench") for _ in range(COMMITTERS)]
    for number, client in enumerate(clients):
        await commit(client, f"commits-{number}", 1, 0)
    done = 0
    until = time.perf_counter() + COMMIT_SECONDS

    async def work(client: PeerClient, group: str) -> None:
        nonlocal done
        while time.perf_counter() < until:
            await commit(client, group, 1, done)
            done += 1

    began = time.perf_counter()
    async with asyncio.TaskGroup() as running:
        for number, client in enumerate(clients):
            for _ in range(IN_FLIGHT):
                running.create_task(work(client, f"commits-{number}"))
    seconds = time.perf_counter() - began
    for client in clients:
        await client.close()
    return done / seconds


class Member:
    """A consumer without records: joins, takes a share, sends heartbeats, joins again."""

    def __init__(self, port: int, group: str) -> None:
        self._client = PeerClient("127.0.0.1", port, "bench")
        self._group = group
        self._id = ""
        self.generation = -1

    async def live(self) -> None:
        try:
            while True:
                await self._join()
                while await self._is_settled():
                    await asyncio.sleep(HEARTBEAT_S)
        finally:
            await self._client.close()

    async def _is_settled(self) -> bool:
        request = groups.HeartbeatRequest(
            group_id=self._group, generation_id=self.generation, member_id=self._id
        )
        answer = await self._client.call(request, 2, TIMEOUT_MS)
        return answer.error_code == ErrorCode.NONE

    async def _join(self) -> None:
        subscription = struct.pack(">hih", 0, 1, len(TOPIC)) + TOPIC.encode() + b"\xff" * 4
        while True:
            request = groups.JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=60_000,
                member_id=self._id,
                protocol_type="consumer",
                protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=subscription)],
            )
            joined = await self._client.call(request, 4, TIMEOUT_MS)
            self._id = joined.member_id or self._id
            if joined.error_code == ErrorCode.NONE:
                shares = [
                    groups.SyncGroupRequestAssignment(
                        member_id=each.member_id, assignment=bytes(100)
                    )
                    for each in joined.members
                ]
                synced = await self._client.call(
                    groups.SyncGroupRequest(
                        group_id=self._group,
                        generation_id=joined.generation_id,
                        member_id=self._id,
                        assignments=shares,
                    ),
                    2,
                    TIMEOUT_MS,
                )
                if synced.error_code == ErrorCode.NONE:
                    self.generation = joined.generation_id
                    return
            elif joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._id = ""
            elif joined.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                await self._client.call(
                    groups.FindCoordinatorRequest(key=self._group), 1, TIMEOUT_MS
                )
                await asyncio.sleep(0.1)


async def settled(members: list[Member], above: int) -> int:
    """Wait until all are in one generation after `above`; that generation."""
    while True:
        generations = {member.generation for member in members}
        if len(generations) == 1 and min(generations) > above:
            return min(generations)
        await asyncio.sleep(0.005)


async def seconds_to_settle(broker: Broker, group: str) -> tuple[float, float]:
    """After a join, and after a death; the dead member's session is not counted."""
    members = [Member(broker.port, group) for _ in range(MEMBERS)]
    tasks = [asyncio.create_task(member.live()) for member in members]
    try:
        generation = await settled(members, -1)
        await asyncio.sleep(1)
        generation = max(generation, *(member.generation for member in members))
        began = time.perf_counter()
        members.append(Member(broker.port, group))
        tasks.append(asyncio.create_task(members[-1].live()))
        generation = await settled(members, generation)
        join = time.perf_counter() - began
        await asyncio.sleep(1)
        tasks.pop().cancel()
        members.pop()
        began = time.perf_counter()
        await settled(members, generation)
        return join, time.perf_counter() - began - SESSION_MS / 1000
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def fill(broker: Broker) -> None:
    """GROUPS groups with PARTITIONS offsets each."""
    clients = [PeerClient("127.0.0.1", broker.port, "bench") for _ in range(4)]

    async def work(place: int) -> None:
        for number in range(place, GROUPS, len(clients)):
            await commit(clients[place], f"group-{number}", PARTITIONS, number)

    async with asyncio.TaskGroup() as running:
        for place in range(len(clients)):
            running.create_task(work(place))
    for client in clients:
        await client.close()


def live_bytes(broker: Broker) -> int:
    """Memory in use: of a JVM its heap after a collection, of ours what the kernel counts."""
    assert broker._process is not None
    pid = str(broker._process.pid)
    if isinstance(broker, KafkaBroker):
        subprocess.run(["jcmd", pid, "GC.run"], check=True, stdout=subprocess.DEVNULL)
        said = subprocess.run(
            ["jcmd", pid, "GC.heap_info"], check=True, capture_output=True, text=True
        ).stdout
        return (
            sum(int(used) for used in re.findall(r"generation +total \d+K, used (\d+)K", said))
            * 1024
        )
    [line] = [
        each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in each
    ]
    return int(line.split()[1]) * 1024


def load_ms(broker: Broker) -> int:
    """Restart, and what the log then says of reading the offsets."""
    before = len(LOADED.findall(broker.log_text()))
    broker.terminate()
    broker.start()
    wait_until(lambda: len(LOADED.findall(broker.log_text())) > before, "offsets are read", 120)
    *_, last = LOADED.finditer(broker.log_text())
    return int(last["ours"] or last["theirs"])


@contextlib.contextmanager
def running(kind: type[Broker], folder: Path) -> Iterator[Broker]:
    folder.mkdir()
    with zookeeper.Server(folder) as keeper:
        broker = kind(folder, 1, keeper.connect, SETTINGS)
        try:
            broker.start()
            create_topic(broker.address, TOPIC, PARTITIONS)
            asyncio.run(commit_first(broker))
            yield broker
        finally:
            broker.kill()


async def commit_first(broker: Broker) -> None:
    """Have `__consumer_offsets` made, and everything warm."""
    client = PeerClient("127.0.0.1", broker.port, "bench")
    await commit(client, "first", 1, 0)
    await client.close()


def main(rounds: int) -> None:
    """Print each round's figures, and the medians' ratios."""
    found: dict[str, dict[str, list[float]]] = {}

    def note(name: str, what: str, value: float, unit: str) -> None:
        found.setdefault(what, {}).setdefault(name, []).append(value)
        print(f"{name:12} {what:32} {value:12.1f} {unit}", flush=True)

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        systems = {
            "odradek": stack.enter_context(running(FreshBroker, Path(folder) / "odradek")),
            "kafka 2.8.2": stack.enter_context(running(KafkaBroker, Path(folder) / "kafka")),
        }
        for number in range(rounds):
            for name, broker in systems.items():
                note(name, "commits a second", asyncio.run(commits_a_second(broker)), "1/s")
            for name, broker in systems.items():
                join, death = asyncio.run(seconds_to_settle(broker, f"members-{number}"))
                note(name, "100 members settle after a join", join * 1000, "ms")
                note(name, "and after a death", death * 1000, "ms")
        for name, broker in systems.items():
            before = live_bytes(broker)
            asyncio.run(fill(broker))
            grown = (live_bytes(broker) - before) / GROUPS
            note(name, "memory for a group, 100 offsets", grown, "bytes")
        for _ in range(rounds):
            for name, broker in systems.items():
                note(name, "100 000 offsets are read in", load_ms(broker), "ms")
    for what, by_name in found.items():
        ours, theirs = (statistics.median(values) for values in by_name.values())
        print(f"{what}: odradek {ours:.1f}, kafka {theirs:.1f}, ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
