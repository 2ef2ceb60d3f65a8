"""`odradek datagen`: an entry point of the command line. Takes ksql-datagen's `name=value` too.

Nothing is imported here that takes time: `odradek --help` loads this module.
"""

import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from odradek.terminal_text import tell
from odradek_spark import commands, extra
from odradek_spark.datagen.quickstarts import QUICKSTARTS

_MAX_INTERVAL_MS = 500
_INT_MAX = 2**31 - 1
# Kafka's; librdkafka makes nothing of much longer ones.
_LONGEST_TOPIC = 249
# ksql-datagen's names -> the options of this command.
_ARGUMENTS = {
    "quickstart": "--quickstart",
    "topic": "--topic",
    "bootstrap-server": "--bootstrap-server",
    "command-config": "--command-config",
    "iterations": "--iterations",
    "maxinterval": "--max-interval",
    "msgrate": "--rate",
    "format": "--format",
    "value-format": "--format",
}


class _Rate(click.ParamType[float]):
    """Records per second, as a number or as `N/s`."""

    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> float:
        """Return the number."""
        try:
            rate = float(str(value).removesuffix("/s"))
        except ValueError:
            rate = 0.0
        if not 0 < rate < float("inf"):
            self.fail(f"{value!r} is no number of records per second", param, context)
        return rate


class _WithArguments(click.Command):
    """A command that reads `name=value` as `--name value`."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Return what is left, which is nothing."""
        return super().parse_args(context, _as_options(args))


def _as_options(args: Sequence[str]) -> list[str]:
    found: list[str] = []
    for place, one in enumerate(args):
        name, separator, value = one.partition("=")
        option = _ARGUMENTS.get(name.lower())
        is_value = place > 0 and args[place - 1].startswith("--") and "=" not in args[place - 1]
        found += [option, value] if separator and option and not is_value else [one]
    return found


@click.command(cls=_WithArguments)
@click.option(
    "--quickstart",
    required=True,
    type=click.Choice(list(QUICKSTARTS), case_sensitive=False),
    help="What to generate.",
)
@click.option("--topic", metavar="TOPIC", help="Default: QUICKSTART_kafka_topic_json.")
@commands.bootstrap_option
@commands.command_config_option
@click.option(
    "--iterations",
    type=click.IntRange(1, sys.maxsize),
    default=1_000_000,
    show_default=True,
    help="Number of records.",
)
@click.option("--rate", type=_Rate(), metavar="N[/s]", help="Records per second.")
@click.option(
    "--max-interval",
    type=click.IntRange(0, _INT_MAX),
    metavar="MS",
    help=f"Longest pause between two records, {_MAX_INTERVAL_MS} by default.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["json"], case_sensitive=False),
    default="json",
    show_default=True,
)
@click.option("--seed", type=int, help="The same seed gives the same records.")
def datagen(
    quickstart: str,
    topic: str | None,
    bootstrap_server: str,
    command_config: Path | None,
    iterations: int,
    rate: float | None,
    max_interval: int | None,
    format_: str,
    seed: int | None,
) -> None:
    """Write test records of a quickstart to a topic, until Ctrl-C or --iterations.

    ksql-datagen's form is understood too: odradek datagen quickstart=users topic=users
    maxInterval=100. The brokers create the topic if they are set to (auto.create.topics.enable).
    """
    extra.require("confluent_kafka")
    from odradek_spark.datagen import producer

    if rate is not None and max_interval is not None:
        raise click.UsageError("give either --rate or --max-interval")
    commands.check_utf8("--topic", topic or "")
    if topic is not None and len(topic.encode()) > _LONGEST_TOPIC:
        raise click.UsageError(f"the name of a topic has at most {_LONGEST_TOPIC} bytes")
    access = commands.read_access(bootstrap_server, command_config)
    name = topic or f"{quickstart}_kafka_topic_{format_}"
    interval = _MAX_INTERVAL_MS if max_interval is None else max_interval
    pause = producer.steady(rate) if rate is not None else producer.at_random(interval)
    kind = QUICKSTARTS[quickstart]
    try:
        writer = producer.RecordWriter(access, name, kind.key)
        click.echo(f"Writing {quickstart} to topic {name}; Ctrl-C ends", err=True)
        try:
            writer.write(
                islice(kind.records(seed), iterations),
                pause if rate is not None or interval else None,
            )
        except KeyboardInterrupt:
            click.echo(err=True)
            writer.finish()
    except producer.DatagenError as error:
        tell(error)
        sys.exit(1)
    click.echo(f"{writer.delivered} records written to topic {name}", err=True)
