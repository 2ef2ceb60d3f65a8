"""The import graph of the three packages by folder, and what is wrong with it.

    python -m tests.layout.import_graph [--modules]

A node is a package folder or a module on top of its package, an arrow says how many modules of the
one import how many times from the other; `--modules` lists the imports behind each arrow. Imports
under TYPE_CHECKING and in functions count, for a reader has to follow them too. Exit status 1 if
there is a circle between modules or folders, an arrow up against the layers of pyproject.toml, or a
module that no layer names.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.layout import sources
from tests.layout.sources import PACKAGES, ROOT, Source


@dataclass(frozen=True, order=True)
class Import:
    """One module imports another one of ours."""

    importer: str
    imported: str


def imports_of(source: Source, modules: set[str]) -> Iterator[Import]:
    """Yield what one module imports; a name that is imported counts for the module that has it."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            wanted = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{source.where}:{node.lineno}: a relative import"
            wanted = [f"{node.module}.{one.name}" for one in node.names]
        else:
            continue
        for name in wanted:
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name and name != source.module:
                yield Import(source.module, name)


def read_imports(files: Iterable[Source]) -> set[Import]:
    """Return all imports between these files."""
    listed = list(files)
    modules = {one.module for one in listed}
    return {found for one in listed for found in imports_of(one, modules)}


def folder_of(module: str, folders: set[str]) -> str:
    """Return the node of a module: the first folder below its package, or the module itself."""
    package, _, rest = module.partition(".")
    top = f"{package}.{rest.partition('.')[0]}" if rest else package
    return f"{top}/" if top in folders else top


def folders_of(files: Iterable[Source]) -> set[str]:
    """Return the dotted names of the folders right below the packages."""
    return {one.module for one in files if one.is_package and one.module.count(".") == 1}


def by_folder(imports: Iterable[Import], folders: set[str]) -> dict[tuple[str, str], list[Import]]:
    """Return the imports of each arrow between two nodes."""
    arrows = defaultdict(list)
    for one in sorted(imports):
        ends = folder_of(one.importer, folders), folder_of(one.imported, folders)
        if ends[0] != ends[1]:
            arrows[ends].append(one)
    return dict(arrows)


def child_of(parent: str, module: str) -> str | None:
    """Return the folder or module right below `parent` that a module belongs to."""
    if not module.startswith(f"{parent}."):
        return None
    return f"{parent}.{module.removeprefix(parent + '.').partition('.')[0]}"


def folder_circles(imports: Iterable[Import], files: Iterable[Source]) -> list[list[str]]:
    """Return the circles among the children of each folder, at whatever depth it lies."""
    imports, found = list(imports), []
    for parent in sorted(one.module for one in files if one.is_package):
        arrows = set()
        for one in imports:
            start, end = child_of(parent, one.importer), child_of(parent, one.imported)
            if start and end and start != end:
                arrows.add((start, end))
        found += circles(arrows)
    return found


def floors(arrows: Iterable[tuple[str, str]]) -> int:
    """Return how many nodes the longest path has; circles must be out."""
    after: dict[str, set[str]] = defaultdict(set)
    for start, end in arrows:
        after[start].add(end)
    heights: dict[str, int] = {}

    def height(node: str) -> int:
        if node not in heights:
            heights[node] = 0  # a circle ends here
            heights[node] = 1 + max(map(height, after.get(node, ())), default=0)
        return heights[node]

    return max(map(height, list(after)), default=1)


