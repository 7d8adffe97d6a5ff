"""The page in a real browser: search, filter, links, keyboard, copying, phones, paper, and the rules of axe-core."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight.engine.report import Report
from preflight.plugins.authoring import passed
from tests.builders import job, judged, make_recording, make_rule
from tests.reporters.html.stories import page as page_of
from tests.reporters.html.stories import story

pytestmark = pytest.mark.thorough

browser_tests = pytest.importorskip("tests.reporters.html.browser", reason="playwright is not installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    lacking = browser_tests.missing()
    if lacking and os.environ.get("CI") != "true":
        pytest.skip(lacking)
    with browser_tests.chromium() as found:
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages by what they show."""
    from tests.reporters.html.test_page import poisoned

    folder = tmp_path_factory.mktemp("pages")
    four = story(4)
    reports: dict[str, Report] = {
        "four": four,
        "many": story(512),
        "go": judged(make_recording(job()), [make_rule(lambda _: [passed("run.sh")])]),
        "hostile": poisoned(story(4)),
        "hostile-many": poisoned(story(60)),
        "suppressed": replace(
            four, suppressed=tuple(replace(f, suppression="known", suppressed_by="waiver") for f in four.findings)
        ),
    }
    for name, report in reports.items():
        (folder / f"{name}.html").write_bytes(page_of(report))
    return {name: folder / f"{name}.html" for name in reports}


@pytest.fixture
def four(browser: Any, files: dict[str, Path]) -> Iterator[Any]:
    with browser_tests.opened(browser, files["four"]) as found:
        yield found


def ids(page: Any) -> list[str]:
    """The ids of the visible findings."""
    return [element.inner_text() for element in page.locator("#findings article:visible .id").all()]


def search(page: Any, text: str) -> None:
    """Type into the search field, and wait for the result."""
    page.locator("#search").fill(text)
    page.wait_for_function("text => document.getElementById('tools').dataset.answered === text", arg=text)


# --- nothing goes wrong, nothing goes out ---


@pytest.mark.parametrize("name", ["four", "many", "go", "hostile", "hostile-many", "suppressed"])
def test_the_page_opens_without_errors_and_requests(browser: Any, files: dict[str, Path], name: str) -> None:
    with browser_tests.opened(browser, files[name]) as found:
        assert found.said == []
        assert [url for url in found.requests if not url.startswith(("file:", "data:image/png"))] == []
        assert found.page.evaluate("window.owned") is None
        assert found.page.locator("#tools").is_visible()


def test_the_policy_blocks_unescaped_scripts(browser: Any, files: dict[str, Path], tmp_path: Path) -> None:
    worse = (
        files["four"]
        .read_bytes()
        .replace(
            b'<main id="main"',
            b'<script>window.owned=1</script><img src="http://192.0.2.1/x" onerror="window.owned=1"><main id="main"',
        )
    )
    (tmp_path / "worse.html").write_bytes(worse)
    with browser_tests.opened(browser, tmp_path / "worse.html") as found:
        assert found.page.evaluate("window.owned") is None
        assert any("Content Security Policy" in line for line in found.said)


# --- search and filter ---


def test_a_search_keeps_entries_with_every_word(four: Any) -> None:
    page = four.page
    assert len(ids(page)) == 4
    search(page, "NCCL node2")
    assert ids(page) == ["VER003"]
    assert page.locator("#found").inner_text().startswith("1 of 4 findings")
    search(page, "no such word")
    assert ids(page) == []
    assert page.locator("#no-findings").is_visible()
    page.locator("#search").press("Escape")
    assert len(ids(page)) == 4


def test_a_search_finds_nodes_in_folded_names(browser: Any, files: dict[str, Path]) -> None:
    with browser_tests.opened(browser, files["many"]) as found:
        page = found.page
        search(page, "worker333")
        assert ids(page) == ["CLK002"], "the finding about all of them, and none about others"
        rows = page.locator("#nodes details tbody tr:visible")
        assert [row.locator("th").inner_text() for row in rows.all()] == ["worker333"]
        page.locator("#search").press("Escape")
        page.wait_for_function("() => !document.querySelector('#nodes details').open")


def test_severities_can_be_hidden(four: Any) -> None:
    page = four.page
    page.get_by_role("checkbox", name="info").uncheck()
    page.get_by_role("checkbox", name="warning").uncheck()
    assert ids(page) == ["LNK001", "WLD001"]
    assert page.locator("#found").inner_text() == "2 of 4 findings"


