"""Other revisions of the packages, which walks and measurements compare with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench import bench_produce_fetch
from tests.support import revision


def test_an_unknown_revision_is_one_line_and_exit_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench_produce_fetch", "--against", "no-such-revision"])
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    assert bench_produce_fetch.main() == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "bench_produce_fetch: unknown revision: no-such-revision\n"


def test_sources_of_a_revision_are_gone_afterwards() -> None:
    with revision.sources("HEAD") as root:
        assert (root / "broker_image/src/odradek/__main__.py").exists()
        paths = revision.environment(root)["PYTHONPATH"].split(os.pathsep)
        assert paths[:3] == [str(root / one) for one in revision.SOURCES]
    assert not Path(root).exists()
