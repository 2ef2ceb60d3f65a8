"""The pages of records: a part of a topic, one record, and what comes in right now.

A live tail is a stream of events for the browser. It has a client of its own, is one of at most
`MOST_TAILS`, and shows at most so many records a second as a person could look at. It ends with the
session that asked for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, ParamSpec, TypeVar

from aiohttp import web

from odradek.log.records.batch import NO_EPOCH
from odradek.log.records.records import Record
from odradek.protocol.messages.metadata import MetadataResponseTopic
from odradek.tools import added_partitions
from odradek.tools.client import LATEST, ToolClient
from odradek.tools.errors import ToolError
from odradek.values import TopicPartition
from odradek_console import records, show
from odradek_console.avro import Schemas
from odradek_console.cluster import TIMEOUT_MS
from odradek_console.pages import known_topic
from odradek_console.rendering import CONSOLE, Console, choice, fragment, render, whole_number

P = ParamSpec("P")
T = TypeVar("T")

MOST_TAILS: Final = 16
MOST_TAILS_EACH: Final = 6
"""Of one user, or, where nobody logs in, of one address."""
_LIMITS: Final = ("20", "50", "100")
_STARTS: Final = ("newest", "oldest", "offset", "time")
_MOST_PARTITIONS: Final = 500
_LONGEST_TEXT: Final = 200
_MOST_OFFSET: Final = 2**63 - 1
_TAIL_RECORDS: Final = 50
_TAIL_WAIT_MS: Final = 500
_TAIL_PAUSE_S: Final = 0.5
_BEAT_S: Final = 5.0
_MISSED: Final = 5
_MOST_TEXTS: Final = 5
# A browser that takes nothing for so long has gone, or sleeps.
_SLOWEST_S: Final = 60.0
_PART_BYTES: Final = 64 * 1024
# What is decoded may be large.
_making = asyncio.Semaphore(2)


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """What a page of records is asked for. `at_ms` goes with the start `time`."""

    start: str
    partition: int | None
    offset: int
    at_ms: int | None
    time_text: str
    limit: int
    key: str
    value: str

    @property
    def searches(self) -> bool:
        """Return whether not every record is wanted."""
        return bool(self.key or self.value)

    def wanted(self) -> Callable[[Record], bool]:
        """Return the test of a record: key and value contain these texts, as they are written."""
        key, value = self.key.encode(), self.value.encode()
        return lambda one: key in (one.key or b"") and value in (one.value or b"")


def _query(request: web.Request, topic: MetadataResponseTopic) -> RecordQuery:
    """Read the query. Raises HTTPBadRequest."""
    start = choice(request, "from", _STARTS)
    partition: int | None = None
    if request.query.get("partition"):
        partition = whole_number(request, "partition", 0, 2**31)
        if partition not in {one.partition_index for one in topic.partitions}:
            raise web.HTTPBadRequest(text=f"The topic has no partition {partition}.")
    if start == "offset" and partition is None:
        raise web.HTTPBadRequest(text="An offset goes with a partition.")
    if partition is None and len(topic.partitions) > _MOST_PARTITIONS:
        raise web.HTTPBadRequest(
            text=f"The topic has more than {_MOST_PARTITIONS} partitions: choose one."
        )
    text = request.query.get("time", "")
    at_ms = None
    if start == "time":
        at_ms = _time(text)
    key, value = request.query.get("key", ""), request.query.get("value", "")
    if max(len(key), len(value)) > _LONGEST_TEXT:
        raise web.HTTPBadRequest(text=f"A text to search has at most {_LONGEST_TEXT} characters.")
    limit = int(choice(request, "limit", _LIMITS))
    offset = whole_number(request, "offset", 0, _MOST_OFFSET)
    return RecordQuery(start, partition, offset, at_ms, text, limit, key, value)


def _time(text: str) -> int:
    """Return ms of a time as forms or RFC 3339 write it; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            found = found.replace(tzinfo=UTC)
        return max(0, int(found.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise web.HTTPBadRequest(text="time is not like 2026-01-31T12:00:00.") from None


async def page(request: web.Request) -> web.Response:
    """Show records of a topic: the newest, the oldest, or from an offset or a time on."""
    console = request.app[CONSOLE]
    observation = await console.cluster.look()
    topic = known_topic(request, observation)
    query = _query(request, topic)
    chosen = [
        TopicPartition(topic.name, one.partition_index)
        for one in topic.partitions
        if query.partition in (None, one.partition_index)
    ]
    bounds = await console.cluster.bounds(chosen)
    start = await _start(console, query, bounds)
    ends = {one: bounds[one][1] for one in start}
    result = await records.read(console.cluster.client, start, ends, query.wanted(), query.limit)
    is_newest = query.start == "newest"
    found = sorted(
        result.found,
        key=lambda one: (one[1].timestamp, one[0].partition, one[1].offset),
        reverse=is_newest,
    )[: query.limit]
    schemas = await _schemas(console, [record for _, record in found])
    failures = {
        **dict(result.failures),
        **{
            one: f"{one}: its leader does not tell its offsets"
            for one in chosen
            if one not in bounds
        },
    }
    following = None
    if query.partition is not None and not is_newest:
        [following] = result.next.values() or [None]
        if following is not None and following >= ends[chosen[0]]:
            following = None
    return await _apart(
        render,
        request,
        "records.html",
        cluster=observation,
        topic=topic,
        query=query,
        starts=_STARTS,
        limits=_LIMITS,
        records=found,
        schemas=schemas,
        result=result,
        failures=failures,
        following=following,
        looked_at=sum(ends[one] - start[one] for one in start),
    )


async def _apart(make: Callable[P, T], *args: P.args, **values: P.kwargs) -> T:
    """Make a page in a thread, two at a time: it may take long to decode values."""
    async with _making:
        return await asyncio.to_thread(make, *args, **values)


async def _schemas(console: Console, found: Iterable[Record]) -> Schemas | None:
    """Return the registry's schemas of keys and values; None without a registry."""
    if console.settings.schema_registry is None:
        return None
    contents = (content for one in found for content in (one.key, one.value))
    return await console.registry.schemas(contents)


async def _start(
    console: Console, query: RecordQuery, bounds: dict[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int]:
    """Return the offset of each partition at which to begin."""
    if query.start == "oldest":
        return {one: start for one, (start, _) in bounds.items()}
    if query.start == "offset":
        return {one: min(max(start, query.offset), end) for one, (start, end) in bounds.items()}
    if query.start == "newest":
        back = records.MOST_RECORDS // max(len(bounds), 1) if query.searches else query.limit
        return {one: max(start, end - back) for one, (start, end) in bounds.items()}
    assert query.at_ms is not None
    found = await console.cluster.client.every_offset(list(bounds), query.at_ms)
    return {
        one: end if found[one] < 0 else min(max(start, found[one]), end)
        for one, (start, end) in bounds.items()
    }


async def one_record(request: web.Request) -> web.Response:
    """Show one record, with as much of it as a page can have."""
    console = request.app[CONSOLE]
    observation = await console.cluster.look()
    topic = known_topic(request, observation)
    partition, record = await _read_one(request, console, topic)
    return await _apart(
        render,
        request,
        "record.html",
        cluster=observation,
        topic=topic,
        partition=partition,
        record=record,
        schemas=await _schemas(console, [record]),
        most=show.WHOLE_BYTES,
    )


async def download(request: web.Request) -> web.StreamResponse:
    """Send the value of one record as it is, as a file; in parts, as a browser takes them."""
    console = request.app[CONSOLE]
    topic = known_topic(request, await console.cluster.look())
    partition, record = await _read_one(request, console, topic)
    # Nothing of a name ends the header.
    plain = re.sub(r"[^-.\w]", "_", topic.name, flags=re.ASCII)
    name = f"{plain}-{partition.partition}-{record.offset}.bin"
    value = record.value or b""
    response = web.StreamResponse(
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "Content-Type": "application/octet-stream",
        }
    )
    response.content_length = len(value)
    await response.prepare(request)
    if request.method != "HEAD":
        try:
            for start in range(0, len(value), _PART_BYTES):
                await _write(response, value[start : start + _PART_BYTES])
        except ConnectionResetError:
            response.force_close()  # what is missing is not taken from the next answer
    return response


async def _read_one(
    request: web.Request, console: Console, topic: MetadataResponseTopic
) -> tuple[TopicPartition, Record]:
    texts = request.match_info["partition"], request.match_info["offset"]
    if not all(one.isascii() and one.isdigit() and len(one) <= 19 for one in texts):
        raise web.HTTPBadRequest(text="Partition and offset are whole numbers.")
    number, offset = map(int, texts)
    if number not in {one.partition_index for one in topic.partitions}:
        raise web.HTTPNotFound(text=f"The topic has no partition {number}.")
    partition = TopicPartition(topic.name, number)
    bounds = await console.cluster.bounds([partition])
    if partition not in bounds:
        raise ToolError(f"the leader of {partition} does not tell its offsets", 1)
    start, end = bounds[partition]
    if not start <= offset < end:
        raise web.HTTPNotFound(text=f"{partition} has records from {start} to {end - 1} only.")
    result = await records.read(
        console.cluster.client,
        {partition: offset},
        {partition: offset + 1},
        lambda one: one.offset == offset,
        1,
    )
    if result.failures:
        raise ToolError("; ".join(result.failures.values()), 1)
    if not result.found:
        raise web.HTTPNotFound(
            text=f"{partition} has no record at {offset}: compaction took it, or it is a mark."
        )
    return result.found[0]


# --- the live tail ------------------------------------------------------------------------------


async def tail(request: web.Request) -> web.Response:
    """Show the page of a live tail; its records come as events."""
    observation = await request.app[CONSOLE].cluster.look()
    topic = known_topic(request, observation)
    query = _query(request, topic)
    return render(request, "tail.html", cluster=observation, topic=topic, query=query)


async def tail_events(request: web.Request) -> web.StreamResponse:
    """Send what comes into a topic from now on, until the browser goes or the topic does."""
    console = request.app[CONSOLE]
    topic = known_topic(request, await console.cluster.look())
    query = _query(request, topic)
    if console.tails.total() >= MOST_TAILS:
        raise web.HTTPServiceUnavailable(text=f"{MOST_TAILS} live tails are open: try again later.")
    owner = request.get("user") or request.remote or ""
    if console.tails[owner] >= MOST_TAILS_EACH:
        raise web.HTTPServiceUnavailable(
            text=f"You have {MOST_TAILS_EACH} live tails open: close one first."
        )
    console.tails[owner] += 1
    client = ToolClient(console.settings.brokers, console.settings.access, TIMEOUT_MS)
    response = web.StreamResponse(headers={"X-Accel-Buffering": "no"})
    response.content_type = "text/event-stream"
    try:
        await client.connect()
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):
            await _send_tail(
                response, console, client, topic, query, request.get("is_logged_in", lambda: True)
            )
    finally:
        console.tails[owner] -= 1
        if not console.tails[owner]:
            del console.tails[owner]
        await client.close()
    return response


async def _send_tail(
    response: web.StreamResponse,
    console: Console,
    client: ToolClient,
    topic: MetadataResponseTopic,
    query: RecordQuery,
    may_look: Callable[[], bool],
) -> None:
    chosen = [
        TopicPartition(topic.name, one.partition_index)
        for one in topic.partitions
        if query.partition in (None, one.partition_index)
    ]
    positions = records.Positions({})
    wanted = query.wanted()
    missed = 0
    beat = time.monotonic()
    refresh_at = beat + added_partitions.REFRESH_INTERVAL_S
    told = ""
    await _event(response, "state", "reading")
    while True:
        if not may_look():
            await _event(response, "end", "you are logged out")
            return
        began = time.monotonic()
        unknown = [one for one in chosen if one not in positions.next]
        if unknown:
            with contextlib.suppress(ToolError):
                await _begin_at_end(client, positions, unknown)
        if query.partition is None and began >= refresh_at:
            starts = await added_partitions.starts(client, chosen)
            _begin(client, positions, starts)
            chosen += starts
            refresh_at = began + added_partitions.REFRESH_INTERVAL_S
        # A leader is asked for so many at a time: in the next round for others.
        chosen = [*chosen[records.PARTITIONS_AT_ONCE :], *chosen[: records.PARTITIONS_AT_ONCE]]
        known = [one for one in chosen if one in positions.next]
        got = await records.fetch_round(
            client, positions, known, wanted, records.MOST_RECORDS, _TAIL_WAIT_MS
        )
        shown = sorted(got.found, key=lambda one: one[1].timestamp)[-_TAIL_RECORDS:]
        if shown:
            schemas = await _schemas(console, [record for _, record in shown])
            html = await _apart(
                fragment, "record_rows.html", records=shown, topic=topic, schemas=schemas
            )
            await _event(response, "records", html, skipped=len(got.found) - len(shown))
        missing = [f"{one}: no leader tells its end" for one in chosen if one not in positions.next]
        gone = _forget_gone(positions)
        if gone:
            await _event(response, "notice", f"{_some(gone)}; going on at the end")
        problem = _some({*positions.failures.values(), *missing})
        if problem != told:
            await _event(response, "state", problem or "reading")
            told = problem
        if problem or gone:
            missed = await _look_again(client, topic.name, missed)
            if missed >= _MISSED:
                await _event(response, "end", f"topic {topic.name} does not exist any more")
                return
        if time.monotonic() - beat > _BEAT_S:
            beat = time.monotonic()
            await _write(response, b": still here\n\n")
        if shown or problem or gone:
            await asyncio.sleep(max(0.0, _TAIL_PAUSE_S - (time.monotonic() - began)))


async def _look_again(client: ToolClient, topic: str, missed: int) -> int:
    """Look for leaders; return how often in a row the topic was not there."""
    try:
        await client.connect()
    except ToolError:
        return missed
    return 0 if any(one.topic == topic for one in client.leaders) else missed + 1


async def _begin_at_end(
    client: ToolClient, positions: records.Positions, partitions: Collection[TopicPartition]
) -> None:
    _begin(client, positions, await client.offsets(partitions, LATEST))


def _begin(
    client: ToolClient, positions: records.Positions, found: Mapping[TopicPartition, int]
) -> None:
    """Begin at offsets that leaders have just told."""
    positions.next |= found
    for partition in found:
        positions.epochs.note(partition, client.offset_epochs.get(partition, NO_EPOCH))


def _forget_gone(positions: records.Positions) -> list[str]:
    """Let partitions that were cut or made anew begin at their ends again; return what they say."""
    said = [positions.failures.pop(one) for one in positions.gone]
    for partition in positions.gone:
        del positions.next[partition]
    positions.gone.clear()
    return said


def _some(texts: Iterable[str]) -> str:
    """Return the first few texts, and how many others there are; "" for none."""
    all_of_them = sorted(texts)
    more = len(all_of_them) - _MOST_TEXTS
    text = "; ".join(all_of_them[:_MOST_TEXTS])
    return f"{text}; and {more} more" if more > 0 else text


async def _event(response: web.StreamResponse, name: str, text: str, skipped: int = 0) -> None:
    """Send an event whose data is JSON on one line: nothing in a record ends it."""
    data = json.dumps({"text": text, "skipped": skipped})
    await _write(response, f"event: {name}\ndata: {data}\n\n".encode())


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Send bytes. Raises ConnectionResetError if the browser has gone, or takes none for long."""
    try:
        async with asyncio.timeout(_SLOWEST_S):
            await response.write(data)
    except TimeoutError:
        raise ConnectionResetError("the browser takes nothing") from None
