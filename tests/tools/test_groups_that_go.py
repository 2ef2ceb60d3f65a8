"""Groups that are deleted while `odradek groups` looks at them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from click.testing import CliRunner

from odradek import commands
from odradek.tools import groups
from odradek.tools.group_stores import DEAD, STABLE, GroupDescription


class Store:
    """Lists two groups, of which one is deleted before it is described."""

    async def states(self) -> list[tuple[str, str]]:
        return [("gone", STABLE), ("there", STABLE)]

    async def describe(self, group: str) -> GroupDescription:
        return GroupDescription(group, DEAD if group == "gone" else STABLE)


@asynccontextmanager
async def opened(*_: object) -> AsyncIterator[tuple[Store, None]]:
    yield Store(), None


@pytest.mark.parametrize(
    ("chosen", "status", "shown"),
    [
        (["--all-groups"], 0, ["GROUP", "there"]),
        (["--group", "gone", "--group", "there"], 2, []),
    ],
    ids=["all", "named"],
)
def test_only_a_group_that_is_named_must_exist(
    monkeypatch: pytest.MonkeyPatch, chosen: list[str], status: int, shown: list[str]
) -> None:
    monkeypatch.setattr(groups, "_opened", opened)
    done = CliRunner().invoke(commands.main, ["groups", "describe", "--state", *chosen])
    assert done.exit_code == status, done.output
    assert [line.split()[0] for line in done.stdout.splitlines()] == shown
