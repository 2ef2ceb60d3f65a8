"""`python -m odradek_local` is `odradek local`."""

from odradek import standard_output, stop_signals


def main() -> None:
    """Run the command as `odradek` does."""
    stop_signals.exit_at_interrupt()
    from odradek_local.command import local

    standard_output.guard()
    stop_signals.raise_interrupts()
    local(prog_name="odradek local")


if __name__ == "__main__":
    main()
