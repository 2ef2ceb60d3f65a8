"""What the commands for people share: options, tables and JSON, and how a command ends.

A mistake of the user's ends with status 2 and one line on stderr, a failure with status 1.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import click
from kazoo.exceptions import KazooException

from odradek.properties import is_utf8
from odradek.protocol.errors import ErrorCode
from odradek.terminal_text import plain, plain_json, tell
from odradek.tools.client import Access, ToolClient, parse_addresses
from odradek.tools.errors import FAILURES, NothingDoneError, ToolError, error_text
from odradek.tools.retries import Retries
from odradek.zk.failures import describe
from odradek.zk.payload import ZnodeError

UNKNOWN: Final = "-"
"""What a table shows where nothing is known."""

BOOTSTRAP_VARIABLE = "ODRADEK_BOOTSTRAP_SERVER"
DEFAULT_BOOTSTRAP = "localhost:9092"

bootstrap_option = click.option(
    "--bootstrap-server",
    metavar="HOST:PORT,...",
    default=DEFAULT_BOOTSTRAP,
    envvar=BOOTSTRAP_VARIABLE,
    show_default=True,
    show_envvar=True,
    help="Any of the brokers.",
)
command_config_option = click.option(
    "--command-config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    envvar="ODRADEK_COMMAND_CONFIG",
    show_envvar=True,
    help="Client properties: security.protocol, ssl.*, sasl.*.",
)
output_option = click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print.",
)


def read_access(command_config: Path | None) -> Access:
    """Return how to connect to brokers, and warn of what has no effect. Raises ToolError."""
    if command_config is None:
        return Access()
    # Loads what only TLS and SASL need.
    from odradek.tools import command_config as config_file

    access, ignored = config_file.load(command_config)
    if ignored:
        tell(
            f"warning: {command_config}: no effect with security.protocol "
            f"{access.protocol}: {', '.join(ignored)}"
        )
    return access


@asynccontextmanager
async def connected(
    bootstrap_server: str, command_config: Path | None
) -> AsyncIterator[ToolClient]:
    """Yield a client that knows brokers, topics and leaders. Raises ToolError."""
    addresses = parse_addresses(bootstrap_server)
    async with opened(addresses, read_access(command_config)) as brokers:
        yield brokers


@asynccontextmanager
async def opened(addresses: Iterable[tuple[str, int]], access: Access) -> AsyncIterator[ToolClient]:
    """Yield a client as `connected` does."""
    brokers = ToolClient(addresses, access)
    try:
        await Retries(brokers).run(brokers.connect, NothingDoneError)
        yield brokers
    finally:
        await brokers.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a command to its end; an error is one line, and decides the exit status."""
    try:
        _check_texts(click.get_current_context().params)
        asyncio.run(work)
    except ToolError as error:
        tell(error)
        sys.exit(error.status)
    except (KazooException, ZnodeError) as error:
        tell(f"ZooKeeper: {describe(error)}")
        sys.exit(1)
    finally:
        work.close()


def _check_texts(parameters: Mapping[str, Any]) -> None:
    """Raise ToolError for a text that no request can carry. Paths of files may be any bytes."""
    for value in parameters.values():
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and not is_utf8(text):
                raise ToolError(f"{text!r} is not UTF-8")


def write_stdout(data: bytes) -> None:
    """Write to stdout, which may end the command (`standard_output`)."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def say(line: str) -> None:
    """Tell what was done, as `write_stdout` does, whatever names are in it; nobody if stdout is
    closed.
    """
    if sys.stdout is not None:
        write_stdout(plain(line).encode() + b"\n")


def check_stdout() -> None:
    """Raise ToolError if stdout is closed: for commands whose only purpose is what they print."""
    if sys.stdout is None:
        raise ToolError("stdout is closed")


def show_table(header: Collection[str], rows: Iterable[Collection[object]]) -> None:
    """Print a table with aligned columns. Raises ToolError, as `show_json` does."""
    check_stdout()
    say_table(header, rows)


def say_table(header: Collection[str], rows: Iterable[Collection[object]]) -> None:
    """Tell in a table what was done, as `say` does."""
    lines = [tuple(header), *(tuple(plain(str(cell)) for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        say(" ".join(cells).rstrip())


def show_json(document: Any) -> None:
    """Print one JSON document."""
    check_stdout()
    text = plain_json(json.dumps(document, indent=2, ensure_ascii=False))
    write_stdout(text.encode() + b"\n")


def show_rows(output: str, header: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table of their values in this order, or as a JSON list; None is unknown."""
    if output == "json":
        show_json(rows)
    else:
        show_table(header, ([_cell(value) for value in row.values()] for row in rows))


def _cell(value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value)) or UNKNOWN
    return str(value)


def parse_pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Read `KEY=VALUE` texts. Raises ToolError, also for a key that is given twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ToolError(f"{option} {text} is not KEY=VALUE")
        if name.strip() in found:
            raise ToolError(f"{option} {name.strip()} is given twice")
        found[name.strip()] = value.strip()
    return found


def report(outcomes: Iterable[tuple[str, int, str | None]], done: str) -> None:
    """Print per thing that it is `done`, or why it is not; the worst of them is the exit status.

    An outcome is the name of a thing, its error code, and what the broker said.
    """
    status = 0
    for name, code, said in outcomes:
        if code == ErrorCode.NONE:
            say(f"{name} {done}")
            continue
        tell(f"{name}: {error_text(code, said)}")
        status = max(status, 1 if code in FAILURES else 2)
    if status:
        sys.exit(status)
