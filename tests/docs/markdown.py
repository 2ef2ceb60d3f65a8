"""Markdown for generated pages: code, tables, and anchors as code hosts make them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def code(text: object) -> str:
    """Return a code span that survives in a table, or nothing for no text."""
    shown = " ".join(str(text).split())
    fence = "``" if "`" in shown else "`"
    padded = f" {shown} " if "`" in shown else shown
    return f"{fence}{padded}{fence}".replace("|", "\\|") if shown else ""


def cell(text: str) -> str:
    """Return the text on one line, without what would end the cell or begin a tag."""
    plain = re.sub(r"\\?\|", r"\\|", " ".join(text.split()))
    return re.sub(r"<(?=[a-zA-Z/])", "&lt;", plain)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown on one line."""
    lines = [head, ["---"] * len(head), *rows]
    assert all(len(line) == len(head) for line in lines), head
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def slug(heading: str) -> str:
    """Return the fragment by which a heading can be reached."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
