"""`odradek groups`: list, describe, move and delete consumer groups, and move them between stores.

Groups are those with a coordinator, with --zookeeper those that balance through ZooKeeper. Tables
have the columns of kafka-consumer-groups. Commands that change something only print their plan
unless --execute is given. A usage error is one line and exit status 2.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from odradek import given_files
from odradek import lag as rule
from odradek.clock import wall_ms
from odradek.terminal_text import plain, tell
from odradek.tools import offset_plans as plans
from odradek.tools.client import EARLIEST, LATEST, ToolClient, parse_addresses
from odradek.tools.command_line import (
    BOOTSTRAP_VARIABLE,
    DEFAULT_BOOTSTRAP,
    check_stdout,
    command_config_option,
    opened,
    read_access,
    run,
    say,
    say_table,
    show_table,
    write_stdout,
)
from odradek.tools.errors import ToolError, shown
from odradek.tools.group_stores import (
    DEAD,
    EMPTY,
    Coordinators,
    GroupDescription,
    GroupStore,
    OldGroups,
    broker_addresses,
)
from odradek.tools.retries import Retries
from odradek.tools.zookeeper_client import connect, zk_tls_config_option
from odradek.values import TopicPartition


@click.group("groups")
def commands() -> None:
    """List, describe, reset and delete consumer groups."""


def _store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--zookeeper", metavar="HOST:PORT/CHROOT", help="For groups in ZooKeeper."),
        zk_tls_config_option,
        command_config_option,
        click.option(
            "--bootstrap-server",
            metavar="HOST:PORT,...",
            help=f"Any of the brokers; without --zookeeper {BOOTSTRAP_VARIABLE}, or "
            f"{DEFAULT_BOOTSTRAP}, by default.",
        ),
    ):
        command = option(command)
    return command


_group_options = click.option(
    "--group",
    "names",
    multiple=True,
    required=True,
    callback=lambda _context, _option, names: tuple(dict.fromkeys(names)),
    help="Repeatable.",
)
_execute = click.option(
    "--execute", is_flag=True, help="Apply the change; otherwise only print it."
)


@asynccontextmanager
async def _opened(
    bootstrap_server: str | None,
    zookeeper: str | None,
    command_config: Path | None,
    zk_tls_config_file: Path | None,
) -> AsyncIterator[tuple[GroupStore, ToolClient]]:
    """Yield the selected store, and a client of the brokers of its cluster."""
    if zookeeper is None:
        # An environment variable must not contradict --zookeeper.
        if bootstrap_server is None:
            bootstrap_server = os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
    elif bootstrap_server is not None:
        raise ToolError("give either --bootstrap-server or --zookeeper")
    async with _both(bootstrap_server, zookeeper, command_config, zk_tls_config_file) as (
        coordinators,
        old_groups,
        brokers,
    ):
        yield (coordinators if old_groups is None else old_groups), brokers


@asynccontextmanager
async def _both(
    bootstrap_server: str | None,
    zookeeper: str | None,
    command_config: Path | None,
    zk_tls_config_file: Path | None,
) -> AsyncIterator[tuple[Coordinators, OldGroups | None, ToolClient]]:
    access = read_access(command_config)
    client = None if zookeeper is None else connect(zookeeper, zk_tls_config_file)
    try:
        if bootstrap_server is not None:
            addresses = parse_addresses(bootstrap_server)
        else:
            assert client is not None
            addresses = broker_addresses(client, access.protocol)
        async with opened(addresses, access) as brokers:
            yield Coordinators(brokers), None if client is None else OldGroups(client), brokers
    finally:
        if client is not None:
            client.stop()
            client.close()


# --- looking ----------------------------------------------------------------------------------


@commands.command("list")
@_store_options
@click.option("--state", "with_state", is_flag=True, help="Show each group's state.")
def list_groups(
    bootstrap_server: str | None,
    zookeeper: str | None,
    command_config: Path | None,
    zk_tls_config_file: Path | None,
    with_state: bool,
) -> None:
    """Print the names of all groups."""

    async def work() -> None:
        check_stdout()
        async with _opened(bootstrap_server, zookeeper, command_config, zk_tls_config_file) as (
            store,
            _,
        ):
            states = await store.states()
        if with_state:
            show_table(("GROUP", "STATE"), states)
            return
        for group, _state in states:
            say(group)

    run(work())


@commands.command()
@_store_options
@click.option("--group", "names", multiple=True, help="Repeatable.")
@click.option("--all-groups", is_flag=True)
@click.option("--members", "part", flag_value="members", help="Show members.")
@click.option("--state", "part", flag_value="state", help="Show states.")
@click.option("--offsets", "part", flag_value="offsets", default=True, help="Show offsets and lag.")
def describe(
    bootstrap_server: str | None,
    zookeeper: str | None,
    command_config: Path | None,
    zk_tls_config_file: Path | None,
    names: tuple[str, ...],
    all_groups: bool,
    part: str,
) -> None:
    """Show where groups are: offsets and lag, members, or state."""

    async def work() -> None:
        if bool(names) == all_groups:
            raise ToolError("give either --group or --all-groups")
        async with _opened(bootstrap_server, zookeeper, command_config, zk_tls_config_file) as (
            store,
            brokers,
        ):
            wanted = names or tuple(group for group, _ in await store.states())
            views = [await store.describe(group) for group in wanted]
            if all_groups:
                views = [view for view in views if view.state != DEAD]  # deleted since
            _show_missing(views)
            if part == "state":
                _show_states(views)
            elif part == "members":
                _show_members(views)
            else:
                await _show_offsets(views, brokers)

    run(work())


def _show_missing(views: Iterable[GroupDescription]) -> None:
    for view in views:
        if view.state == DEAD:
            raise ToolError(f"consumer group {shown(view.group)} does not exist")
        if view.state == EMPTY:
            click.echo(f"Consumer group '{plain(view.group)}' has no active members.", err=True)


def _show_states(views: Iterable[GroupDescription]) -> None:
    show_table(
        ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"),
        [(v.group, v.coordinator, v.strategy, v.state, len(v.members)) for v in views],
    )


def _show_members(views: Iterable[GroupDescription]) -> None:
    show_table(
        ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"),
        [
            (view.group, each.consumer_id, each.host, each.client_id, len(each.partitions))
            for view in views
            for each in view.members
        ],
    )


async def _show_offsets(views: Iterable[GroupDescription], brokers: ToolClient) -> None:
    rows = []
    for view in views:
        readers = {part: member for member in view.members for part in member.partitions}
        partitions = sorted(view.committed.keys() | readers.keys())
        ends = await Retries(brokers).offsets_of_led(partitions, LATEST)
        lags = await _lags(view, ends, brokers)
        for part in partitions:
            offset, end, reader = view.committed.get(part), ends.get(part), readers.get(part)
            who = ("-", "-", "-")
            if reader is not None:
                who = (reader.consumer_id, reader.host, reader.client_id)
            known = ("-" if value is None else value for value in (offset, end, lags.get(part)))
            rows.append((view.group, part.topic, part.partition, *known, *who))
    header = "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID"
    show_table(header.split(), rows)


async def _lags(
    view: GroupDescription, ends: Mapping[TopicPartition, int], brokers: ToolClient
) -> dict[TopicPartition, int | None]:
    """Return the lag of each partition with a commit. Kafka's tool shows none without one."""

    def is_undecided(part: TopicPartition) -> bool:
        committed = view.committed[part]
        return rule.needs_start(committed, ends.get(part), is_former=part in view.former)

    starts = await Retries(brokers).offsets_of_led(
        [part for part in view.committed if is_undecided(part)], EARLIEST
    )
    return {
        part: rule.lag(offset, starts.get(part), ends.get(part), is_former=part in view.former)
        for part, offset in view.committed.items()
    }


