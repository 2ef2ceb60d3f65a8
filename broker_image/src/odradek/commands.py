"""The command line: `odradek broker`, `odradek zookeeper`, and the commands of `odradek.tools`.

Other packages add commands as entry points of the group `odradek.commands`: `odradek sql` and
`odradek datagen` are the Spark package's, `odradek local` is that of a run on one machine, and this
package must not import them. A usage error prints one
line on stderr and exits with status 2, a runtime failure with status 1.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Final

import click

from odradek import (
    broker_processes,
    command_ends,
    config_loading,
    long_lived,
    stop_signals,
    terminal_text,
)
from odradek import zookeeper as zookeeper_server
from odradek.properties import ConfigError, is_utf8

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
COMMANDS = "odradek.commands"

# Imported when they are used: an answer in a terminal must not wait for what others need.
_TOOLS: Final[Mapping[str, tuple[str, str]]] = {
    "cluster": ("odradek.tools.cluster", "command"),
    "configs": ("odradek.tools.configs", "commands"),
    "consume": ("odradek.tools.consume", "command"),
    "groups": ("odradek.tools.groups", "commands"),
    "log": ("odradek.tools.log_repair", "commands"),
    "produce": ("odradek.tools.produce", "command"),
    "topics": ("odradek.tools.topics", "commands"),
    "transactions": ("odradek.tools.transactions", "commands"),
}


class _Commands(command_ends.EndingGroup):
    """The commands of this package, and those that are found by their entry points."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names of all commands."""
        added = [entry.name for entry in metadata.entry_points(group=COMMANDS)]
        return sorted({*super().list_commands(context), *_TOOLS, *added})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return the command of this name; a broker starts without a look at entry points."""
        own = super().get_command(context, name)
        if own is not None:
            return own
        if name in _TOOLS:
            module, attribute = _TOOLS[name]
            tool = getattr(importlib.import_module(module), attribute)
            assert isinstance(tool, click.Command)
            return tool
        for entry in metadata.entry_points(group=COMMANDS, name=name):
            command = entry.load()
            assert isinstance(command, click.Command)
            return command
        return None

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Load a command; it may look after Ctrl-C itself."""
        found = super().resolve_command(context, args)
        stop_signals.raise_interrupts()
        return found


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="odradek")
def main() -> None:
    """A log broker that speaks Kafka's wire protocol and keeps its state in ZooKeeper."""


@main.command()
@click.argument("properties", type=click.Path())
@click.option("--override", multiple=True, metavar="KEY=VALUE", help="Set one key over the file's.")
@click.option(
    "--count",
    type=click.IntRange(1, broker_processes.MOST),
    default=1,
    help="Run so many brokers, a process each.",
)
def broker(properties: str, override: tuple[str, ...], count: int) -> None:
    """Run a broker with the settings of a server.properties file; or several on this machine.

    With --count, the first broker has these settings. Each further one has the next broker.id, the
    next ports, and log.dirs that end in its id. If one ends, the others are stopped.
    """
    try:
        given = dict(_key_and_value(text) for text in override)
        settings, ignored = config_loading.load(properties, given)
        all_settings = {settings.broker_id: settings}
        for number in range(1, count):
            own = given | broker_processes.overrides(settings, number, count)
            one, _ = config_loading.load(properties, own)
            all_settings[one.broker_id] = one
        broker_processes.check_directories(all_settings)
    except ConfigError as error:
        _exit(str(error), 2)
    log_level = os.environ.get("ODRADEK_LOG_LEVEL", "INFO").upper()
    if log_level not in LOG_LEVELS:
        _exit(f"ODRADEK_LOG_LEVEL is none of {', '.join(LOG_LEVELS)}", 2)
    for name in ignored:
        if config_loading.is_unsupported(name):
            terminal_text.tell(f"warning: configuration {name} is not supported, and ignored")
        else:
            terminal_text.tell(f"warning: unknown configuration {name} is ignored")
    # Imported late: an invalid setting is reported without loading the whole broker.
    with long_lived.loading():
        from odradek.server import process

    if count == 1:
        sys.exit(process.run(settings, log_level))
    runs = [
        partial(process.run, one, log_level, f"broker {broker_id} ")
        for broker_id, one in all_settings.items()
    ]
    status = broker_processes.run_all(runs)
    stop_signals.hold_back()
    sys.exit(status)


def _znode_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--zk-tls-config-file",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="Properties for TLS to ZooKeeper: zookeeper.ssl.*.",
        ),
        click.option("--zookeeper", "connect", required=True, metavar="HOST:PORT/CHROOT"),
    ):
        command = option(command)
    return command


@main.group(invoke_without_command=True)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=2181,
    show_default=True,
    help="Client port.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Default: a new temporary folder."
)
@click.pass_context
def zookeeper(context: click.Context, port: int, host: str, data_dir: Path | None) -> None:
    """Run a single ZooKeeper server, for a laptop or a test; or secure the znodes of a cluster."""
    if context.invoked_subcommand is not None:
        return
    try:
        zookeeper_server.check_address(host, port)
    except (OSError, UnicodeError) as error:
        _exit(f"cannot listen on {host}:{port}: {error}", 1)
    try:
        folder = (data_dir or Path(tempfile.mkdtemp(prefix="odradek-zookeeper-"))).absolute()
    except OSError as error:
        _exit(f"cannot make a folder for data: {error.strerror}", 2)
    if not is_utf8(str(folder)):
        _exit(f"cannot use {str(folder)!r} for data: its name is not UTF-8", 2)
    try:
        command = zookeeper_server.command(zookeeper_server.write_config(folder, port, host=host))
    except zookeeper_server.MissingError as error:
        _exit(str(error), 1)
    except FileExistsError:
        _exit(f"cannot use {folder} for data: it is no directory", 2)
    except OSError as error:
        _exit(f"cannot use {folder} for data: {error.strerror}", 2)
    click.echo(f"ZooKeeper on {host}:{port}, data in {folder}", err=True)
    os.execv(command[0], command)  # noqa: S606 (no shell: the process becomes the server)


@zookeeper.command("secure")
@_znode_options
def secure(connect: str, zk_tls_config_file: Path | None) -> None:
    """Let only those change znodes who log in as this command does; others may read most."""
    from odradek.tools import znode_acls

    znode_acls.change(connect, zk_tls_config_file, secured=True)


@zookeeper.command("unsecure")
@_znode_options
def unsecure(connect: str, zk_tls_config_file: Path | None) -> None:
    """Open znodes to everybody."""
    from odradek.tools import znode_acls

    znode_acls.change(connect, zk_tls_config_file, secured=False)


def _key_and_value(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise ConfigError(f"--override {text} is not KEY=VALUE")
    if not is_utf8(text):
        raise ConfigError(f"--override {text!r} is not UTF-8, as files of settings are")
    return name.strip(), value.strip()


def _exit(message: str, status: int) -> None:
    terminal_text.tell(message)
    sys.exit(status)
