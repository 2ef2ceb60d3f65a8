"""`odradek console`: pages about a cluster, in a browser."""

from __future__ import annotations

import importlib.util
import ipaddress
import ssl
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from odradek import tls_errors
from odradek.command_ends import EndingGroup
from odradek.terminal_text import tell
from odradek.tools.client import parse_addresses
from odradek.tools.command_line import (
    bootstrap_option,
    check_stdout,
    command_config_option,
    read_access,
    run,
    say,
)
from odradek.tools.errors import ToolError

PORT: Final = 9480
_NEEDED: Final = ("aiohttp", "cramjam", "fastavro", "jinja2")


@click.group(
    cls=EndingGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@bootstrap_option
@command_config_option
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; empty: every address.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True)
@click.option(
    "--health-port",
    type=click.IntRange(1, 65535),
    help="Answer /healthz there on every address, and nothing else.",
)
@click.option(
    "--users",
    "users_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Who may log in; needed on any address but this machine's own.",
)
@click.option("--tls-certificate", type=click.Path(path_type=Path), metavar="FILE", help="PEM.")
@click.option("--tls-key", type=click.Path(path_type=Path), metavar="FILE", help="PEM.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A name by which browsers call it; repeatable.",
)
@click.option("--kubernetes", is_flag=True, help="Show jobs and reassignments, too.")
@click.option("--namespace", default="", metavar="NAME", help="Only its resources.")
@click.option("--cluster", default="", metavar="NAME", help="Only resources of this KafkaCluster.")
@click.option("--records/--no-records", default=True, help="Show records.  [default: records]")
@click.option("--schema-registry", metavar="URL", help="Where the schemas of Avro values are.")
@click.option("--writable", is_flag=True, help="Let people approve and cancel reassignments.")
@click.pass_context
def console(
    context: click.Context,
    bootstrap_server: str,
    command_config: Path | None,
    host: str,
    port: int,
    health_port: int | None,
    users_file: Path | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    allowed_hosts: tuple[str, ...],
    kubernetes: bool,
    namespace: str,
    cluster: str,
    records: bool,
    schema_registry: str | None,
    writable: bool,
) -> None:
    """Serve pages about brokers, topics, records and groups; read-only without --writable."""
    if context.invoked_subcommand is not None:
        return

    async def work() -> None:
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise ToolError(f"{missing[0]} is not installed: it is of odradek's extra console")
        from odradek_console import app, users
        from odradek_console.settings import ConsoleSettings

        if users_file is None and not _is_own(host):
            raise ToolError(
                f"--host {host} can be reached from other machines: it needs --users (see "
                "`odradek console user`)"
            )
        if writable and not kubernetes:
            raise ToolError("--writable changes resources: it goes with --kubernetes")
        tls = _tls(tls_certificate, tls_key)
        if tls is None and not _is_own(host):
            tell(
                "warning: passwords and records go over the network as they are, unless "
                "something before the console speaks TLS: see --tls-certificate"
            )
        await app.serve(
            ConsoleSettings(
                brokers=tuple(parse_addresses(bootstrap_server)),
                access=read_access(command_config),
                host=host,
                port=port,
                health_port=health_port,
                users=None if users_file is None else users.UsersFile(users_file),
                tls=tls,
                allowed_hosts=frozenset(name.lower() for name in allowed_hosts),
                writable=writable,
                kubernetes=kubernetes,
                namespace=namespace,
                cluster=cluster,
                records=records,
                schema_registry=_registry(schema_registry),
            )
        )

    run(work())


@console.command("user")
@click.argument("name")
@click.password_option(help="Asked for by default.")
def user(name: str, password: str) -> None:
    """Print the line of a user for the file of --users."""
    from odradek_console import users

    try:
        check_stdout()
        # The file of users is UTF-8, whatever a terminal is.
        say(users.line(name, password))
    except ToolError as error:
        tell(error)
        sys.exit(error.status)


def _registry(url: str | None) -> str | None:
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and parts.hostname and not parts.query
        _ = parts.port
    except ValueError:
        is_good = False
    if not is_good:
        raise ToolError(f"--schema-registry {url} is not like http://HOST:PORT")
    return url


def _is_own(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ToolError("--tls-certificate and --tls-key go together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2

    def refuse() -> str:
        # OpenSSL would ask the terminal for a password, and wait.
        raise ToolError(f"{key} is encrypted: give a key without a password")

    try:
        context.load_cert_chain(certificate, key, refuse)
    except (ssl.SSLError, OSError) as error:
        said = tls_errors.describe(error)
        raise ToolError(f"cannot use {certificate} with {key}: {said}") from None
    return context
