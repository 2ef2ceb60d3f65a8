"""Tells users of commands in one line that the libraries of the extra `spark` are missing."""

import importlib.util
import sys

from odradek.terminal_text import tell


def require(*modules: str) -> None:
    """Exit with status 1 unless all modules are installed: the package is in every image."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        tell(
            f"{missing[0]} is not installed: install odradek[spark], or use the image of Spark jobs"
        )
        sys.exit(1)
