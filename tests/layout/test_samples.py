"""What runs in `make chaos` only names a test of the same mechanism that runs for every change."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.layout.sources import ROOT

DEFINITION = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


def long_tests(text: str) -> Iterator[tuple[str, list[object]]]:
    """Every test of a file with the marker `full`, and the marker's arguments."""
    for node in ast.parse(text).body if "mark.full" in text else []:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                call = mark.func if isinstance(mark, ast.Call) else mark
                if ast.unparse(call) == "pytest.mark.full":
                    given = mark.args if isinstance(mark, ast.Call) else []
                    yield node.name, [ast.literal_eval(one) for one in given]


def test_each_long_test_has_a_sample_that_always_runs() -> None:
    texts = {
        str(file.relative_to(ROOT)): file.read_text()
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        if file != Path(__file__)
    }
    tests = {f"{file}::{name}" for file, text in texts.items() for name in DEFINITION.findall(text)}
    samples = {
        f"{file}::{name}": named for file, text in texts.items() for name, named in long_tests(text)
    }
    assert samples
    always = tests - samples.keys()
    wrong = {
        name: named for name, named in samples.items() if not set(named) <= always or not named
    }
    assert wrong == {}
