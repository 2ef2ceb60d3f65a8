"""What the commands for people share: the options for brokers, and how to connect to them.

They are those of the other commands of `odradek`, whose module needs what no job may import.
"""

import sys
from pathlib import Path

import click

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
    """Return how to connect, and warn of what has no effect; exit with status 2 upon a mistake."""
    if command_config is None:
        return BrokerAccess(bootstrap_server)
    try:
        access, ignored = read(bootstrap_server, command_config)
    except ClientConfigError as error:
        click.echo(f"odradek: {error}", err=True)
        sys.exit(2)
    if ignored:
        click.echo(
            f"odradek: warning: {command_config}: no effect with security.protocol "
            f"{access.librdkafka['security.protocol']}: {', '.join(ignored)}",
            err=True,
        )
    return access
