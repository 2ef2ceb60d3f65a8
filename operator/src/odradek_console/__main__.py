"""`python -m odradek_console` is `odradek console`."""

from odradek_console.command import console

if __name__ == "__main__":
    console(prog_name="odradek console")
