"""The command line of the exporter: lag of every consumer group of one cluster, for Prometheus.

    python -m odradek_operator.exporter --zookeeper HOST:PORT[/CHROOT] --port 9308

An error in the arguments is one line on stderr and exit status 2, a port in use exit status 1.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from odradek.http_server import HttpServer
from odradek.properties import ConfigError, zookeeper_servers
from odradek.terminal_text import plain
from odradek.zk import access_files
from odradek.zk.client import OPEN
from odradek.zk.consumers import TopicPattern
from odradek_operator.exporter.rounds import Exporter, Filter, Options
from odradek_operator.shared.topic_patterns import compile_re2

Command = TypeVar("Command", bound=Callable[..., None])


def _parse_servers(_: click.Context, __: click.Parameter, text: str) -> str:
    try:
        return zookeeper_servers(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not HOST:PORT,.../CHROOT: {error}") from None


def _parse_pattern(_: click.Context, __: click.Parameter, text: str | None) -> TopicPattern | None:
    try:
        return None if text is None else compile_re2(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no regular expression: {error}") from None


def _pattern(name: str, text: str) -> Callable[[Command], Command]:
    return click.option(name, metavar="REGEX", callback=_parse_pattern, help=text)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--zookeeper",
    required=True,
    metavar="HOST:PORT[/CHROOT]",
    callback=_parse_servers,
    help="ZooKeeper of the cluster.",
)
@click.option(
    "--port",
    default=9308,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="Port of /metrics and /healthz.",
)
@click.option(
    "--interval",
    default=15,
    show_default=True,
    metavar="SECONDS",
    type=click.IntRange(1, 3600),
    help="Time from one round to the next.",
)
@click.option(
    "--client-config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings of Kafka's clients: security.protocol, sasl.*, ssl.truststore.*.",
)
@click.option(
    "--zookeeper-files",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="With what to connect to ZooKeeper: ca.crt, user.pem, zookeeper.jaas.",
)
@click.option("--listener", metavar="NAME", help="The brokers' listener; the first one by default.")
@_pattern("--groups", "Groups to export; the expression (RE2) matches the whole name.")
@_pattern("--exclude-groups", "Groups to leave out.")
@_pattern("--topics", "Topics to export.")
@_pattern("--exclude-topics", "Topics to leave out.")
def main(
    zookeeper: str,
    port: int,
    interval: int,
    client_config: Path | None,
    zookeeper_files: Path | None,
    listener: str | None,
    groups: TopicPattern | None,
    exclude_groups: TopicPattern | None,
    topics: TopicPattern | None,
    exclude_topics: TopicPattern | None,
) -> None:
    """Export the lag of every consumer group of one cluster."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        access = OPEN if zookeeper_files is None else access_files.of_folder(zookeeper_files)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--zookeeper-files") from None
    exporter = Exporter(
        Options(
            zookeeper,
            interval,
            Filter(groups, exclude_groups),
            Filter(topics, exclude_topics),
            client_config,
            listener,
            access,
        )
    )
    try:
        server = HttpServer(port, exporter.probe, exporter.answer)
    except OSError as error:
        raise click.ClickException(f"port {port}: {error.strerror}") from None
    # The first process of a container ignores signals without a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    logging.info("serving /metrics and /healthz on port %d", port)
    pause = threading.Event()
    try:
        while True:
            began = time.monotonic()
            exporter.round()
            pause.wait(max(0.0, interval - (time.monotonic() - began)))
    except KeyboardInterrupt:
        sys.exit(0)
    finally:
        server.stop()
        exporter.close()


def run() -> None:
    """Run the command line, with errors of one line."""
    try:
        main(prog_name="odradek-exporter", standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"odradek-exporter: {plain(error.format_message())}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    run()
