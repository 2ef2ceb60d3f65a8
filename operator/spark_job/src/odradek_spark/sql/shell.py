"""Runs statements from a terminal, or from a text as far as the first one that fails."""

import os
import sys
from pathlib import Path

import click

from odradek.terminal_text import plain
from odradek_spark.sql import statements
from odradek_spark.sql.errors import SqlError
from odradek_spark.sql.session import SqlSession

PROMPT = "odradek> "
_CONTINUED = "      -> "
_HISTORY_LINES = 1000
_WORDS_WITHOUT_END = ("exit", "quit", "help")


def run_text(session: SqlSession, text: str) -> None:
    """Execute all statements of a text; the last one needs no `;`. Raises SqlError."""
    complete, rest = statements.split(text + "\n;")
    if rest:
        raise SqlError("a quote or a comment is not closed")
    for statement in complete:
        if not session.execute(statement):
            return


def run_interactively(session: SqlSession) -> None:
    """Read statements from the terminal until EXIT or Ctrl-D.

    An error ends a statement, Ctrl-C all of a line.
    """
    _keep_history()
    pending = ""
    while True:
        try:
            line = input(_CONTINUED if pending else PROMPT)
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo()
            pending = ""
            continue
        if not pending and line.strip().lower() in _WORDS_WITHOUT_END:
            line += ";"
        complete, pending = statements.split(f"{pending}{line}\n")
        try:
            for statement in complete:
                if not _executed(session, statement):
                    return
        except KeyboardInterrupt:
            click.echo()


def _executed(session: SqlSession, statement: str) -> bool:
    """Execute a statement and tell its error; return False after EXIT."""
    try:
        return session.execute(statement)
    except SqlError as error:
        click.echo(f"error: {plain(str(error))}", err=True)
    return True


def _keep_history() -> None:
    """Read the history of former shells, and keep this one's at the end."""
    import atexit
    import readline

    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        path = state / "odradek" / "sql_history"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            readline.read_history_file(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        click.echo(f"no history: {error}", err=True)
        return
    readline.set_history_length(_HISTORY_LINES)

    def write() -> None:
        try:
            readline.write_history_file(path)
        except OSError as error:
            print(f"no history: {error}", file=sys.stderr)  # noqa: T201

    atexit.register(write)
