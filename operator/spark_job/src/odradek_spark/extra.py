"""Tells users of commands in one line that the libraries of the extra `spark` are missing."""

import importlib.util
import sys

import click


def require(*modules: str) -> None:
    """Exit with status 1 unless all modules are installed: the package is in every image."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        click.echo(
            f"odradek: {missing[0]} is not installed: install odradek[spark], "
            "or use the image of Spark jobs",
            err=True,
        )
        sys.exit(1)
