"""The layout of ARCHITECTURE.md, made of what the modules say of themselves.

    python -m tests.layout.print_layout [--write]

Each module of the packages stands there with the first sentence of its docstring, each folder
with that of its `__init__`; folders that are not Python have their lines in `FOLDERS`. `--write`
puts it into ARCHITECTURE.md between the markers.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.layout.sources import ROOT

DOCUMENT = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- layout -->", "<!-- /layout -->"
COLUMN = 28
WIDTH = 120
PACKAGE = re.compile(r".*/src/odradek\w*")

# What stands on top, in this order; a package is followed by its modules.
FOLDERS = {
    "broker_image": "Dockerfile, requirements.lock",
    "broker_image/src/odradek": "",
    "operator": "Dockerfile, requirements.lock; no __init__.py here, ever",
    "operator/src/odradek_operator": "",
    "operator/src/odradek_local": "",
    "operator/src/odradek_console": "",
    "operator/spark_job": "Dockerfile, requirements.lock, pom.xml and java/ (further jars)",
    "operator/spark_job/src/odradek_spark": "",
    "operator/spark_jars": "pyproject.toml and NOTICE of a wheel; SHA256SUMS pins its jars",
    "operator/spark_jars/src/odradek_spark_jars": "",
    "crds": "the only source of the CRDs; charts/odradek/crds/ holds copies, a test compares them",
    "charts/odradek": "Chart.yaml values.yaml values.schema.json templates/ files/ crds/",
    "examples": "quickstart/ is what `make up` runs (and local.sh what `make quickstart` does); "
    "kubectl/ autoscaling/ helm/ argocd/ flux/",
    "docs": "the design and its rows, decisions (adr/), what was tested with which clients",
    "tests": "unit tests foldered by behaviour; cluster/ (the built-in Kubernetes), docs/ (the "
    "site), release/ (`make release`), e2e/, chaos/, simulator/ (seeded schedules of faults), "
    "fuzz/ (damaged frames), peers/ (Apache Kafka's own "
    "tools and clients; go/ and node/: programs with the clients of these languages), bench/, "
    "layout/ (this list, imports, names, walks), support/",
}
# A sentence ends at a full stop before a capital letter; "v. X" and "e.g. X" are not written here.
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`/])")


def first_sentence(docstring: str | None) -> str:
    """Return the first sentence on one line, without its full stop."""
    if not docstring:
        return ""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    return SENTENCE.split(paragraph)[0].removesuffix(".")


def says(path: Path) -> str:
    """Return the first sentence of a module."""
    return first_sentence(ast.get_docstring(ast.parse(path.read_text(), str(path))))


def line(depth: int, name: str, text: str) -> str:
    """Return an entry of the tree, over several lines where it is long."""
    start = f"{'  ' * depth}{name}"
    if not text:
        return start
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=f"{start:{COLUMN}}" if len(start) < COLUMN else f"{start}  ",
        subsequent_indent=" " * COLUMN,
        break_long_words=False,
        break_on_hyphens=False,
    )


def modules(folder: Path, depth: int) -> Iterator[str]:
    """Yield the lines of a package folder's modules, then those of the folders in it."""
    inside = sorted(folder.iterdir())
    for path in inside:
        if path.suffix == ".py" and path.name != "__init__.py":
            yield line(depth, path.name, says(path))
    for path in inside:
        if (path / "__init__.py").exists():
            yield line(depth, f"{path.name}/", says(path / "__init__.py"))
            yield from modules(path, depth + 1)


def layout(root: Path = ROOT, folders: Iterable[tuple[str, str]] = tuple(FOLDERS.items())) -> str:
    """Return the whole tree as text."""
    lines: list[str] = []
    above: list[str] = []
    for name, text in folders:
        path = root / name
        if not path.is_dir():
            continue
        while above and not name.startswith(f"{above[-1]}/"):
            above.pop()
        depth = len(above)
        shown = f"{name.removeprefix(f'{above[-1]}/') if above else name}/"
        if PACKAGE.fullmatch(name):
            lines.append(line(depth, shown, says(path / "__init__.py")))
            lines.extend(modules(path, depth + 1))
        else:
            lines.append(line(depth, shown, text))
            above.append(name)
    return "\n".join(lines) + "\n"


def unlisted(root: Path = ROOT) -> list[str]:
    """Return the folders on top of the checkout that `FOLDERS` does not name."""
    ignored = (root / ".gitignore").read_text().split()
    left_out = {one.rstrip("/") for one in ignored}
    known = {name.partition("/")[0] for name in FOLDERS}
    return [
        path.name
        for path in sorted(root.iterdir())
        if path.is_dir() and path.name[0] != "." and path.name not in known | left_out
    ]


def section(text: str) -> str:
    """Return what stands between the markers of a document."""
    _, begin, rest = text.partition(BEGIN)
    inside, end, _ = rest.partition(END)
    assert begin, f"no {BEGIN} in {DOCUMENT.name}"
    assert end, f"no {END} in {DOCUMENT.name}"
    return inside


def fenced(tree: str) -> str:
    """Return the section as it should be."""
    return f"\n```\n{tree}```\n"


def main() -> int:
    """Print the layout, or write it into the document."""
    parser = argparse.ArgumentParser(description="The layout of ARCHITECTURE.md.")
    parser.add_argument("--write", action="store_true", help="put it into ARCHITECTURE.md")
    if not parser.parse_args().write:
        sys.stdout.write(layout())
        return 0
    text = DOCUMENT.read_text()
    DOCUMENT.write_text(
        text.replace(f"{BEGIN}{section(text)}{END}", f"{BEGIN}{fenced(layout())}{END}")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
