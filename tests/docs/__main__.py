"""Command line of the documentation's site: `python -m tests.docs` builds it."""

from __future__ import annotations

import subprocess
import sys

from tests.docs import site


def main() -> int:
    """Build the site and say where it is; return the exit status."""
    try:
        folder = site.build()
    except subprocess.CalledProcessError as error:
        print(error.stdout or error, file=sys.stderr)
        return 1
    print(f"{folder / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
