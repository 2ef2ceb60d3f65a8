"""`odradek` finds the Spark package's commands, and says what is missing for them (row S2)."""

import subprocess
import sys

import pytest

from odradek_spark import extra

LIST_COMMANDS = """
import sys
from odradek.commands import main
main(["--help"], standalone_mode=False)
print([name for name in ("pyspark", "py4j", "confluent_kafka") if name in sys.modules])
"""


def test_help_lists_the_commands_without_loading_their_libraries() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LIST_COMMANDS], capture_output=True, text=True, check=True
    )
    lines = ended.stdout.splitlines()
    named = {line.split()[0] for line in lines if line.startswith("  ") and line.strip()}
    assert {"broker", "datagen", "sql", "zookeeper"} <= named
    assert lines[-1] == "[]"


def test_images_without_spark_say_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    extra.require("pyspark")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(SystemExit) as ended:
        extra.require("pyspark")
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("odradek: pyspark is not installed: install odradek[spark]")
    assert said.count("\n") == 1
