"""The site: it builds without a warning, makes no requests, and has no broken links."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest

from preflight.cli import main
from preflight.plugins import registry
from preflight.plugins.installed import all_items
from tests.reporters.html import browser
from tools import gallery, picture, transcripts
from tools.transcripts import PAGES, ROOT, Refused, followed, steps

SITE_ROOT = Path(__file__).resolve().parents[2]
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


@pytest.mark.thorough
def test_no_page_makes_requests(pages: dict[Path, Read]) -> None:
    assert len(pages) > 80
    for path, page in pages.items():
        outside = [address for address in page.fetched if is_outside(address)]
        assert not outside, path
        for style in page.styles:
            assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", style), path


@pytest.mark.thorough
def test_style_sheets_and_pictures_make_no_requests(built: Path) -> None:
    sheets = sorted(built.rglob("*.css"))
    assert sheets
    for path in sheets:
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", path.read_text()), path
    for path in sorted(built.rglob("*.svg")):
        assert not re.search(r"(?:url\(['\"]?|href=['\"]|src=['\"])(?:https?:)?//", path.read_text()), path


@pytest.mark.thorough
def test_the_theme_fetches_nothing(built: Path) -> None:
    # The theme's script fetches a drawing library for diagrams, and facts of a repository where one is named.
    for path in sorted(built.rglob("*.html")):
        text = path.read_text()
        assert 'class="mermaid"' not in text and 'data-md-component="source"' not in text, path


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_every_rule_format_and_key_has_an_entry(built: Path, pages: dict[Path, Read]) -> None:
    for item in all_items():
        anchors = pages[built / "rules" / f"{item.meta.area}.html"].anchors
        assert f"{item.meta.id.lower()}-{item.meta.name}" in anchors
    formats = pages[built / "reference" / "formats.html"].anchors
    # An anchor has no colon.
    assert {item.name.replace(":", "") for item in registry.load(registry.REPORTERS).items} <= formats
    keys = "".join(pages[built / "reference" / "configuration-keys.html"].text)
    assert "per-file-ignores" in keys and "expires" in keys


@pytest.mark.thorough
def test_every_audience_finds_its_page_from_the_first_one(built: Path, pages: dict[Path, Read]) -> None:
    first = pages[built / "index.html"].links
    for page in (SITE_ROOT / "docs" / "start").glob("*.md"):
        assert f"start/{page.stem}.html" in first


@pytest.mark.thorough
def test_a_broken_link_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Top\n\n[gone](gone.md) [away](../no/such/file.toml)\n")
    text = (SITE_ROOT / "mkdocs.yml").read_text()
    text = text[: text.index("\nnav:")].replace("tools/site.py", str(SITE_ROOT / "tools" / "site.py"))
    (tmp_path / "mkdocs.yml").write_text(text)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(tmp_path / "mkdocs.yml")]
    done = subprocess.run(command, cwd=SITE_ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "gone.md" in done.stderr and "no/such/file.toml" in done.stderr


@pytest.mark.thorough
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


# Pages that show commands are followed literally, and show the real output.


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_its_commands_print(page: str) -> None:
    text = (ROOT / page).read_text()
    assert followed(text) == text, "write it anew: make docs"


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_something_to_follow(page: str) -> None:
    commands = [step.command for step in steps((ROOT / page).read_text()) if step.command]
    assert any(command.startswith("preflight ") for command in commands)


@pytest.mark.thorough
def test_every_page_for_an_audience_is_followed() -> None:
    there = {f"docs/start/{path.name}" for path in (ROOT / "docs" / "start").glob("*.md")}
    assert there | {"docs/nodes.md", "docs/plan.md", "docs/writing-a-rule.md", "docs/writing-a-check.md"} == set(PAGES)


#: The faults planted in the files of a newcomer's page, each with the place at which the page shows it.
PLANTED = {
    "paddle-ps": (
        *("PPS003 server.sh:6:8", "PPS002 trainer.sh:8:3", "SGD006 train.py:22:5", "PDL005 train.py:16:5"),
        "PDL010 model.py:22:9",
    ),
    "sbatch-hydra": (
        *("WLD001 train.sbatch:15:34", "HYD001 train.sbatch:15:54", "SLU002 train.sbatch:15:6"),
        *("SLU007 train.sbatch:11:1", "HYD002 conf/model/vit.yaml:4:5"),
    ),
    "deepspeed-accelerate": (
        *("ACC004 configs/two_nodes.yaml:7:3", "ACC007 configs/two_nodes.yaml:13:18", "DSP001 configs/zero3.json:9:5"),
        *("RDV001 configs/two_nodes.yaml:10:18", "BAT003 finetune.py:16:59", "TRN002 finetune.py:28:13"),
    ),
    "kubernetes-platform": (
        *("KUB001 pretrain.yaml:23:68", "KUB015 pretrain.yaml:30:50", "KUB023 pretrain.yaml:23:68"),
        *("KUB024 namespace.yaml:16:7", "KUB060 pretrain.yaml:7:32"),
    ),
    "cluster-admin": (
        "ACM201 local0",
        *(f"NOD005 command line:1:{column}" for column in (17, 35, 56, 81)),
        "ACM001 examples/megatron-slurm/good/pretrain_gpt.sbatch:3:9",
    ),
    "notebook": (
        *("CFG008 finetune.ipynb:75:1", "DAT002 finetune.ipynb:57:71", "GPU001 finetune.ipynb:110:16"),
        *("LCH020 finetune.ipynb:110:7", "PRT001 finetune.ipynb:110:35", "DAT001 finetune.ipynb:56:15"),
        *("ENV001 finetune.ipynb:27:11", "GPU001 finetune.ipynb:75:51"),
    ),
    "failing-job": (
        *("DAT002 train.py:18:71", "TRN002 train.py:28:13", "CKP002 train.py:25:9", "DAT001 train.py:17:15"),
        "ENV001 run.sh:4:8",
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("page", PLANTED)
def test_a_newcomers_page_finds_every_planted_fault_at_its_place(page: str) -> None:
    text = (ROOT / "docs" / "start" / f"{page}.md").read_text()
    assert len(PLANTED[page]) >= 5
    for planted in PLANTED[page]:
        code, place = planted.split(" ", 1)
        concise = re.escape(place) + r": (?:error|warning)\[" + code + r"\]"
        full = r"(?:error|warning)\[" + code + r"\] [^\n]*\n(?:  [^\n]*\n)+?  --> " + re.escape(place) + r"\n"
        assert re.search(rf"^(?:{concise}|{full})", text, re.MULTILINE), planted


@pytest.mark.thorough
def test_output_is_inserted_and_state_persists() -> None:
    page = (
        '```toml title="a/b.toml"\nx = 1\n```\n```sh\ncd a\nname=b.toml\n```\n'
        "```console\n$ cat $name\nold\n$ false\n$ echo $? \\\n  and more\n```\n```text\nnot run\n```\n"
    )
    assert "```console\n$ cat $name\nx = 1\n$ false\n$ echo $? \\\n  and more\n1 and more\n```" in followed(page)


@pytest.mark.thorough
def test_a_failing_command_is_an_error() -> None:
    with pytest.raises(Refused, match="`ls /no/such` ended with 2"):
        followed("```sh\nls /no/such\n```\n")
    with pytest.raises(Refused, match="ended early"):
        followed("```sh\nexit 0\n```\n")


@pytest.mark.thorough
def test_a_hanging_page_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "DEADLINE_S", 0.3)
    with pytest.raises(Refused, match=r"more than 0\.3 s"):
        followed("```sh\nsleep 20\n```\n")


@pytest.mark.thorough
def test_the_gallery_is_current() -> None:
    assert gallery.PAGE.read_text() == gallery.page(), "write it anew: make docs"
    assert len(gallery.entries()) >= 12


@pytest.mark.thorough
def test_the_picture_is_current() -> None:
    svg = picture.PICTURE.read_text()
    ElementTree.fromstring(svg)
    ran = ["$", *picture.COMMAND.split(), *picture.plain().split()]
    assert picture.picture_words(svg) == ran, "draw it anew: make docs"


# Every preflight command on a page exists and has valid options.


COMMANDS_ROOT = Path(__file__).resolve().parents[2]
#: Texts that look like commands: names of test suites in a report, and the beginning of a printed line.
NO_COMMANDS = {"node", "link", "smoke:"}
COMMANDS_PAGES = sorted([COMMANDS_ROOT / "README.md", *(COMMANDS_ROOT / "docs").rglob("*.md")])
#: Blocks of code, fenced or indented, and code inside of a sentence.
_CODE = re.compile(r"^(```|~~~)[^\n]*\n(.*?)^\1|^((?: {4}\S[^\n]*\n)+)|`(preflight [^`\n]+)`", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:^|[|&;(`] ?|\$ )\s*preflight ([a-z][^\n|;#&>`]*)", re.MULTILINE)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command on a page, after `preflight`."""
    for found in _CODE.finditer(text):
        code = (found[2] or found[3] or found[4] or "").replace("\\\n", " ")
        for command in _COMMAND.finditer(code):
            words = command[1].split()
            if words[0] not in NO_COMMANDS:
                yield words


