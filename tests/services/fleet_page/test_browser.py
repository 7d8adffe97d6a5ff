"""The page over the history in a real browser: without scripts, on a phone, light and dark, by the rules of axe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.services.fleet_page.big_fleet import build
from tests.services.fleet_page.running import TOKEN, Served, served, small_history
from tests.suite.effort import OPTION

pytestmark = pytest.mark.thorough

browser_tests = pytest.importorskip("tests.reporters.html.browser", reason="playwright is not installed")

PAGES = {
    "fleet": "/",
    "failing": "/?state=failing",
    "node": "/node/node0008",
    "links": "/links",
    "links of a node": "/links?hosts=node0005",
    "stories": "/stories",
    "not found": "/node/absent",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    lacking = browser_tests.missing()
    if lacking and os.environ.get("CI") != "true":
        pytest.skip(lacking)
    with browser_tests.chromium() as found:
        yield found


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(small_history(tmp_path_factory.mktemp("fleet"))) as found:
        yield found


@contextmanager
def visited(
    browser: Any, url: str, *, scheme: str = "light", width: int = 1280, scripts: bool = False
) -> Iterator[tuple[Any, list[str], list[str]]]:
    """Open the address; return the page, what its console said, and the addresses that it asked for."""
    context = browser.new_context(
        color_scheme=scheme,
        viewport={"width": width, "height": 900},
        java_script_enabled=scripts,
        reduced_motion="reduce",
    )
    try:
        context.set_default_timeout(2 * browser_tests.LIMIT_MS)
        page = context.new_page()
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        yield page, said, asked
    finally:
        context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_no_other_host_and_fits_a_phone(browser: Any, fleet: Served, name: str) -> None:
    with visited(browser, f"{fleet.url}{PAGES[name]}", width=390) as (page, said, asked):
        assert [text for text in said if "404" not in text] == []
        assert [url for url in asked if not url.startswith((fleet.url, "data:image/png"))] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_reader_goes_from_a_failing_node_to_its_links_without_scripts(browser: Any, fleet: Served) -> None:
    with visited(browser, fleet.url) as (page, _, _):
        cell = page.locator("a.cell.bad", has_text="node0008")
        assert cell.locator("span").last.inner_text() == "×", "the outcome is readable without its colour"
        cell.click()
        assert page.locator("h1").inner_text().startswith("Failing")
        # Text of the history is shown as it is.
        assert "fell off the bus <b>&amp;</b>" in page.locator("main").inner_text()
        page.get_by_role("link", name="Links of node0008 over time").click()
        assert page.url.endswith("/links?hosts=node0008")
        assert page.locator("table.over-time tbody tr").count() > 0


def test_filters_are_a_form_that_makes_an_address(browser: Any, fleet: Served) -> None:
    with visited(browser, fleet.url) as (page, _, _):
        page.locator("#f-hosts").fill("node[0001-0012]")
        page.locator("#f-state").select_option("failing")
        page.get_by_role("button", name="Show").click()
        assert "hosts=node%5B0001-0012%5D" in page.url and "state=failing" in page.url
        assert page.locator("a.cell").count() == page.locator("a.cell.bad").count() > 0
        assert page.locator("#f-state").input_value() == "failing"


def test_a_login_by_its_form(browser: Any, tmp_path: Path) -> None:
    with (
        served(small_history(tmp_path, nights=2), token=TOKEN) as fleet,
        visited(browser, f"{fleet.url}/node/node0003") as (page, _, _),
    ):
        page.get_by_label("Token").fill("not the token at all")
        page.get_by_role("button", name="Log in").click()
        assert page.get_by_role("alert").is_visible()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        assert page.url == f"{fleet.url}/node/node0003"
        page.get_by_role("button", name="Log out").click()
        assert page.get_by_label("Token").is_visible()


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [
        ("fleet", "light", 1280),
        ("fleet", "dark", 390),
        ("node", "dark", 1280),
        ("links", "light", 1280),
        ("links", "dark", 390),
        ("stories", "light", 390),
        ("not found", "light", 1280),
        ("login", "dark", 390),
    ],
)
def test_the_rules_of_axe_find_nothing(
    browser: Any, fleet: Served, tmp_path: Path, name: str, scheme: str, width: int
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    if name == "login":
        with served(small_history(tmp_path, nights=1), token=TOKEN) as closed:
            _axe(Axe(), browser, f"{closed.url}/", scheme, width)
    else:
        _axe(Axe(), browser, f"{fleet.url}{PAGES[name]}", scheme, width)


def _axe(axe: Any, browser: Any, url: str, scheme: str, width: int) -> None:
    # The policy of the page forbids scripts, so axe is put into a copy of it.
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True, reduced_motion="reduce"
    )
    try:
        context.set_default_timeout(2 * browser_tests.LIMIT_MS)
        page = context.new_page()
        page.goto(url)
        page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
        result = axe.run(page, options={"resultTypes": ["violations"]})
        assert result.violations_count == 0, result.generate_report()
    finally:
        context.close()


def test_a_thousand_nodes_and_ninety_nights(browser: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption(OPTION):
        pytest.skip(f"takes a minute: {OPTION} runs it")
    address = f"sqlite:///{tmp_path}/history.db"
    build(address, 1000, 90)
    with served(address) as fleet:
        for path in PAGES.values():
            with visited(browser, f"{fleet.url}{path}", width=390) as (page, _, _):
                assert page.evaluate("document.documentElement.scrollWidth") <= 390
        with visited(browser, fleet.url) as (page, _, _):
            assert page.locator("a.cell").count() == 1000