# --- changing ---------------------------------------------------------------------------------


@commands.command("reset-offsets")
@_store_options
@_group_options
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:0,1]", help="Repeatable.")
@click.option("--all-topics", is_flag=True, help="Every topic that the group has offsets in.")
@click.option("--to-earliest", is_flag=True)
@click.option("--to-latest", is_flag=True)
@click.option("--to-current", is_flag=True)
@click.option("--to-offset", type=click.IntRange(0))
@click.option("--to-datetime", metavar="YYYY-MM-DDTHH:mm:SS.sss")
@click.option("--by-duration", metavar="PnDTnHnMnS", help="So long before now.")
@click.option("--shift-by", type=int, metavar="N", help="N records on, or back if negative.")
@click.option("--from-file", type=click.Path(path_type=Path), help="Lines topic,partition,offset.")
@click.option("--export", is_flag=True, help="Print the plan as lines for --from-file.")
@_execute
def reset_offsets(
    bootstrap_server: str | None,
    zookeeper: str | None,
    command_config: Path | None,
    zk_tls_config_file: Path | None,
    names: tuple[str, ...],
    topics: tuple[str, ...],
    all_topics: bool,
    export: bool,
    execute: bool,
    **ways: Any,
) -> None:
    """Reset the offsets of groups without members."""

    async def work() -> None:
        chosen = [name for name, value in ways.items() if value is not None and value is not False]
        if len(chosen) != 1:
            raise ToolError("give exactly one of " + _options(ways))
        way = chosen[0]
        if way == "from_file":
            if topics or all_topics:
                raise ToolError("give either --from-file, or --topic or --all-topics")
        elif bool(topics) == all_topics:
            raise ToolError("give either --topic or --all-topics")
        value = _parsed(way, ways[way], names)
        async with _opened(bootstrap_server, zookeeper, command_config, zk_tls_config_file) as (
            store,
            brokers,
        ):
            plan: dict[str, dict[TopicPartition, int]] = {}
            for group in names:
                view = await store.describe(group)
                _refuse_active(view)
                if all_topics:
                    read = {part.topic for part in view.committed}
                    chosen_parts = [part for part in brokers.leaders if part.topic in read]
                else:
                    chosen_parts = plans.parse_topics(topics, brokers.leaders)
                wanted = await _wanted(brokers, view, chosen_parts, way, value)
                if not wanted:
                    raise ToolError(f"there are no offsets of group {group} to reset")
                plan[group], moved = plans.within(wanted, await _bounds(brokers, wanted))
                _warn(moved)
            if execute:
                for group, offsets in plan.items():
                    await store.commit(group, offsets)
            _show_plan(plan, export, execute)
        if not execute and not export:
            click.echo("Nothing was changed: --execute was not given.", err=True)

    run(work())


