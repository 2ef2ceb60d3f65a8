"""How commands end: at Ctrl-C, on a full disk, and where no thread can be started."""

from __future__ import annotations

import sys
from typing import Any

import click

from odradek import standard_output, stop_signals, terminal_text, thread_errors


class EndingGroup(click.Group):
    """A group of commands that ends as all of `odradek` do."""

    def invoke(self, context: click.Context) -> Any:
        """Run a command. Ctrl-C ends those that do not look after it. Names are looked up in
        threads, so that a machine which has none left lets no command go on.
        """
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            sys.exit(stop_signals.INTERRUPTED)
        except click.Abort as error:
            # Raised by a prompt, also at its end of input.
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            sys.exit(stop_signals.INTERRUPTED)
        except RuntimeError as error:
            if not thread_errors.is_no_thread(error):
                raise
            terminal_text.tell(thread_errors.NO_THREAD)
            sys.exit(1)
        finally:
            standard_output.flush()
