"""The checkout's shape: what must not exist, and that it stays harmless."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("path", ["operator/__init__.py", "tests/operator"])
def test_nothing_shadows_the_standard_operator_module(path: str) -> None:
    assert not (ROOT / path).exists()


def test_standard_library_imports_with_the_checkout_first_on_the_path() -> None:
    code = "import operator, collections; assert operator.add(1, 2) == 3; print(operator.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(ROOT) not in found.stdout


def test_one_wheel_holds_the_packages() -> None:
    import odradek
    import odradek_console
    import odradek_local
    import odradek_operator
    import odradek_spark

    for package in (odradek, odradek_console, odradek_local, odradek_operator, odradek_spark):
        assert Path(str(package.__file__)).is_relative_to(ROOT)


def test_click_is_not_older_than_what_is_imported_of_it() -> None:
    """`command_ends` imports NoArgsIsHelpError, which click has since 8.2."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {one.name: one.specifier for one in map(Requirement, project["dependencies"])}
    assert not asked["click"].contains("8.1.8")
