"""The second try of few failed tests, with a real pytest on small suites."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.second_try import worth_a_second_try

ROOT = Path(__file__).parents[2]
PASSES_ONCE_MORE = """
from pathlib import Path
SEEN = Path(__file__).with_suffix(".seen")

def test_passes_on_the_second_try():
    seen = SEEN.exists()
    SEEN.touch()
    assert seen

def test_passes():
    assert True
"""
FAILS = "def test_fails():\n    raise AssertionError\n"


def run(suite: Path, files: dict[str, str], workers: int = 0) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (suite / f"test_{name}.py").write_text(text)
    options = ["-n", str(workers), "--dist", "loadfile", "--rootdir", str(suite), "-p", "xdist"]
    return subprocess.run(
        [sys.executable, "-m", "tests.second_try", *options, str(suite)],
        cwd=ROOT,
        # Other plugins take as long to load as the rest takes.
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_test_that_passes_alone_is_named_as_flaky(tmp_path: Path) -> None:
    ran = run(tmp_path, {"once": PASSES_ONCE_MORE}, workers=2)
    assert ran.returncode == 0, ran.stdout
    named = ran.stdout.partition("FLAKY")[2]
    assert "test_once.py::test_passes_on_the_second_try" in named
    assert "::test_passes\n" not in named


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    ran = run(tmp_path, {"once": PASSES_ONCE_MORE, "wrong": FAILS})
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED
    assert "FLAKY" not in ran.stdout


def test_a_file_that_cannot_be_collected_fails_the_run(tmp_path: Path) -> None:
    ran = run(tmp_path, {"broken": "import nothing_of_that_name\n"})
    assert ran.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED)


def test_failures_all_over_the_suite_are_no_accident(tmp_path: Path) -> None:
    ran = run(tmp_path, {f"once_{each}": PASSES_ONCE_MORE for each in range(4)})
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED
    assert "they run again" not in ran.stdout


@pytest.mark.parametrize(
    ("failed", "worth"),
    [
        ([], False),
        (["a.py::one", "a.py::two", "b.py::one", "c.py::Some::one"], True),
        (["a.py::one", "b.py::one", "c.py::one", "d.py::one"], False),
    ],
)
def test_few_files_are_worth_a_second_try(failed: list[str], worth: bool) -> None:
    assert worth_a_second_try(failed) is worth
