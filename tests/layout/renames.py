"""What is left of the words that renames.txt gives up.

    python -m tests.layout.renames [PATH_PREFIX ...]

Prints each place that still has an old name, each new name that is nowhere, and each class name
that stands for several classes; with prefixes only places in those files or folders. Exit status 1
if there are any. Only identifiers count, never words in comments and docstrings.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.layout import sources
from tests.layout.sources import ROOT, Source

TABLE = Path(__file__).with_name("renames.txt")
ROW = re.compile(
    r"(?P<kind>module|file|name|member) (?P<old>\S+) -> (?P<new>\S+)(?: in (?P<scopes>.+))?"
)
DOTTED = re.compile(r"odradek(_operator|_spark)?(\.\w+)+")
BY_NAME = {"getattr", "setattr", "hasattr", "delattr"}
LOCAL, MEMBER = "variable", "member"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    kind: str
    old: str
    new: str
    scopes: tuple[str, ...]

    def covers(self, source: Source) -> bool:
        """Return whether the row says something about this file."""
        return not self.scopes or any(
            source.module == one or source.module.startswith(f"{one}.") for one in self.scopes
        )


def read_table(text: str) -> list[Row]:
    """Return the rows of the table."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = ROW.fullmatch(line.strip())
        assert found is not None, f"renames.txt:{number}: not a row: {line}"
        scopes = tuple(one.strip() for one in (found["scopes"] or "").split(",") if one.strip())
        rows.append(Row(found["kind"], found["old"], found["new"], scopes))
    return rows


@dataclass(frozen=True)
class Identifier:
    """A name in a file, and whether it names a local variable or something that others can see."""

    name: str
    role: str
    line: int


