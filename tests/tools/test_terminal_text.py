"""Names and messages of strangers, as commands show them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from odradek import commands, terminal_text
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nope"], "No such option '--nope' (see `odradek --help`)"),
        (["nope"], "No such command 'nope' (see `odradek --help`)"),
        (["broker"], "Missing argument 'PROPERTIES' (see `odradek broker --help`)"),
        (
            ["broker", "file", "--count", "x"],
            "Invalid value for '--count': 'x' is not a valid integer range (see `odradek "
            "broker --help`)",
        ),
        (
            ["broker", "file", "--count", "101"],
            "Invalid value for '--count': 101 is not in the range 1<=x<=100 (see `odradek broker "
            "--help`)",
        ),
        (
            ["zookeeper", "--port", "65536"],
            "Invalid value for '--port': 65536 is not in the range 1<=x<=65535 (see `odradek "
            "zookeeper --help`)",
        ),
        (["topics", "lst"], "No such command 'lst'. Did you mean 'list'? (see `odradek topics -"),
        (["topics", "list", STEERS], f"Got unexpected extra argument ({PLAIN}) (see `odradek to"),
        (["datagen"], "Missing option '--quickstart'. Choose from: users, pageviews, orders, "),
        (["console", "--port"], "Option '--port' requires an argument"),
        (["local", "--once", "--keep"], "give either --once or --keep (see `odradek local -"),
    ],
)
def test_what_is_not_how_a_command_is_called_is_one_line(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(commands.main, arguments, prog_name="odradek")
    assert (done.exit_code, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"odradek: {said}")


def test_a_prompt_whose_answer_does_not_come_is_a_mistake() -> None:
    done = CliRunner().invoke(commands.main, ["console", "user", "ann"], input="")
    assert done.exit_code == 2
    assert done.stderr.endswith("\nodradek: stdin ended before the answer\n")


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
