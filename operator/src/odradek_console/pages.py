"""The pages of brokers, topics and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from aiohttp import web

from odradek.protocol.messages.metadata import MetadataResponseTopic
from odradek.tools.configs import SOURCES
from odradek.tools.errors import ToolError
from odradek.tools.topics import is_unavailable
from odradek.tools.under_replication import under_replicated
from odradek.values import TopicPartition
from odradek_console.cluster import BROKER_CONFIG, TOPIC_CONFIG, Observation
from odradek_console.groups import LagSample
from odradek_console.rendering import CONSOLE, choice, render, whole_number

PAGE: Final = 50
_PARTITIONS_PAGE: Final = 100
_MOST_PAGE: Final = 10**9
_LONGEST_FILTER: Final = 249
_CHART_WIDTH: Final = 720
_CHART_HEIGHT: Final = 120

RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True)
class PageOf:
    """Which part of a list a page shows; numbers count from 1, and `first` too."""

    number: int
    pages: int
    first: int
    last: int
    total: int


def cut(rows: Sequence[RowT], number: int, length: int) -> tuple[Sequence[RowT], PageOf]:
    """Return the rows of a page; one behind the end is the last."""
    pages = max(1, -(-len(rows) // length))
    number = min(max(number, 1), pages)
    begin = (number - 1) * length
    shown = rows[begin : begin + length]
    first = begin + 1 if shown else 0
    return shown, PageOf(number, pages, first, begin + len(shown), len(rows))


def _filter(request: web.Request) -> str:
    text = request.query.get("q", "")
    if len(text) > _LONGEST_FILTER:
        raise web.HTTPBadRequest(text=f"q has more than {_LONGEST_FILTER} characters.")
    return text


async def health(_: web.Request) -> web.Response:
    """Say that the process serves."""
    return web.Response(text="ok\n")


async def overview(request: web.Request) -> web.Response:
    """Show the cluster and its brokers."""
    cluster = request.app[CONSOLE].cluster
    observation = await cluster.look()
    sizes = await cluster.sizes()
    return render(request, "overview.html", cluster=observation, sizes=sizes)


async def broker(request: web.Request) -> web.Response:
    """Show one broker: its log directories, and the settings that differ from the defaults."""
    console = request.app[CONSOLE]
    observation = await console.cluster.look()
    name = request.match_info["broker"]
    row = next((one for one in observation.brokers if str(one.broker) == name), None)
    if row is None:
        raise web.HTTPNotFound(text="There is no such broker.")
    sizes = await console.cluster.sizes()
    configs, problem = [], row.why
    if not row.why:
        try:
            configs = await console.cluster.configs(BROKER_CONFIG, str(row.broker))
        except ToolError as error:
            problem = str(error)
    return render(
        request,
        "broker.html",
        cluster=observation,
        broker=row,
        sizes=sizes,
        configs=configs,
        sources=SOURCES,
        problem=problem,
    )


async def topics(request: web.Request) -> web.Response:
    """Show topics, a page of them at a time."""
    cluster = request.app[CONSOLE].cluster
    observation = await cluster.look()
    wanted = _filter(request).lower()
    state = choice(request, "state", ("all", "under-replicated", "unavailable"))
    with_internal = request.query.get("internal") == "yes"
    names = [
        name
        for name, topic in observation.topics.items()
        if wanted in name.lower()
        and (with_internal or not topic.is_internal)
        and _has_state(observation, topic, state)
    ]
    shown, page = cut(names, whole_number(request, "page", 1, _MOST_PAGE), PAGE)
    rows = [observation.topics[name] for name in shown]
    # Of these alone: the brokers need not list everything that they hold.
    sizes = await cluster.sizes(rows) if rows else None
    return render(
        request,
        "topics.html",
        cluster=observation,
        topics=rows,
        sizes=sizes,
        page=page,
        q=_filter(request),
        state=state,
        internal=with_internal,
        under=[len(under_replicated(one, observation.adding)) for one in rows],
        unavailable=[sum(map(is_unavailable, one.partitions)) for one in rows],
    )


def _has_state(observation: Observation, topic: MetadataResponseTopic, state: str) -> bool:
    if state == "under-replicated":
        return bool(under_replicated(topic, observation.adding))
    if state == "unavailable":
        return any(map(is_unavailable, topic.partitions))
    return True


def known_topic(request: web.Request, observation: Observation) -> MetadataResponseTopic:
    """Return the topic of the path. Raises HTTPNotFound."""
    found = observation.topics.get(request.match_info["topic"])
    if found is None:
        raise web.HTTPNotFound(text="There is no such topic; it may have been deleted.")
    return found


async def topic(request: web.Request) -> web.Response:
    """Show one topic: partitions with leader, replicas, offsets and bytes, and its settings."""
    cluster = request.app[CONSOLE].cluster
    observation = await cluster.look()
    found = known_topic(request, observation)
    ordered = sorted(found.partitions, key=lambda one: one.partition_index)
    shown, page = cut(ordered, whole_number(request, "page", 1, _MOST_PAGE), _PARTITIONS_PAGE)
    sizes = await cluster.sizes([found])
    bounds = await cluster.bounds(
        [TopicPartition(found.name, one.partition_index) for one in shown]
    )
    configs, problem = [], ""
    try:
        configs = await cluster.configs(TOPIC_CONFIG, found.name)
    except ToolError as error:
        problem = str(error)
    return render(
        request,
        "topic.html",
        cluster=observation,
        topic=found,
        partitions=shown,
        under={one.partition_index for one in under_replicated(found, observation.adding)},
        page=page,
        sizes=sizes,
        bounds={partition.partition: each for partition, each in bounds.items()},
        replica_bytes={one.partition: each for one, each in sizes.replicas.items()},
        configs=configs,
        sources=SOURCES,
        problem=problem,
    )


async def groups(request: web.Request) -> web.Response:
    """Show consumer groups, a page of them at a time."""
    console = request.app[CONSOLE]
    observation = await console.cluster.look()
    listed = await console.groups.listed()
    wanted = _filter(request).lower()
    names = [name for name in listed.groups if wanted in name.lower()]
    shown, page = cut(names, whole_number(request, "page", 1, _MOST_PAGE), PAGE)
    views = await console.groups.views([listed.groups[name] for name in shown])
    return render(
        request,
        "groups.html",
        cluster=observation,
        groups=views,
        page=page,
        q=_filter(request),
        failures=listed.failures,
    )


async def group(request: web.Request) -> web.Response:
    """Show one group: members, partitions with their lag, and the lag of the last hour."""
    console = request.app[CONSOLE]
    observation = await console.cluster.look()
    listed = await console.groups.listed()
    name = request.query.get("name", "")
    found = listed.groups.get(name)
    if found is None:
        if listed.failures:
            brokers = ", ".join(map(str, sorted(listed.failures)))
            raise web.HTTPBadGateway(
                text=f"Whether there is such a group is not known: broker {brokers} did not tell."
            )
        raise web.HTTPNotFound(text="There is no such group; it may have been deleted.")
    samples = console.history.look(name)
    [view] = await console.groups.views([found])
    shown, page = cut(
        view.partitions, whole_number(request, "page", 1, _MOST_PAGE), _PARTITIONS_PAGE
    )
    return render(
        request,
        "group.html",
        cluster=observation,
        group=view,
        partitions=shown,
        page=page,
        **chart_of(samples),
    )


def chart_of(samples: Sequence[LagSample]) -> dict[str, Any]:
    """Return what the template of a chart of lags needs."""
    return {
        "samples": samples,
        "lines": chart(samples),
        "most": max((one.lag for one in samples if one.lag is not None), default=0),
        "width": _CHART_WIDTH,
        "height": _CHART_HEIGHT,
    }


def chart(samples: Sequence[LagSample]) -> list[str]:
    """Return the lines of a chart of lags as `x,y x,y`; where a lag is unknown, the line ends."""
    known = [one.lag for one in samples if one.lag is not None]
    if not known:
        return []
    first, last = samples[0].at, samples[-1].at
    most = max(*known, 1)
    lines: list[list[str]] = [[]]
    for one in samples:
        if one.lag is None:
            lines.append([])
            continue
        x = _CHART_WIDTH * (one.at - first) / max(last - first, 1)
        y = _CHART_HEIGHT - (_CHART_HEIGHT - 4) * one.lag / most - 2
        lines[-1].append(f"{x:.1f},{y:.1f}")
    return [" ".join(one) for one in lines if one]
