"""The site: it builds without a warning, makes no requests, and has no broken links."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from preflight.config.resolve import all_items
from preflight.plugins import registry
from tests.reporters.html import browser

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
#: Elements whose attribute makes a browser fetch something; `a` does not.
FETCHES = {
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "object": ("data",),
    "embed": ("src",),
    "use": ("href",),
    "form": ("action",),
    "input": ("src",),
}


@dataclass
class Read(HTMLParser):
    """The requests, links and anchors of a page."""

    fetched: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    styles: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.fetched += [given[name] for name in FETCHES.get(tag, ()) if given.get(name)]
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.styles += [given["style"]] if "style" in given else []
        self._in_style = tag == "style"
        if tag == "a" and "href" in given:
            self.links.append(given["href"])

    def handle_data(self, data: str) -> None:
        (self.styles if self._in_style else self.text).append(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[Path, Read]:
    """Every page of the site."""
    found = {}
    for path in sorted(built.rglob("*.html")):
        found[path] = Read()
        found[path].feed(path.read_text())
    return found


def is_outside(address: str) -> bool:
    """Whether an address leads to another machine."""
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def test_no_page_makes_requests(pages: dict[Path, Read]) -> None:
    assert len(pages) > 80
    for path, page in pages.items():
        outside = [address for address in page.fetched if is_outside(address)]
        assert not outside, path
        for style in page.styles:
            assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", style), path


def test_style_sheets_and_pictures_make_no_requests(built: Path) -> None:
    sheets = sorted(built.rglob("*.css"))
    assert sheets
    for path in sheets:
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", path.read_text()), path
    for path in sorted(built.rglob("*.svg")):
        assert not re.search(r"(?:url\(['\"]?|href=['\"]|src=['\"])(?:https?:)?//", path.read_text()), path


def test_the_theme_fetches_nothing(built: Path) -> None:
    # The theme's script fetches a drawing library for diagrams, and facts of a repository where one is named.
    for path in sorted(built.rglob("*.html")):
        text = path.read_text()
        assert 'class="mermaid"' not in text and 'data-md-component="source"' not in text, path


def test_every_link_and_anchor_has_a_target(built: Path, pages: dict[Path, Read]) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            # The page for missing addresses has links relative to the top of the site.
            base = built if parts.path.startswith("/") else path.parent
            target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                broken.append(f"{path.relative_to(built)}: {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                broken.append(f"{path.relative_to(built)}: {link} (no such anchor)")
    assert not broken


def test_every_rule_format_and_key_has_an_entry(built: Path, pages: dict[Path, Read]) -> None:
    for item in all_items():
        anchors = pages[built / "rules" / f"{item.meta.area}.html"].anchors
        assert f"{item.meta.id.lower()}-{item.meta.name}" in anchors
    formats = pages[built / "reference" / "formats.html"].anchors
    # An anchor has no colon.
    assert {item.name.replace(":", "") for item in registry.load(registry.REPORTERS).items} <= formats
    keys = "".join(pages[built / "reference" / "configuration-keys.html"].text)
    assert "per-file-ignores" in keys and "expires" in keys


def test_every_audience_finds_its_page_from_the_first_one(built: Path, pages: dict[Path, Read]) -> None:
    first = pages[built / "index.html"].links
    for page in (ROOT / "docs" / "start").glob("*.md"):
        assert f"start/{page.stem}.html" in first


def test_a_broken_link_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Top\n\n[gone](gone.md) [away](../no/such/file.toml)\n")
    text = (ROOT / "mkdocs.yml").read_text()
    text = text[: text.index("\nnav:")].replace("tools/site.py", str(ROOT / "tools" / "site.py"))
    (tmp_path / "mkdocs.yml").write_text(text)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(tmp_path / "mkdocs.yml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "gone.md" in done.stderr and "no/such/file.toml" in done.stderr


def test_in_a_browser_the_site_makes_no_requests_and_search_works(built: Path) -> None:
    if reason := browser.missing():
        pytest.skip(reason)
    handler = functools.partial(Quiet, directory=str(built))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, browser.chromium() as chromium:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}/"
        page = chromium.new_page()
        page.set_default_timeout(browser.LIMIT_MS)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        said: list[str] = []
        page.on("pageerror", lambda error: said.append(str(error)))
        for name in ("gallery.html", "rules/index.html", "files/examples/plugin-pack.html", "index.html"):
            page.goto(here + name)
        page.locator(".md-search__input").first.click()
        page.keyboard.type("rendezvous-on-loopback")
        page.locator(".md-search-result__link").first.wait_for()
        assert "RDV001" in page.locator(".md-search-result").inner_text()
        server.shutdown()
    assert not [address for address in asked if not address.startswith((here, "data:", "blob:"))]
    assert any("search_index" in address for address in asked)
    assert not said


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without logging."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""
