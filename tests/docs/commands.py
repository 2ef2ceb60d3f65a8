"""The reference of the command line: every command of `odradek`, with its options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from odradek.commands import main
from tests.docs.markdown import cell, code, table


def commands() -> Iterator[tuple[click.Context, click.Command]]:
    """Yield every command, each group before its commands."""
    yield from _walk(click.Context(main, info_name="odradek"), main)


def _walk(
    context: click.Context, command: click.Command
) -> Iterator[tuple[click.Context, click.Command]]:
    yield context, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _walk(click.Context(inner, info_name=name, parent=context), inner)


def page() -> str:
    """Return the page."""
    parts = [
        "# Options of the commands\n\nWhat `--help` says, for every command of `odradek`. "
        "[Commands](../commands.md) explains what they are for, their exit statuses, and TLS "
        "and SASL. This page is made from the commands themselves.\n"
    ]
    parts += [_section(context, command) for context, command in commands()]
    return "\n".join(parts)


def _section(context: click.Context, command: click.Command) -> str:
    depth = context.command_path.count(" ")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = [f"{'##' if depth < 2 else '###'} {context.command_path}", ""]
    lines += [f"```text\n{usage}\n```", "", cell(inspect.cleandoc(command.help or "")), ""]
    rows = [_row(context, one) for one in command.params if isinstance(one, click.Option)]
    return "\n".join([*lines, table(("option", "meaning"), rows) if rows else ""])


def _row(context: click.Context, option: click.Option) -> tuple[str, str]:
    record = option.get_help_record(context)
    assert record is not None, option.name
    return code(record[0]), cell(record[1])