def _warn(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        tell(f"warning: {sentence}")


def _options(names: Iterable[str]) -> str:
    return ", ".join("--" + name.replace("_", "-") for name in sorted(names))


def _refuse_active(view: GroupDescription) -> None:
    if view.state not in (EMPTY, DEAD):
        raise ToolError(
            f"offsets can only be changed while group {view.group} is inactive, but it is "
            f"{view.state}"
        )


def _parsed(way: str, value: Any, groups: Iterable[str]) -> Any:
    """Return the value of a way to reset as `_wanted` takes it: a plan per group, or a time in ms,
    or what was given. Raises ToolError for what is wrong whatever brokers say.
    """
    match way:
        case "from_file":
            try:
                text = given_files.read_text(value)
            except (OSError, UnicodeDecodeError) as error:
                raise ToolError(f"cannot read {value}: {error}") from error
            return {group: plans.parse_csv(text, group) for group in groups}
        case "to_datetime":
            return plans.parse_datetime_ms(value)
        case "by_duration":
            return wall_ms() - plans.parse_duration_ms(value)
        case _:
            return value


async def _wanted(
    brokers: ToolClient,
    view: GroupDescription,
    partitions: Collection[TopicPartition],
    way: str,
    value: Any,
) -> dict[TopicPartition, int]:
    retries = Retries(brokers)
    match way:
        case "to_earliest":
            return await retries.every_offset(partitions, EARLIEST)
        case "to_latest":
            return await retries.every_offset(partitions, LATEST)
        case "to_current":
            ends = await retries.every_offset(partitions, LATEST)
            return {**ends, **{p: o for p, o in view.committed.items() if p in ends}}
        case "to_offset":
            return dict.fromkeys(partitions, value)
        case "shift_by":
            return plans.shifted(partitions, view.committed, value)
        case "from_file":
            return plans.existing(value[view.group], brokers.leaders)
    # A partition without such a record is moved to its end.
    ends = await retries.every_offset(partitions, LATEST)
    firsts = await retries.every_offset(partitions, max(value, 0))
    return {part: ends[part] if first < 0 else first for part, first in firsts.items()}


async def _bounds(
    brokers: ToolClient, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, plans.Bounds]:
    retries = Retries(brokers)
    starts = await retries.every_offset(partitions, EARLIEST)
    ends = await retries.every_offset(partitions, LATEST)
    return {part: plans.Bounds(starts[part], ends[part]) for part in partitions}


def _show_plan(
    plan: Mapping[str, Mapping[TopicPartition, int]], export: bool, is_done: bool
) -> None:
    if not is_done:
        check_stdout()
    if export:
        for group, offsets in plan.items():
            write_stdout(plans.render_csv(group if len(plan) > 1 else None, offsets).encode())
        return
    rows = [
        (group, part.topic, part.partition, offset)
        for group, offsets in plan.items()
        for part, offset in sorted(offsets.items())
    ]
    say_table(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), rows)


