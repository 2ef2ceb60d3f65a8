"""How commands end: at a mistake in how they are called, at Ctrl-C, on a full disk, and where no
thread can be started.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.exceptions import NoArgsIsHelpError

from odradek import standard_output, stop_signals, terminal_text, thread_errors


class UsageMistakeError(click.ClickException):
    """A command is not called as it wants to be."""

    exit_code = 2

    def __init__(self, error: click.UsageError) -> None:
        # Choices are a line each.
        message = error.format_message().replace("\n\t", " ")
        where = "" if error.ctx is None else f" (see `{error.ctx.command_path} --help`)"
        super().__init__(f"{message.rstrip('.')}{where}")

    def show(self, file: Any = None) -> None:
        """Tell it as other errors are told: click would show how the command is used, too."""
        terminal_text.tell(self.message)


@contextmanager
def usage_mistakes() -> Iterator[None]:
    """Raise UsageMistakeError for what click finds wrong; help that nobody asked for stays help."""
    try:
        yield
    except NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        raise UsageMistakeError(error) from error


class EndingGroup(click.Group):
    """A group of commands that ends as all of `odradek` do."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Read the options of the group itself."""
        with usage_mistakes():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, context: click.Context) -> Any:
        """Run a command. Ctrl-C ends those that do not look after it. Names are looked up in
        threads, so that a machine which has none left lets no command go on.
        """
        try:
            with usage_mistakes():
                return super().invoke(context)
        except KeyboardInterrupt:
            sys.exit(stop_signals.INTERRUPTED)
        except click.Abort as error:
            # Raised by a prompt, also at its end of input.
            if isinstance(error.__context__, KeyboardInterrupt):
                sys.exit(stop_signals.INTERRUPTED)
            click.echo(err=True)
            terminal_text.tell("stdin ended before the answer")
            sys.exit(2)
        except RuntimeError as error:
            if not thread_errors.is_no_thread(error):
                raise
            terminal_text.tell(thread_errors.NO_THREAD)
            sys.exit(1)
        finally:
            standard_output.flush()