def options(command: click.Command) -> set[str]:
    """Every option of a command, in all spellings."""
    return {word for one in command.params for word in (*one.opts, *one.secondary_opts)} | {"-h", "--help"}


def wrong(words: list[str]) -> str:
    """The error in a command; empty if it is valid."""
    command: click.Command = main.cli
    while isinstance(command, click.Group):
        if not words or words[0] not in command.commands:
            # Followed by a sentence, or by a placeholder for commands.
            return "" if not words else f"no verb {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    known = options(command)
    for word in words:
        if word == "--":
            break
        name = word.partition("=")[0].rstrip(",.:)]'\"")
        if re.fullmatch(r"--[a-z][a-z-]*", name) and name not in known:
            return f"{command.name} takes no {name}"
    return ""


@pytest.mark.parametrize("path", COMMANDS_PAGES, ids=lambda path: str(path.relative_to(COMMANDS_ROOT)))
def test_shown_commands_are_valid(path: Path) -> None:
    faults = [f"preflight {' '.join(words)}: {why}" for words in commands(path.read_text()) if (why := wrong(words))]
    assert not faults


def test_an_invalid_command_is_found() -> None:
    fenced = "```text\npreflight lnit x\nfalse && preflight lint --nosuch\n```\n"
    page = f"{fenced}    preflight judge x --select A\n`preflight baseline x`\n"
    assert [bool(wrong(words)) for words in commands(page)] == [True, True, True, True]
