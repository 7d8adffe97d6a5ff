"""A real browser for tests: the system's Chromium, without a window, without a network, with a limit on every wait."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

#: Time limit of every browser call, also on a busy machine.
LIMIT_MS = 30_000


def missing() -> str:
    """The reason why there is no browser here; empty if there is one."""
    return "" if _chromium() else "no chromium here (Debian package chromium)"


def _chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def chromium() -> Iterator[Browser]:
    """One browser, closed at the end."""
    # Root has no sandbox, and containers have little shared memory.
    options = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=options, timeout=LIMIT_MS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Opened:
    """An open page, with all its console messages and requests."""

    page: Page
    said: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def opened(
    browser: Browser,
    file: Path,
    *,
    scheme: str = "light",
    width: int = 1280,
    height: int = 900,
    scripts: bool = True,
) -> Iterator[Opened]:
    """Open the file in a new window."""
    context = browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": width, "height": height},
        java_script_enabled=scripts,
        reduced_motion="reduce",
        offline=True,
    )
    try:
        context.set_default_timeout(LIMIT_MS)
        page = context.new_page()
        found = Opened(page)
        page.on("console", lambda message: found.said.append(message.text))
        page.on("pageerror", lambda error: found.said.append(str(error)))
        page.on("request", lambda request: found.requests.append(request.url))
        page.goto(file.as_uri())
        yield found
    finally:
        context.close()