class _Collector(ast.NodeVisitor):
    """Collects identifiers, and dotted names of modules from imports and strings."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._functions = 0
        self.identifiers: list[Identifier] = []
        self.modules: list[tuple[str, int]] = []
        self.visit(source.tree)

    def _add(self, name: str, role: str, line: int) -> None:
        self.identifiers.append(Identifier(name, role, line))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._add(node.name, MEMBER, node.lineno)
        # A class in a function has fields, not local variables.
        outside, self._functions = self._functions, 0
        self.generic_visit(node)
        self._functions = outside

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._add(node.name, MEMBER, node.lineno)
        if node.returns is not None:
            self._visit_annotation(node.returns)
        self._functions += 1
        self.generic_visit(node)
        self._functions -= 1

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def visit_arg(self, node: ast.arg) -> None:
        self._add(node.arg, MEMBER, node.lineno)
        if node.annotation is not None:
            self._visit_annotation(node.annotation)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_annotation(node.annotation)
        self.generic_visit(node)

    def _visit_annotation(self, node: ast.expr) -> None:
        """Names in annotations that are strings."""
        for one in ast.walk(node):
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                for name in re.findall(r"[A-Za-z_]\w*", one.value):
                    self._add(name, LOCAL, one.lineno)

    def visit_Name(self, node: ast.Name) -> None:
        binds = isinstance(node.ctx, ast.Store) and not self._functions
        self._add(node.id, MEMBER if binds else LOCAL, node.lineno)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        is_pytest_mark = isinstance(node.value, ast.Name) and node.value.id == "pytest"
        if not is_pytest_mark:
            self._add(node.attr, MEMBER, node.end_lineno or node.lineno)
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg is not None:
            self._add(node.arg, MEMBER, node.value.lineno)
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name is not None:
            self._add(node.name, LOCAL, node.lineno)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name is not None:
            self._add(node.name, LOCAL, node.lineno)
        self.generic_visit(node)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        for name in node.kwd_attrs:
            self._add(name, MEMBER, node.lineno)
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for one in node.names:
            self.modules.append((one.name, node.lineno))
            if one.asname is not None:
                self._add(one.asname, LOCAL, one.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        origin = node.module or ""
        if node.level:
            own = self._source.module.split(".")
            keep = len(own) - node.level + self._source.is_package
            origin = ".".join([*own[:keep], *([origin] if origin else [])])
        self.modules.append((origin, node.lineno))
        for one in node.names:
            self.modules.append((f"{origin}.{one.name}", one.lineno))
            self._add(one.name, LOCAL, one.lineno)
            if one.asname is not None:
                self._add(one.asname, LOCAL, one.lineno)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func
        name = (
            called.attr
            if isinstance(called, ast.Attribute)
            else called.id
            if isinstance(called, ast.Name)
            else ""
        )
        if name in BY_NAME and len(node.args) > 1:
            second = node.args[1]
            if isinstance(second, ast.Constant) and isinstance(second.value, str):
                self._add(second.value, MEMBER, second.lineno)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        targets = [one.id for one in node.targets if isinstance(one, ast.Name)]
        if "__slots__" in targets:
            for one in ast.walk(node.value):
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    self._add(one.value, MEMBER, one.lineno)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            self.modules.append((node.value, node.lineno))


def left_over(rows: Sequence[Row], files: Iterable[Source]) -> list[str]:
    """Return each place of an old name, as `path:line: kind old -> new`."""
    by_word: dict[tuple[str, str, tuple[str, ...]], list[Row]] = defaultdict(list)
    for row in rows:
        by_word[row.kind, row.old, row.scopes].append(row)
    places: list[tuple[str, int, str]] = []
    for source in files:
        found = _Collector(source)
        by_name = defaultdict(list)
        for identifier in found.identifiers:
            by_name[identifier.name].append(identifier)
        for (kind, old, _), alike in by_word.items():
            row, advice = alike[0], " | ".join(one.new for one in alike)
            told = f"{kind} {old} -> {advice}"
            if kind == "file":
                lines = {1} if source.where == old else set()
            elif not row.covers(source):
                continue
            elif kind == "module":
                lines = {
                    line
                    for name, line in found.modules
                    if name == old or name.startswith(f"{old}.")
                }
                if source.module == old:
                    lines.add(1)
            else:
                lines = {
                    one.line
                    for name in (old, f"_{old}")
                    for one in by_name[name]
                    if kind == "name" or one.role == MEMBER
                }
            places.extend((source.where, line, told) for line in lines)
    return [f"{where}:{line}: {told}" for where, line, told in sorted(places)]


def missing(rows: Sequence[Row], packages: Iterable[Source]) -> list[str]:
    """Return the rows whose new name is nowhere in the packages, nor a file."""
    modules = {one.module for one in packages}
    names = {name.rpartition(".")[2] for name in modules}
    for source in packages:
        names |= {one.name for one in _Collector(source).identifiers}
    found = []
    for row in rows:
        known = (
            row.new in modules
            if row.kind == "module"
            else (ROOT / row.new).exists()
            if row.kind == "file"
            else row.new in names
        )
        if not known:
            found.append(f"renames.txt: {row.kind} {row.old}: {row.new} does not exist")
    return found


def classes(files: Iterable[Source]) -> Iterator[tuple[str, str]]:
    """Yield the name and the place of each class, nested and private ones too."""
    for source in files:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                yield node.name, f"{source.where}:{node.lineno}"


def ambiguous(files: Iterable[Source]) -> list[str]:
    """Return the class names that stand for several classes, with the places of these."""
    places = defaultdict(list)
    for name, place in classes(files):
        places[name].append(place)
    return [
        f"class {name}: {', '.join(all_of_it)}"
        for name, all_of_it in sorted(places.items())
        if len(all_of_it) > 1
    ]


def main(prefixes: Sequence[str]) -> int:
    """Print what is left."""
    rows = read_table(TABLE.read_text())
    packages = sources.packages()
    lines = left_over(rows, [*packages, *sources.tests()])
    lines += ambiguous([*packages, *sources.chart_files()])
    if not prefixes:
        lines += missing(rows, packages)
    wanted = [one for one in lines if not prefixes or any(each in one for each in prefixes)]
    for line in wanted:
        print(line)
    print(f"{len(wanted)} left")
    return 1 if wanted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
