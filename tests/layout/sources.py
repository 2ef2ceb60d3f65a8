"""The Python files that the tests of the layout look at, parsed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "odradek": ROOT / "broker_image/src/odradek",
    "odradek_operator": ROOT / "operator/src/odradek_operator",
    "odradek_local": ROOT / "operator/src/odradek_local",
    "odradek_console": ROOT / "operator/src/odradek_console",
    "odradek_spark": ROOT / "operator/spark_job/src/odradek_spark",
}


@dataclass(frozen=True)
class Source:
    """One file; `module` is its dotted name, for a package that of its folder."""

    path: Path
    module: str

    @property
    def where(self) -> str:
        """The path from the checkout's root, for messages."""
        inside = self.path.is_relative_to(ROOT)
        return str(self.path.relative_to(ROOT) if inside else self.path)

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed text."""
        return ast.parse(self.path.read_text(), self.where)

    @property
    def is_package(self) -> bool:
        """Return whether this is the __init__ of a folder."""
        return self.path.name == "__init__.py"


def _below(folder: Path, prefix: str) -> Iterator[Source]:
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        kept = parts[:-1] if parts[-1] == "__init__" else parts
        yield Source(path, ".".join((prefix, *kept)))


@cache
def package(name: str) -> tuple[Source, ...]:
    """Return the modules of one of the packages."""
    return tuple(_below(PACKAGES[name], name))


def packages() -> list[Source]:
    """Return the modules of the packages."""
    return [one for name in PACKAGES for one in package(name)]


@cache
def tests() -> tuple[Source, ...]:
    """Return the files of the tests."""
    return tuple(_below(ROOT / "tests", "tests"))


@cache
def chart_files() -> tuple[Source, ...]:
    """Return what the chart's jobs run."""
    return tuple(_below(ROOT / "charts", "charts"))
