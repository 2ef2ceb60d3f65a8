"""Names and messages of strangers, as commands show them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from odradek import terminal_text
from odradek.log.records import records
from odradek.log.records.records import Record
from odradek.tools import command_line, consume, log_dump
from odradek.values import TopicPartition
from odradek_local.display import Display
from odradek_spark import show
from tests.support.logs import START_MS

STEERS = "a\x1b[2J\nb\x9b\u202e"
PLAIN = "a\\x1b[2J\\nb\\x9b\\u202e"


def test_a_message_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    terminal_text.tell(ValueError(f"{STEERS} \u00fc \u6f22"))
    assert capsys.readouterr().err == f"odradek: {PLAIN} \u00fc \u6f22\n"


def test_a_table_stays_aligned(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    command_line.show_table(("NAME", "NEXT"), [(STEERS, 1), ("\u00fc", 22)])
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert lines == [
        "NAME".ljust(len(PLAIN)) + " NEXT",
        PLAIN + " 1",
        "\u00fc".ljust(len(PLAIN)) + " 22",
    ]


def test_json_means_the_same(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    document = [{"name": f"{STEERS}\ud800\U000e0001\u00fc"}]
    command_line.show_json(document)
    said = capfdbinary.readouterr().out.decode()
    assert json.loads(said) == document
    assert all(one.isprintable() for one in said.splitlines())
    assert "\u00fc" in said


def test_a_record_as_json_keeps_its_value_and_steers_nothing() -> None:
    record = Record(0, 0, None, STEERS.encode(), headers=((STEERS, b""),))
    line = consume._line("json", TopicPartition("t", 0), record).decode()
    assert line.removesuffix("\n").isprintable()
    assert (json.loads(line)["value"], json.loads(line)["headers"]) == (STEERS, [[STEERS, ""]])
    assert consume._line("value", TopicPartition("t", 0), record) == STEERS.encode() + b"\n"


def test_the_name_of_a_header_in_a_dump_steers_nothing(tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(records.encode([Record(0, START_MS, None, b"v", ((STEERS, b"w"),))]))
    done = CliRunner().invoke(log_dump.commands, ["dump", str(file), "--records"])
    assert done.stdout.endswith(f" value b'v' {PLAIN}=b'w'\n")


def test_a_result_and_what_a_local_run_says_are_lines() -> None:
    shown = io.StringIO()
    Display(shown, is_terminal=False).line(f"job ended: {STEERS}")
    assert shown.getvalue() == f"job ended: {PLAIN}\n"
    assert show.render([STEERS], [(STEERS,)]).splitlines()[::2] == [PLAIN, PLAIN]