@commands.command()
@_store_options
@_group_options
@_execute
def delete(
    bootstrap_server: str | None,
    zookeeper: str | None,
    command_config: Path | None,
    zk_tls_config_file: Path | None,
    names: tuple[str, ...],
    execute: bool,
) -> None:
    """Delete groups without members, and their offsets."""

    async def work() -> None:
        async with _opened(bootstrap_server, zookeeper, command_config, zk_tls_config_file) as (
            store,
            _,
        ):
            for group in names:
                view = await store.describe(group)
                if view.state == DEAD:
                    raise ToolError(f"consumer group {shown(group)} does not exist")
                _refuse_active(view)
            for group in names if execute else ():
                await store.delete(group)
        done = "are deleted" if execute else "would be deleted; --execute was not given"
        say(f"Groups {', '.join(names)} {done}.")

    run(work())


@commands.command()
@_store_options
@_group_options
@click.option(
    "--to", type=click.Choice(["kafka", "zookeeper"]), required=True, help="The target store."
)
@_execute
def migrate(
    bootstrap_server: str | None,
    zookeeper: str | None,
    command_config: Path | None,
    zk_tls_config_file: Path | None,
    names: tuple[str, ...],
    to: str,
    execute: bool,
) -> None:
    """Copy offsets of groups without members from one store to the other; needs --zookeeper."""

    async def work() -> None:
        if zookeeper is None:
            raise ToolError("--zookeeper is required")
        plan = {}
        async with _both(bootstrap_server, zookeeper, command_config, zk_tls_config_file) as (
            coordinators,
            old_groups,
            brokers,
        ):
            assert old_groups is not None
            source: GroupStore = old_groups if to == "kafka" else coordinators
            target: GroupStore = coordinators if to == "kafka" else old_groups
            for group in names:
                view = await source.describe(group)
                if not view.committed:
                    raise ToolError(f"group {group} has no offsets to copy")
                _refuse_active(view)
                there = await target.describe(group)
                _refuse_active(there)
                plan[group], left = plans.copyable(view.committed, there.committed, brokers.leaders)
                _warn(left)
            for group, offsets in plan.items():
                if execute and offsets:
                    await target.commit(group, offsets)
        _show_plan(plan, False, execute)
        if not execute:
            click.echo("Nothing was changed: --execute was not given.", err=True)

    run(work())
