"""`python -m odradek_local` is `odradek local`."""

from odradek_local.command import local

if __name__ == "__main__":
    local(prog_name="odradek local")
