"""`odradek zookeeper`: mistakes are one line, before Java starts; and where its data are."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from odradek import commands, properties, zookeeper
from tests.support import preloaded
from tests.support.broker import wait_until
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


def test_settings_are_read_as_they_were_meant(tmp_path: Path) -> None:
    folder = tmp_path / "j\xfcrgen\\data \U0001d54f\n"
    text = zookeeper.write_config(folder, 2181).read_text(encoding="ascii")
    assert properties.load_properties(text)["dataDir"] == str(folder)


def test_data_are_in_the_folder_that_is_named_whatever_its_characters(tmp_path: Path) -> None:
    folder = tmp_path / "j\xfcrgen\\data"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "odradek", "zookeeper", "--port", str(free_port())),
            *("--data-dir", str(folder)),
        ],
        # Java names files in the locale's encoding.
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until((folder / "version-2").is_dir, "its data are there")
    finally:
        process.kill()
        process.wait()
