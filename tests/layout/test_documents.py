"""Links between documents resolve, and commands that documents name exist."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
# A command begins its line, its span or a substitution: "make up", "$(make -s kubeconfig)".
COMMAND = re.compile(r"(?:^|`|\$\()make (?:-s )?([a-z][a-z0-9]*)\b", re.MULTILINE)
TARGET = re.compile(r"^([a-z][a-z0-9]*):", re.MULTILINE)


def documents() -> list[str]:
    """Return the paths of the checkout's Markdown files, without what tools put there."""
    made = ("build", "dist")
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."]
    folders = [path for path in folders if path.name not in made]
    found = [*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.md"))]
    names = [path.relative_to(ROOT) for path in found]
    return sorted(str(name) for name in names if "node_modules" not in name.parts)


@cache
def text_of(document: Path) -> str:
    return document.read_text()


def anchors(document: Path) -> set[str]:
    """Return the fragments by which the headings of a document can be reached."""
    headings = HEADING.findall(FENCE.sub("", text_of(document)))
    plain = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def code(document: str) -> str:
    """Return what a document marks as code: its blocks and its inline spans."""
    text = text_of(ROOT / document)
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    return "\n".join([*FENCE.findall(text), *spans])


@pytest.mark.parametrize("name", documents())
def test_relative_links_lead_to_files_and_headings(name: str) -> None:
    document = ROOT / name
    broken = []
    for link in LINK.findall(FENCE.sub("", text_of(document))):
        if "://" in link:
            continue
        path, _, fragment = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (fragment and fragment not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize(
    "name",
    ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "docs/compatibility.md"],
)
def test_make_targets_that_documents_name_exist(name: str) -> None:
    named = set(COMMAND.findall(code(name)))
    assert named
    assert named <= set(TARGET.findall(text_of(ROOT / "Makefile")))


def test_readme_has_its_three_commands() -> None:
    blocks = FENCE.findall(text_of(ROOT / "README.md"))
    lines = [line for block in blocks for line in block.splitlines()]
    commands = [line.split("#")[0].strip() for line in lines]
    assert {"make quickstart", "make up", "make test"} <= set(commands)


@pytest.mark.parametrize(
    "name",
    ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/compatibility.md"],
)
def test_files_of_the_checkout_that_documents_name_exist(name: str) -> None:
    folders = "broker_image|operator|charts|crds|examples|tests|docs"
    named = re.findall(rf"(?<![\w/.-])((?:{folders})/[\w./-]*\w)", code(name))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_decisions_are_listed_in_the_index() -> None:
    folder = ROOT / "docs/adr"
    index = LINK.findall(text_of(folder / "README.md"))
    assert sorted(p.name for p in folder.glob("[0-9]*.md")) == sorted(index)