# --- links and keyboard ---


def test_a_step_leads_to_its_finding_even_if_it_is_filtered(four: Any) -> None:
    page = four.page
    search(page, "nothing holds this")
    page.locator("#first .what a").first.click()
    page.wait_for_function("() => document.querySelector(':target').checkVisibility()")
    assert page.evaluate("document.querySelector(':target .id').textContent") == "LNK001"
    assert page.evaluate("document.querySelector(':target').getBoundingClientRect().top < innerHeight")


def test_a_node_links_to_its_findings(four: Any) -> None:
    four.page.locator("#nodes a", has_text="VER003").first.click()
    assert four.page.evaluate("document.querySelector(':target .id').textContent") == "VER003"


def test_the_page_can_be_used_by_keyboard(four: Any) -> None:
    page = four.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left >= 0"), "it is seen when it has the focus"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("launch-size")
    page.wait_for_function("() => document.querySelectorAll('#findings article:not([hidden])').length === 1")
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.querySelectorAll('#findings article:not([hidden])').length === 4")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert not page.locator("input[value=error]").is_checked()
    page.locator("#coverage summary").first.focus()
    before = page.evaluate("document.activeElement.parentElement.open")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open") != before


def test_the_focused_element_is_visible(four: Any) -> None:
    page = four.page
    seen = 0
    for _ in range(60):
        page.keyboard.press("Tab")
        style = page.evaluate(
            "(() => { const e = document.activeElement; if (e === document.body) return null;"
            " const s = getComputedStyle(e); return [e.tagName, s.outlineStyle, parseFloat(s.outlineWidth)] })()"
        )
        if style is None:
            break
        seen += 1
        assert style[1] != "none" and style[2] >= 1, style
    assert seen > 20


# --- copying and sorting ---


def test_commands_are_copied(browser: Any, files: dict[str, Path]) -> None:
    with browser_tests.opened(browser, files["four"]) as found:
        found.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        found.page.locator("#first .command button").nth(1).click()
        assert found.page.evaluate("navigator.clipboard.readText()") == "preflight lint --fix train.sbatch"
        assert found.page.locator("#first .command button").nth(1).inner_text() == "Copied"


def test_a_column_head_sorts_its_table(four: Any) -> None:
    page = four.page
    head = page.locator("#nodes th", has_text="round trip")
    head.get_by_role("button").click()
    column = page.evaluate(
        "[...document.querySelectorAll('#nodes tbody tr')].map(r => +r.lastElementChild.dataset.sort)"
    )
    assert column == sorted(column)
    assert head.get_attribute("aria-sort") == "ascending"
    head.get_by_role("button").click()
    column = page.evaluate(
        "[...document.querySelectorAll('#nodes tbody tr')].map(r => +r.lastElementChild.dataset.sort)"
    )
    assert column == sorted(column, reverse=True)


# --- every way of looking at it ---


def test_everything_is_readable_without_scripts(browser: Any, files: dict[str, Path]) -> None:
    with browser_tests.opened(browser, files["four"], scripts=False) as found:
        page = found.page
        assert not page.locator("#tools").is_visible(), "what does nothing is not shown"
        assert page.locator("#findings article:visible").count() == 4
        assert page.locator("button").count() == 0
        page.locator("#coverage summary").last.click()
        assert page.locator("#coverage details").last.get_attribute("open") is not None


@pytest.mark.parametrize("name", ["four", "many", "hostile"])
def test_nothing_is_wider_than_a_phone(browser: Any, files: dict[str, Path], name: str) -> None:
    with browser_tests.opened(browser, files[name], width=390, height=844) as found:
        assert found.page.evaluate("document.documentElement.scrollWidth") <= 390


#: Names of options that are broken over two lines.
_BROKEN = """(() => { const found = []; const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) { const node = walk.currentNode;
  if (!node.parentElement.closest("code")) continue;
  for (const word of node.data.matchAll(/(^|[^\\w-])(--?[A-Za-z][\\w-]*)/g)) {
    const range = document.createRange(), start = word.index + word[1].length;
    range.setStart(node, start); range.setEnd(node, start + word[2].length);
    const tops = [...range.getClientRects()].filter(box => box.width).map(box => Math.round(box.top));
    if (new Set(tops).size > 1) found.push(word[2]); } } return found })()"""


