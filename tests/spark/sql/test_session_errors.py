"""What a shell does where the machine lacks what it needs: room, a home, a folder."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
from pathlib import Path

import pytest

from odradek.standard_output import StdoutError
from odradek_spark.broker_access import BrokerAccess
from odradek_spark.sql import shell
from odradek_spark.sql.session import ShellOptions, SqlSession

WITHOUT_FOLDERS = """
import tempfile
tempfile.tempdir = "/nowhere"
from odradek.__main__ import main
main()
"""


WITH_A_LOG = """
import os, subprocess, sys
from pathlib import Path
from odradek import standard_output
standard_output.guard()
from odradek_spark.sql import local_spark
with local_spark._output_to(Path(sys.argv[1])):
    subprocess.run(["sh", "-c", "echo said >&2"], check=True)
print(os.readlink("/proc/self/fd/2"))
"""


class Full(io.StringIO):
    """stdout on a full disk."""

    def write(self, text: str, /) -> int:
        raise StdoutError(OSError(errno.ENOSPC, "No space left on device"))


def test_where_stderr_is_closed_spark_still_has_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", WITH_A_LOG, str(log)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "/dev/null\n", "")
    assert log.read_text() == "said\n"


def test_rows_that_cannot_be_written_end_a_shell() -> None:
    """As a statement's error it would go on, and print nothing more."""
    session = SqlSession(ShellOptions(BrokerAccess("localhost:1"), None, "1g"), Full())
    try:
        with pytest.raises(StdoutError, match=r"^cannot write to stdout: No space left on device$"):
            session.execute("HELP")
    finally:
        session.close()


def test_a_user_without_a_home_has_no_history(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    shell._keep_history()
    assert capsys.readouterr().err == "no history: Could not determine home directory.\n"


def test_without_a_place_for_temporary_files_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FOLDERS, "sql", "-e", "HELP"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    said = "odradek: cannot make a folder for temporary files: No such file or directory\n"
    assert (done.returncode, done.stderr, done.stdout) == (2, said, "")