def circles(arrows: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return the strongly connected parts of more than one node (Tarjan's algorithm)."""
    after: dict[str, list[str]] = defaultdict(list)
    for start, end in sorted(arrows):
        after[start].append(end)
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        path.append(node)
        for other in after.get(node, ()):
            if other not in index:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in path:
                lowest[node] = min(lowest[node], index[other])
        if lowest[node] == index[node]:
            start = path.index(node)
            part, path[start:] = path[start:], []
            if len(part) > 1:
                found.append(sorted(part))

    for node in list(after):
        if node not in index:
            visit(node)
    return found


@dataclass(frozen=True)
class Layers:
    """A layer contract of pyproject.toml: the highest first, the full names in each."""

    name: str
    containers: tuple[str, ...]
    levels: tuple[tuple[frozenset[str], bool], ...]  # and whether they may import each other
    exhaustive: bool
    ignored: frozenset[str]  # modules that an exhaustive contract leaves out
    allowed: frozenset[tuple[str, str]]  # imports that the contract does not see

    def level_of(self, module: str) -> tuple[int, str] | None:
        """Return the layer of a module and the name it has there, None where it has none."""
        for number, (names, _) in enumerate(self.levels):
            for name in names:
                if module == name or module.startswith(f"{name}."):
                    return number, name
        return None


def _members(layer: str) -> tuple[list[str], bool]:
    """Return the names in one layer; those parted by `:` may import each other."""
    closed = "|" in layer or ":" not in layer
    return [one.strip(" ()") for one in layer.split("|" if "|" in layer else ":")], not closed


def read_layers(pyproject: Mapping[str, Any]) -> list[Layers]:
    """Return the layer contracts of import-linter."""
    found = []
    for contract in pyproject["tool"]["importlinter"]["contracts"]:
        if contract["type"] != "layers":
            continue
        containers = tuple(contract.get("containers", ()))
        levels = []
        for layer in contract["layers"]:
            names, open_ = _members(layer)
            full = [f"{one}.{name}" for name in names for one in containers] or names
            levels.append((frozenset(full), open_))
        allowed = frozenset(
            (start.strip(), end.strip())
            for start, _, end in (one.partition("->") for one in contract.get("ignore_imports", ()))
        )
        ignored = frozenset(
            f"{one}.{name}" for name in contract.get("exhaustive_ignores", ()) for one in containers
        )
        found.append(
            Layers(
                contract["name"],
                containers,
                tuple(levels),
                bool(contract.get("exhaustive", False)),
                ignored,
                allowed,
            )
        )
    return found


def arrows_up(imports: Iterable[Import], contracts: Iterable[Layers]) -> list[str]:
    """Return each import from a layer into a higher one, or into its neighbour."""
    found = []
    for contract in contracts:
        for one in sorted(imports):
            start, end = contract.level_of(one.importer), contract.level_of(one.imported)
            if start is None or end is None or start[1] == end[1]:
                continue
            beside = start[0] == end[0] and not contract.levels[start[0]][1]
            if (end[0] < start[0] or beside) and (
                one.importer,
                one.imported,
            ) not in contract.allowed:
                found.append(f"{one.importer} -> {one.imported}: up in `{contract.name}`")
    return found


def without_layer(files: Iterable[Source], contracts: Iterable[Layers]) -> list[str]:
    """Return the folders and modules right below the layered ones that no layer names."""
    contracts = list(contracts)
    layered = {container for one in contracts for container in one.containers if one.exhaustive}
    found = []
    for source in files:
        container = source.module.rpartition(".")[0]
        if container not in layered:
            continue
        beside = [one for one in contracts if container in one.containers]
        if not any(one.level_of(source.module) or source.module in one.ignored for one in beside):
            found.append(f"{source.module} stands in no layer")
    return found


def not_exhaustive(contracts: Iterable[Layers], packages: Iterable[str]) -> list[str]:
    """Return the packages that no exhaustive layer contract covers."""
    covered = {container for one in contracts for container in one.containers if one.exhaustive}
    return [f"{one} has no exhaustive layer contract" for one in packages if one not in covered]


def faults(files: Iterable[Source], contracts: Iterable[Layers]) -> list[str]:
    """Return everything that is wrong with the graph, one line each."""
    files, contracts = list(files), list(contracts)
    imports = read_imports(files)
    of_modules = circles((each.importer, each.imported) for each in imports)
    of_folders = [one for one in folder_circles(imports, files) if one not in of_modules]
    found = [f"circle of modules: {' <-> '.join(one)}" for one in of_modules]
    found += [f"circle of folders: {' <-> '.join(one)}" for one in of_folders]
    found += arrows_up(imports, contracts)
    found += not_exhaustive(contracts, PACKAGES)
    found += without_layer(files, contracts)
    return found


def contracts() -> list[Layers]:
    """Return the layer contracts of this checkout."""
    return read_layers(tomllib.loads((ROOT / "pyproject.toml").read_text()))


def graph(files: Iterable[Source], *, modules: bool) -> Iterator[str]:
    """Yield the lines that show the graph."""
    files = list(files)
    arrows = by_folder(read_imports(files), folders_of(files))
    for package in PACKAGES:
        own = {ends: found for ends, found in arrows.items() if ends[0].startswith(f"{package}.")}
        # A package itself (its __init__) may be imported for its version only: not a node.
        inner = {ends for ends in own if ends[1].startswith(f"{package}.")}
        nodes = {node for ends in inner for node in ends}
        yield f"{package}: {len(nodes)} nodes on {floors(inner)} floors, {len(inner)} arrows"
        starts = sorted({start for start, _ in own})
        for start in starts:
            counts = Counter({end: len(own[start, end]) for s, end in own if s == start})
            told = ", ".join(f"{end.removeprefix(package + '.')} {n}" for end, n in counts.items())
            yield f"  {start.removeprefix(package + '.'):28} -> {told}"
            if modules:
                for end in counts:
                    for one in own[start, end]:
                        yield f"      {one.importer} -> {one.imported}"


def main() -> int:
    """Print the graph and its faults."""
    parser = argparse.ArgumentParser(description="The import graph of the packages by folder.")
    parser.add_argument("--modules", action="store_true", help="list the imports of each arrow")
    options = parser.parse_args()
    files = sources.packages()
    for line in graph(files, modules=options.modules):
        print(line)
    found = faults(files, contracts())
    for line in found:
        print(f"fault: {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