def test_options_and_the_brand_stay_whole_on_a_phone(browser: Any, files: dict[str, Path]) -> None:
    with browser_tests.opened(browser, files["four"], width=390, height=844) as found:
        assert found.page.evaluate(_BROKEN) == []
        name = "(() => { const box = document.querySelector('.brand .name'); return box.getClientRects().length })()"
        assert found.page.evaluate(name) == 1
        wide = "[...document.querySelectorAll('table.heat')].filter(table => !table.closest('.scroll')).length"
        assert found.page.evaluate(wide) == 0, "a matrix scrolls by itself"


def test_a_notebook_shows_the_table_and_runs_nothing(browser: Any, tmp_path: Path) -> None:
    """A notebook inserts `_repr_html_` into its page; here with hostile text in every field."""
    from tests.reporters.html.test_page import poisoned

    report = poisoned(story(4))
    (tmp_path / "notebook.html").write_text("<!DOCTYPE html><title>notebook</title><div id=output></div>")
    with browser_tests.opened(browser, tmp_path / "notebook.html", width=390) as found:
        page = found.page
        page.evaluate("html => { document.getElementById('output').innerHTML = html }", report._repr_html_())
        assert page.locator("#output tbody tr:visible").count() == len(report.findings) > 0
        assert page.locator("#output :is(script, img, a, style, iframe)").count() == 0
        assert page.evaluate("window.owned") is None and len(found.requests) == 1


def test_paper_shows_folded_parts_and_no_buttons(browser: Any, files: dict[str, Path]) -> None:
    with browser_tests.opened(browser, files["four"]) as found:
        found.page.emulate_media(media="print")
        for hidden in (".contents", "#tools", ".copy"):
            assert not found.page.locator(hidden).first.is_visible()
        assert len(found.page.pdf(format="A4")) > 10_000


def test_paper_is_white_with_a_dark_screen(browser: Any, files: dict[str, Path]) -> None:
    colors = "(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))"
    with browser_tests.opened(browser, files["four"], scheme="dark") as found:
        dark = found.page.evaluate(colors)
        found.page.emulate_media(media="print", color_scheme="dark")
        assert found.page.evaluate(colors) == ["rgb(26, 33, 48)", "rgb(255, 255, 255)"] != dark


def test_pictures_of_many_nodes_are_drawn(browser: Any, files: dict[str, Path]) -> None:
    with browser_tests.opened(browser, files["many"], scheme="dark") as found:
        widths = found.page.evaluate(
            "Promise.all([...document.images].map(i => i.decode().then(() => i.naturalWidth)))"
        )
        assert widths == [256, 256, 960]
        dark = found.page.evaluate("[...document.images].map(i => i.currentSrc !== i.src)")
        assert dark == [True, True, False], "a dark page shows the dark picture, where there are two"


def test_the_pointer_shows_the_pair(browser: Any, files: dict[str, Path]) -> None:
    with browser_tests.opened(browser, files["many"]) as found:
        page = found.page
        image = page.locator("#x-links-reach img")
        image.scroll_into_view_if_needed()
        box = image.bounding_box()
        cell = box["width"] / 256
        tip = page.locator("#x-links-reach .tip")
        told = {}
        for name, row, column in (("itself", 0, 0), ("next", 0, 255), ("bad", 139, 128), ("band", 1, 128)):
            page.mouse.move(box["x"] + (column + 0.5) * cell, box["y"] + (row + 0.5) * cell)
            told[name] = tip.inner_text()
        assert told["itself"].startswith("worker001, worker002 → worker001, worker002: ")
        assert told["next"].startswith("worker001, worker002 → worker511, worker512: ")
        # worker257, which is unreachable.
        assert told["bad"] == "worker279, worker280 → worker257, worker258: bad"
        assert told["band"].endswith("not tried, in a row or column that is mostly bad")
        page.mouse.move(0, 0)
        assert tip.is_hidden()


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [
        ("four", "light", 1280),
        ("four", "dark", 390),
        ("many", "dark", 1280),
        ("many", "light", 390),
        ("suppressed", "light", 1280),
        ("go", "dark", 1280),
    ],
)
def test_the_rules_of_axe_find_nothing(
    browser: Any, files: dict[str, Path], name: str, scheme: str, width: int
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with browser_tests.opened(browser, files[name], scheme=scheme, width=width) as found:
        # Folded parts are checked too, but not each of hundreds of equal rows.
        found.page.evaluate("document.querySelectorAll('details:not(.all)').forEach(d => { d.open = true })")
        result = Axe().run(found.page, options={"resultTypes": ["violations"]})
        assert result.violations_count == 0, result.generate_report()
