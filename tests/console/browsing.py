"""The console in a headless Chromium: opening its pages, and what axe-core finds in them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.missing import skip_unless_ci
from tests.support.node_packages import node_path

WAIT_MS = 60_000
SIZE = {"width": 1280, "height": 800}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Debian's Chromium; without it skip, or fail under CI."""
    program = shutil.which("chromium")
    if program is None:
        skip_unless_ci("chromium not found: install Debian's package chromium")
    with sync_playwright() as playwright:
        # As root there is no sandbox; the only pages are the console's.
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


def axe_source() -> str:
    """Return the script of axe-core."""
    packages = Path(node_path(Path(__file__).parent / "browser"))
    return (packages / "axe-core/axe.min.js").read_text()


def opened(browser: Browser, url: str, scheme: Any = "light") -> Page:
    """Open a page in a browser of its own."""
    context = browser.new_context(color_scheme=scheme, viewport=SIZE)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(url)
    return page


def faults(page: Page, axe: str) -> list[str]:
    """Return what axe finds serious or critical."""
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {one['nodes'][0]['html']}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def take_picture(page: Page, name: str) -> None:
    """Write the picture of this name for docs/console.md, if ODRADEK_SCREENSHOTS names a folder."""
    folder = os.environ.get("ODRADEK_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"console-{name}.png")
