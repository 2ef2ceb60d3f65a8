"""Puts the site's pages together: documents of the checkout, and pages made from the code.

The documents are written for a code host. Here their links are turned to pages of the site, and
their lists into those of Python-Markdown, which wants four spaces where others take two or three.
A link to a file that the site does not have becomes plain text.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.docs import commands, crds, examples, metrics, protocol, reasons, settings
from tests.layout.sources import ROOT

DOCS = ROOT / "docs"
SETTINGS, NAVIGATION = DOCS / "mkdocs.yml", DOCS / "navigation.yml"
# Documents outside of docs/ that are pages, too.
_OTHERS = {
    "README.md": "project/readme.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security-policy.md",
    "tests/bench/RESULTS.md": "results.md",
}
REFERENCE: Mapping[str, Callable[[], str]] = {
    "broker-settings.md": settings.broker_page,
    "topic-settings.md": settings.topic_page,
    "metrics.md": metrics.page,
    "command-options.md": commands.page,
    "conditions.md": reasons.page,
    "protocol.md": protocol.page,
    "examples.md": examples.page,
    "chart-values.md": examples.values_page,
}
_FENCE = re.compile(r"^ *```")
_ITEM = re.compile(r"^( *)([-*]|\d+\.) +(?=\S)")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"(`+)(?:(?!\1).)+\1")


def documents() -> dict[Path, str]:
    """Return the place in the site for each document of the checkout that is a page."""
    found = {path: str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md"))}
    found |= {ROOT / name: place for name, place in _OTHERS.items()}
    return found


def write(target: Path) -> Path:
    """Write pages and settings of the site below a folder; return the path of the latter."""
    pages = target / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    places = _places()
    for source, place in documents().items():
        _put(pages / place, for_site(source.read_text(), source, place, places))
    for picture in sorted(DOCS.rglob("*.png")):
        (pages / picture.relative_to(DOCS)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, pages / picture.relative_to(DOCS))
    for name, text in generated().items():
        _put(pages / "reference" / name, text)
    shutil.copytree(DOCS / "assets", pages / "assets")
    found = target / "mkdocs.yml"
    site = {"INHERIT": str(SETTINGS), "nav": navigation()}
    found.write_text(yaml.safe_dump(site, sort_keys=False))
    return found


def generated() -> dict[str, str]:
    """Return the pages that are made from the code, by their names."""
    return {**{name: make() for name, make in REFERENCE.items()}, **dict(crds.pages())}


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def navigation() -> list[Any]:
    """Return the navigation, with the pages of each folder that it names (`adr/*`)."""

    def expanded(entries: list[Any]) -> Iterator[Any]:
        for entry in entries:
            if isinstance(entry, str) and entry.endswith("/*"):
                folder = DOCS / entry.removesuffix("/*")
                yield from (str(path.relative_to(DOCS)) for path in _pages_of(folder))
            elif isinstance(entry, dict):
                yield {
                    title: list(expanded(inner)) if isinstance(inner, list) else inner
                    for title, inner in entry.items()
                }
            else:
                yield entry

    return list(expanded(yaml.safe_load(NAVIGATION.read_text())))


def _pages_of(folder: Path) -> list[Path]:
    """Return the pages of a folder, its index first."""
    pages = sorted(folder.glob("*.md"))
    return sorted(pages, key=lambda path: path.name != "README.md")


def _places() -> dict[Path, str]:
    """Return the page, or the part of a page, for each path that documents may link to."""
    found = documents()
    found |= {path: f"reference/examples.md#{part}" for path, part in examples.places().items()}
    found |= {path.parent: place for path, place in found.items() if path.name == "README.md"}
    found[examples.VALUES] = "reference/chart-values.md"
    found |= {path: str(path.relative_to(DOCS)) for path in DOCS.rglob("*.png")}
    return found


def for_site(text: str, source: Path, place: str, places: Mapping[Path, str]) -> str:
    """Return a document as the site has it at `place`."""

    def turned(link: re.Match[str]) -> str:
        picture, words, target = link.groups()
        if "://" in target:
            return link[0]
        path, _, fragment = target.partition("#")
        found = places.get(Path(os.path.normpath(source.parent / path)) if path else source)
        if found is None:
            return words
        page, _, part = found.partition("#")
        shown = "" if page == place else os.path.relpath(page, Path(place).parent)
        part = fragment or part
        return f"{picture}[{words}]({shown}{'#' if part else ''}{part})"

    lines = text.splitlines()
    fences = list(_in_fences(lines))
    linked = [
        line if inside else _outside_code(line, lambda piece: _LINK.sub(turned, piece))
        for line, inside in zip(lines, fences, strict=True)
    ]
    return "\n".join(_indented(linked, fences)) + "\n"


def _outside_code(line: str, change: Callable[[str], str]) -> str:
    """Change a line where it is no code; a link may have code in its words."""
    held: list[str] = []

    def hide(code: re.Match[str]) -> str:
        held.append(code[0])
        return f"\0{len(held) - 1}\0"

    changed = change(_CODE.sub(hide, line))
    return re.sub("\0(\\d+)\0", lambda mark: held[int(mark[1])], changed)


def _in_fences(lines: list[str]) -> Iterator[bool]:
    """Tell for each line whether it is of a block of code; its fences are."""
    inside = False
    for line in lines:
        fence = _FENCE.match(line) is not None
        yield inside or fence
        inside ^= fence


def _indented(lines: list[str], fences: list[bool]) -> Iterator[str]:
    """Give items of lists four spaces per level, and an empty line before the first one."""
    levels: list[int] = []
    previous = ""
    for line, inside in zip(lines, fences, strict=True):
        space = len(line) - len(line.lstrip())
        item = None if inside else _ITEM.match(line)
        if line.strip():
            while levels and space < levels[-1] and not (inside and previous.strip()):
                levels.pop()
        if item and not levels and previous.strip() and not _is_heading(previous):
            yield ""
        depth = len(levels)
        shift = space - levels[-1] if levels else space
        yield (" " * (4 * depth + max(shift, 0)) + line.lstrip()) if line.strip() else ""
        if item:
            levels.append(len(item[0]))
        previous = line


def _is_heading(line: str) -> bool:
    return line.startswith("#")
