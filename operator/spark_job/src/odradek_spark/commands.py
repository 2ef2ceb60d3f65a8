"""What the commands for people share: the options for brokers, and how to connect to them.

They are those of the other commands of `odradek`, whose module needs what no job may import.
"""

import sys
from pathlib import Path
from typing import NoReturn

import click

from odradek import bootstrap_servers
from odradek.access_tokens import NoTokenError
from odradek.properties import is_utf8
from odradek.terminal_text import tell
from odradek_spark.broker_access import BrokerAccess, ClientConfigError, read

bootstrap_option = click.option(
    "--bootstrap-server",
    metavar="HOST:PORT,...",
    default="localhost:9092",
    envvar="ODRADEK_BOOTSTRAP_SERVER",
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


def read_access(bootstrap_server: str, command_config: Path | None) -> BrokerAccess:
    """Return how to connect, and warn of what has no effect.

    Exits with status 2 upon a mistake, and with 1 if there is no token.
    """
    check_utf8("--bootstrap-server", bootstrap_server)
    try:
        # Clients would try for long to reach what nobody can.
        bootstrap_servers.parse(bootstrap_server)
    except ValueError as error:
        _exit(error, 2)
    if command_config is None:
        return BrokerAccess(bootstrap_server)
    try:
        access, ignored = read(bootstrap_server, command_config)
        if access.tokens is not None:
            # Clients would wait for one, and not say why there is none.
            access.tokens.get()
    except ClientConfigError as error:
        _exit(error, 2)
    except NoTokenError as error:
        _exit(error, 2 if error.is_mistake else 1)
    if ignored:
        tell(
            f"warning: {command_config}: no effect with security.protocol "
            f"{access.librdkafka['security.protocol']}: {', '.join(ignored)}"
        )
    return access


def check_utf8(option: str, text: str) -> None:
    """Exit with status 2 if a text is not UTF-8: librdkafka takes no other."""
    if not is_utf8(text):
        _exit(f"{option} {text!r} is not UTF-8", 2)


def _exit(error: Exception | str, status: int) -> NoReturn:
    tell(error)
    sys.exit(status)
