"""`odradek`, the program: it answers signals before it loads `commands`, which takes a while."""

import sys

from odradek import stop_signals


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["broker"]:
        stop_signals.exit_at_once()
    else:
        stop_signals.exit_at_interrupt()
    from odradek import commands, standard_output

    standard_output.guard()
    commands.main()


if __name__ == "__main__":
    main()
