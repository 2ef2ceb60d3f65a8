"""`odradek zookeeper`: mistakes are one line, before Java starts."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from odradek import commands
from tests.support import preloaded
from tests.support.ports import free_port


def refusal(*arguments: str, status: int) -> str:
    """Return the one line of a command that was to fail."""
    done = preloaded.run("odradek", "zookeeper", *arguments, timeout=120)
    assert done.returncode == status, done.stdout + done.stderr
    [line] = done.stderr.splitlines()
    return line


def test_port_in_use_is_one_line_and_status_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal("--port", str(port), status=1)
    assert said == f"odradek: cannot listen on 127.0.0.1:{port}: [Errno 98] Address already in use"


@pytest.mark.parametrize("host", ["192.0.2.9", "nobody.invalid", "a..b"])
def test_address_of_another_machine_is_one_line_and_status_1(host: str) -> None:
    said = refusal("--host", host, "--port", "12181", status=1)
    assert said.startswith(f"odradek: cannot listen on {host}:12181: ")


def test_file_in_place_of_the_data_folder_is_one_line_and_status_2(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.touch()
    said = refusal("--port", str(free_port()), "--data-dir", str(file), status=2)
    assert said == f"odradek: cannot use {file} for data: it is no directory"


def test_folder_whose_name_is_not_utf8_is_one_line_and_status_2(tmp_path: Path) -> None:
    folder = f"{tmp_path}/\udcff"
    arguments = ["zookeeper", "--port", str(free_port()), "--data-dir", folder]
    done = CliRunner().invoke(commands.main, arguments)
    assert done.exit_code == 2
    assert done.stderr == f"odradek: cannot use {folder!r} for data: its name is not UTF-8\n"


def test_no_place_for_a_temporary_folder_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(prefix: str) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "mkdtemp", fail)
    done = CliRunner().invoke(commands.main, ["zookeeper", "--port", str(free_port())])
    assert done.exit_code == 2
    assert done.stderr == (
        "odradek: cannot make a folder for data: No usable temporary directory found\n"
    )
