"""`python -m odradek_console` is `odradek console`."""

from odradek import standard_output, stop_signals


def main() -> None:
    """Run the command as `odradek` does."""
    stop_signals.exit_at_interrupt()
    from odradek_console.command import console

    standard_output.guard()
    stop_signals.raise_interrupts()
    console(prog_name="odradek console")


if __name__ == "__main__":
    main()
