"""Imports point downward, never in a circle, and every module stands in a layer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.layout import import_graph, sources
from tests.layout.import_graph import Import
from tests.layout.sources import Source


def show(lines: list[str]) -> str:
    return "\n".join([f"{len(lines)} faults:", *lines])


def test_the_graph_has_no_circle_no_arrow_up_and_nothing_outside_the_layers() -> None:
    found = import_graph.faults(sources.packages(), import_graph.contracts())
    assert not found, show(found)


def test_the_graph_of_each_package_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(import_graph.graph(sources.packages(), modules=True))
    nodes = [one for one in lines if not one.startswith(" ")]
    assert [one.partition(":")[0] for one in nodes] == list(sources.PACKAGES)
    assert any(one.startswith("  replica/ ") and "log/" in one for one in lines)


def write(folder: Path, files: dict[str, str]) -> list[Source]:
    """Return a package `p` with these modules."""
    found = []
    for name, text in files.items():
        path = folder.joinpath(*name.split("/"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        parts = ["p", *name.removesuffix(".py").split("/")]
        found.append(Source(path, ".".join(one for one in parts if one != "__init__")))
    return found


TYPES_ONLY = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from p.b.inner import Name
"""


def faults(files: list[Source], layers: str, **fields: object) -> list[str]:
    contract = {"type": "layers", "name": "c", "layers": layers.split(" > "), **fields}
    contracts = import_graph.read_layers({"tool": {"importlinter": {"contracts": [contract]}}})
    found = import_graph.faults(files, contracts)
    return [one for one in found if "exhaustive" not in one]


def test_circles_are_found_through_types_functions_and_folders(tmp_path: Path) -> None:
    files = write(
        tmp_path,
        {
            "__init__.py": "",
            "a/__init__.py": "",
            "a/one.py": TYPES_ONLY,
            "a/two.py": "",
            "b/__init__.py": "",
            "b/inner.py": "def late() -> None:\n    import p.a.two\n",
            "c.py": "from p import d\n",
            "d.py": "from p.c import Name\n",
        },
    )
    assert faults(files, "p") == [
        "circle of modules: p.c <-> p.d",
        "circle of folders: p.a <-> p.b",
    ]


def test_arrows_up_and_between_neighbours_are_found(tmp_path: Path) -> None:
    files = write(
        tmp_path,
        {
            "__init__.py": "",
            "high.py": "import p.left\n",
            "left.py": "from p import low, right\n",
            "right.py": "",
            "low.py": "from p.high import Name\n",
        },
    )
    assert faults(files, "high > left | right > low", containers=["p"], exhaustive=True) == [
        "circle of modules: p.high <-> p.left <-> p.low",
        "p.left -> p.right: up in `c`",
        "p.low -> p.high: up in `c`",
    ]


def test_modules_outside_the_layers_are_found(tmp_path: Path) -> None:
    files = write(tmp_path, {"__init__.py": "", "a.py": "", "b/__init__.py": "", "c.py": ""})
    layered = {"containers": ["p"], "exhaustive": True}
    assert faults(files, "a", **layered) == ["p.b stands in no layer", "p.c stands in no layer"]
    assert faults(files, "a > b", exhaustive_ignores=["c"], **layered) == []


def test_floors_are_those_of_the_longest_path() -> None:
    assert import_graph.floors([("a", "b"), ("b", "c"), ("a", "c"), ("d", "c")]) == 3
    assert import_graph.circles([("a", "b"), ("b", "c")]) == []


def test_a_name_counts_for_the_module_that_has_it(tmp_path: Path) -> None:
    files = write(tmp_path, {"__init__.py": "", "a.py": "from p.b import Name\n", "b.py": ""})
    assert import_graph.read_imports(files) == {Import("p.a", "p.b")}
