"""`odradek sql`: an entry point of the command line, which finds it by its name in the metadata.

Nothing is imported here that takes time: `odradek --help` loads this module.
"""

import re
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn, TextIO

import click

from odradek import given_files
from odradek.terminal_text import tell
from odradek_spark import commands, extra

_INTERRUPTED = 128 + signal.SIGINT
_HEAP = re.compile("([0-9]{1,12})([kmgt])", re.IGNORECASE)
_KIB = {"k": 1, "m": 1024, "g": 1024**2, "t": 1024**3}
# Spark starts with no less.
_LEAST_MIB = 450


class _HeapSize(click.ParamType[str]):
    """A size as Java's option takes it: Java says little of one that it does not take."""

    name = "size"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> str:
        """Return it as it is."""
        found = _HEAP.fullmatch(str(value))
        if found is None or int(found[1]) * _KIB[found[2].lower()] < _LEAST_MIB * 1024:
            self.fail(f"{value!r} is no size such as 1g, of at least {_LEAST_MIB}m", param, context)
        return str(value)


@click.command()
@commands.bootstrap_option
@commands.command_config_option
@click.option("-e", "--execute", "texts", multiple=True, metavar="STATEMENTS", help="Repeatable.")
@click.option("-f", "--file", "files", multiple=True, type=click.File(encoding="utf-8"))
@click.option(
    "--jars",
    envvar="ODRADEK_SPARK_JARS",
    metavar="FOLDER|JAR,...",
    help="Spark's Kafka connector, which the Spark image and the package odradek-spark-jars have. "
    "Also ODRADEK_SPARK_JARS.",
)
@click.option(
    "--memory",
    type=_HeapSize(),
    metavar="SIZE",
    default="1g",
    show_default=True,
    help="Heap of Spark's JVM.",
)
def sql(
    bootstrap_server: str,
    command_config: Path | None,
    texts: tuple[str, ...],
    files: tuple[TextIO, ...],
    jars: str | None,
    memory: str,
) -> None:
    """Query topics with SQL on Spark's local mode, in a shell or with -e and -f.

    Exit codes: 0, 1 for a statement that failed, 2 for bad usage, 130 after Ctrl-C.
    """
    extra.require("pyspark", "confluent_kafka")
    from odradek_spark.sql import shell
    from odradek_spark.sql.errors import SqlError
    from odradek_spark.sql.session import ShellOptions, SqlSession

    if texts and files:
        raise click.UsageError("give either -e or -f")
    if sys.stdout is None:
        _exit("stdout is closed")
    if sys.stdin is None and not (texts or files):
        _exit("stdin is closed")
    access = commands.read_access(bootstrap_server, command_config)
    signal.signal(signal.SIGTERM, _exit_at_sigterm)
    try:
        session = SqlSession(ShellOptions(access, jars, memory), sys.stdout)
    except OSError as error:
        _exit(f"cannot make a folder for temporary files: {error.strerror}")
    try:
        session.topics.summaries()  # no shell without a broker
        if texts or files or not sys.stdin.isatty():
            for text in texts or [_read(file) for file in files or (sys.stdin,)]:
                shell.run_text(session, text)
        else:
            click.echo(f"Topics of {bootstrap_server}. HELP lists statements, Ctrl-D leaves.")
            shell.run_interactively(session)
    except (SqlError, UnicodeDecodeError) as error:
        tell(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    finally:
        session.close()


def _read(file: TextIO) -> str:
    try:
        text = file.read(given_files.MOST_BYTES + 1)
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file.name} is not UTF-8 text") from error
    if len(text) > given_files.MOST_BYTES:
        raise click.UsageError(f"{file.name} is too large")
    return text


def _exit(mistake: str) -> NoReturn:
    tell(mistake)
    sys.exit(2)


def _exit_at_sigterm(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)
