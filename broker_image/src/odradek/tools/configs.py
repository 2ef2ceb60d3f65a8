"""`odradek configs`: show and change the configs of topics and brokers (KIP-226, KIP-339)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from odradek.protocol.schema import Request
from odradek.terminal_text import tell
from odradek.tools.client import ToolClient
from odradek.tools.command_line import (
    bootstrap_option,
    command_config_option,
    connected,
    output_option,
    parse_pairs,
    report,
    run,
    show_rows,
)
from odradek.tools.errors import NothingDoneError, ToolError, refused, shown
from odradek.tools.retries import Retries

ResponseT = TypeVar("ResponseT")

_TOPIC: Final = 2
_BROKER: Final = 4
_DESCRIBE_VERSION: Final = 1
_ALTER_VERSION: Final = 0
_SET: Final = 0
_DELETE: Final = 1
# Where a value comes from, by DescribeConfigs' number (KIP-226).
_OF_TOPIC: Final = 1
_OF_BROKER: Final = 2
_OF_ALL_BROKERS: Final = 3
SOURCES: Final = {
    _OF_TOPIC: "topic",
    _OF_BROKER: "broker",
    _OF_ALL_BROKERS: "brokers' default",
    4: "server.properties",
    5: "default",
}
_OVERRIDES: Final = frozenset({_OF_TOPIC, _OF_BROKER, _OF_ALL_BROKERS})


@click.group("configs")
def commands() -> None:
    """Show and change the configs of topics and brokers."""


def _entity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--broker-defaults", is_flag=True, help="What all brokers share."),
        click.option("--broker", type=click.IntRange(0), metavar="ID", help="One broker."),
        click.option("--topic", help="One topic."),
        command_config_option,
        bootstrap_option,
    ):
        command = option(command)
    return command


def _entity(topic: str | None, broker: int | None, broker_defaults: bool) -> tuple[int, str, str]:
    """Return type and name in requests, and the name for people. Raises ToolError."""
    if (topic is not None) + (broker is not None) + broker_defaults != 1:
        raise ToolError("give one of --topic, --broker and --broker-defaults")
    if topic is not None:
        return _TOPIC, topic, f"topic {shown(topic)}"
    if broker is not None:
        return _BROKER, str(broker), f"broker {broker}"
    return _BROKER, "", "the brokers' defaults"


@commands.command()
@_entity_options
@click.option("--all", "show_all", is_flag=True, help="Also what nobody has changed.")
@output_option
def describe(
    bootstrap_server: str,
    command_config: Path | None,
    topic: str | None,
    broker: int | None,
    broker_defaults: bool,
    show_all: bool,
    output: str,
) -> None:
    """Show the configs that were set for a topic or broker."""

    async def work() -> None:
        kind, name, label = _entity(topic, broker, broker_defaults)
        resource = DescribeConfigsResource(resource_type=kind, resource_name=name)
        request = DescribeConfigsRequest(resources=[resource])
        async with connected(bootstrap_server, command_config) as brokers:
            answer = await _ask(brokers, broker, request, _DESCRIBE_VERSION)
        [result] = answer.results
        if result.error_code != ErrorCode.NONE:
            raise refused(label, result.error_code, result.error_message)
        rows = [
            _row(one)
            for one in sorted(result.configs, key=lambda one: one.name)
            if show_all or one.config_source in _OVERRIDES
        ]
        show_rows(output, ("NAME", "VALUE", "SOURCE", "READ-ONLY"), rows)

    run(work())


async def _ask(
    brokers: ToolClient, broker: int | None, request: Request[ResponseT], version: int
) -> ResponseT:
    """Ask a broker for its own configs, which only it knows, or any broker for others."""
    if broker is not None:
        if broker not in brokers.nodes:
            raise ToolError(f"broker {broker} does not exist, or is not up")
        return await brokers.call(broker, request, version)
    return await Retries(brokers).run(lambda: brokers.call_any(request, version), NothingDoneError)


async def _unset(
    brokers: ToolClient,
    broker: int | None,
    resource: IncrementalAlterConfigsResource,
    names: Iterable[str],
) -> list[str]:
    """Return those of the names that nobody has set for a topic or broker; none if it is unknown.

    Brokers delete these without an error: it takes a look to find a mistyped name.
    """
    kind, name = resource.resource_type, resource.resource_name
    asked = DescribeConfigsResource(resource_type=kind, resource_name=name)
    request = DescribeConfigsRequest(resources=[asked])
    [result] = (await _ask(brokers, broker, request, _DESCRIBE_VERSION)).results
    if result.error_code != ErrorCode.NONE:
        return []
    source = _OF_TOPIC if kind == _TOPIC else _OF_BROKER if name else _OF_ALL_BROKERS
    own = {one.name for one in result.configs if one.config_source == source}
    return [one for one in names if one not in own]


def _row(one: DescribeConfigsResourceResult) -> dict[str, Any]:
    return {
        "name": one.name,
        "value": "(hidden)" if one.is_sensitive else one.value,
        "source": SOURCES.get(one.config_source),
        "readOnly": one.read_only,
    }


@commands.command()
@_entity_options
@click.option("--add-config", "added", multiple=True, metavar="KEY=VALUE", help="Repeatable.")
@click.option("--delete-config", "deleted", multiple=True, metavar="KEY", help="Repeatable.")
@click.option("--validate-only", is_flag=True, help="Only ask whether the change is allowed.")
def alter(
    bootstrap_server: str,
    command_config: Path | None,
    topic: str | None,
    broker: int | None,
    broker_defaults: bool,
    added: tuple[str, ...],
    deleted: tuple[str, ...],
    validate_only: bool,
) -> None:
    """Change single configs of a topic or broker, and leave the others alone."""

    async def work() -> None:
        kind, name, label = _entity(topic, broker, broker_defaults)
        changes = [
            IncrementalAlterableConfig(name=key, config_operation=_SET, value=value)
            for key, value in parse_pairs("--add-config", added).items()
        ]
        changes += [
            IncrementalAlterableConfig(name=key, config_operation=_DELETE) for key in deleted
        ]
        if not changes:
            raise ToolError("give --add-config or --delete-config")
        resource = IncrementalAlterConfigsResource(
            resource_type=kind, resource_name=name, configs=changes
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        async with connected(bootstrap_server, command_config) as brokers:
            unset = await _unset(brokers, broker, resource, deleted) if deleted else []
            answer = await _ask(brokers, broker, request, _ALTER_VERSION)
        if unset:
            tell(f"warning: {label} had no {', '.join(unset)} of its own")
        done = "could be changed" if validate_only else "changed"
        report([(label, one.error_code, one.error_message) for one in answer.responses], done)

    run(work())
