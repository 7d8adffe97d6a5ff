"""The file: one, self-contained, the same for the same report, and safe for any content of a report."""

from __future__ import annotations

import base64
import enum
import hashlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from preflight.engine.report import Report, crashed
from preflight.model.configuration import Configuration
from preflight.plugins import registry
from preflight.reporters.base import Style
from preflight.reporters.html import REPORTER
from preflight.reporters.html.write import prose
from tests.builders import judged, make_recording
from tests.reporters.html.markup import Element, parsed
from tests.reporters.html.stories import page, story
from tests.suite.measured import measured

ROOT = Path(__file__).resolve().parents[3]
#: Scripts, quotes, closing markup, template syntax, control characters, bidirectional marks.
HOSTILE = (
    "</script></style></title><script>window.owned=1</script><img src=x onerror=window.owned=1>"
    '"\' onmouseover=window.owned=1 x=" {{ 7*7 }} {% raw %} javascript:alert(1) `</code><b>` &lt; -->'
    "\x00\x1b[31m\x9b\x7f\u202e\u2066\ud800\u200f\ufeff"
)
MADE_HARMLESS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


@pytest.fixture(scope="module")
def four() -> bytes:
    return page(story(4))


@pytest.fixture(scope="module")
def tree(four: bytes) -> Element:
    return parsed(four)


def test_it_is_a_registered_reporter() -> None:
    assert registry.named(registry.REPORTERS, "html") is REPORTER


def test_the_same_report_gives_the_same_bytes(four: bytes) -> None:
    assert page(story(4)) == four
    assert REPORTER.render(story(4), Style(width=40, color=True, verbosity=2)) == four


def test_the_template_engine_is_loaded_only_for_this_format() -> None:
    code = (
        "import sys; from preflight import api; from preflight.plugins import registry as catalog; from "
        "preflight.reporters.html import REPORTER; "
        "sys.exit('jinja2' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=300, check=False).returncode == 0


def test_a_run_without_results_has_a_page() -> None:
    bug = crashed(ValueError("<b>"), verb="check", created="2026-01-02T03:04:05+00:00", version="0.1.0")
    found = parsed(page(bug))
    assert "A bug in preflight ended the run" in found.all("h1")[0].text
    assert "ValueError: <b>" in found.text, "what broke is not folded away"
    assert "Not judged" in parsed(page(judged(make_recording()))).all("h1")[0].text


# --- nothing from outside ---


def test_the_page_makes_no_requests(four: bytes, tree: Element) -> None:
    assert not re.search(rb"(https?:)?//[a-z]", four), "an address of another machine"
    for name in ("src", "srcset", "href", "action", "poster", "data", "formaction", "background"):
        for element in tree.all():
            value = element.attributes.get(name, "#")
            assert value.startswith(("#", "data:image/png;base64,")), (element.name, value[:80])
    assert not [element for element in tree.all() if element.name in ("link", "iframe", "object", "embed", "base")]
    assert b"url(" not in four and b"@import" not in four


def test_the_policy_allows_only_the_style_and_script_of_the_page(tree: Element) -> None:
    (meta,) = tree.all("meta", http_equiv="Content-Security-Policy")
    policy = dict(part.split(" ", 1) for part in meta.attributes["content"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["form-action"] == policy["base-uri"] == "'none'"
    for kind in ("style", "script"):
        (element,) = tree.all(kind)
        text = "".join(child.texts[0] for child in element.children)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert not [element for element in tree.all() if "style" in element.attributes], "the policy would forbid it"


# --- hostile reports ---


def poisoned(value: Any) -> Any:
    """The value with hostile text appended to, or instead of, every text in it."""
    if isinstance(value, Configuration) or value is None:
        return value
    if isinstance(value, str):
        return f"{value[:12]}{HOSTILE}"
    if isinstance(value, (bool, int, float, enum.Enum)):
        return value
    if isinstance(value, Mapping):
        return {poisoned(key): poisoned(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(poisoned(item) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        # Texts whose type allows only certain words are kept.
        kept = {"state", "kind"} if type(value).__module__ == "preflight.model.charts" else {"source"}
        changed = {
            field.name: poisoned(getattr(value, field.name))
            for field in fields(value)
            if field.init and (field.name not in kept or type(value).__name__ == "Piece")
        }
        return replace(value, **changed)
    return value


@pytest.fixture(scope="module", params=[4, 60])
def hostile(request: pytest.FixtureRequest) -> bytes:
    poisoned_report = poisoned(story(request.param))
    assert isinstance(poisoned_report, Report)
    return page(poisoned_report)


def test_text_of_a_report_never_becomes_markup(hostile: bytes, tree: Element) -> None:
    found = parsed(hostile)
    assert len(found.all("script")) == len(found.all("style")) == 1
    assert {element.name for element in found.all()} <= {element.name for element in tree.all()} | {
        "source",
        "picture",
        "img",
        "path",
        "wbr",
    }
    for element in found.all():
        assert not [name for name in element.attributes if name.startswith("on")], element.name
        assert set(element.attributes) <= ATTRIBUTES, element.attributes
        for name in ("href", "src", "srcset"):
            assert element.attributes.get(name, "#").startswith(("#", "data:image/png"))
    assert not [image for image in found.all("img") if image.attributes["src"] == "x"]
    assert "window.owned=1" in found.text, "it is shown, not dropped"
    assert "{{ 7*7 }}" in found.text and "49" not in found.all("h1")[0].text


#: Every attribute that a template writes.
ATTRIBUTES = frozenset(
    re.findall(
        r"\S+",
        """lang charset http-equiv content name class href id role tabindex aria-hidden aria-label
        aria-labelledby aria-describedby hidden for type autocomplete spellcheck placeholder value
        checked open scope title alt src srcset media width height x y d viewbox preserveaspectratio
        data-find data-names data-severity data-copy data-sort data-sortable data-rows data-columns""",
    )
)


def test_no_control_or_bidirectional_character_reaches_the_page(hostile: bytes) -> None:
    assert not MADE_HARMLESS.search(hostile.decode())
    assert "\\u202e" in hostile.decode(), "it is made visible"


def test_the_policy_of_a_hostile_page_is_that_of_any_other(hostile: bytes, tree: Element) -> None:
    ours, theirs = (t.all("meta", http_equiv="Content-Security-Policy") for t in (tree, parsed(hostile)))
    assert [m.attributes for m in ours] == [m.attributes for m in theirs]


def test_backticks_mark_code() -> None:
    assert str(prose("say `--n=<4>` & go")) == 'say <code><span class="option">--n</span>=&lt;4&gt;</code> &amp; go'
    assert str(prose("an odd ` <b>")) == "an odd ` &lt;b&gt;"
    assert str(prose("``")) == ""


# --- for everybody ---


def test_heading_levels_have_no_gap(tree: Element) -> None:
    levels = [int(element.name[1]) for element in tree.all() if re.fullmatch(r"h[1-6]", element.name)]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels))


def test_the_page_has_landmarks_a_language_and_a_skip_link(tree: Element) -> None:
    (html,) = tree.all("html")
    assert html.attributes["lang"] == "en"
    for name in ("header", "nav", "main", "footer"):
        assert len(tree.all(name)) == 1
    first = tree.all("a")[0]
    assert first.attributes["href"] == "#main"


def test_every_link_has_a_target_and_ids_are_unique(tree: Element) -> None:
    ids = [element.attributes["id"] for element in tree.all() if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    for link in tree.all("a"):
        assert link.attributes["href"][1:] in ids


def test_every_table_has_a_caption_and_heads_with_scopes(tree: Element) -> None:
    tables = tree.all("table")
    assert tables
    for table in tables:
        assert table.all("caption")
        assert table.all("th")
        assert all(th.attributes.get("scope") in ("col", "row") for th in table.all("th"))


def test_every_picture_has_a_description() -> None:
    for image in parsed(page(story(60))).all("img"):
        assert len(image.attributes["alt"]) > 40


def test_there_are_dark_and_print_styles(four: bytes) -> None:
    for query in (b"prefers-color-scheme: dark", b"@media print", b"forced-colors"):
        assert query in four


# --- size ---


@pytest.mark.thorough
@pytest.mark.timeout(700)
def test_the_page_of_a_thousand_nodes_is_quick_and_small() -> None:
    code = """
import json, time
from tests.reporters.html.stories import page, story
report = story(1000)
began = time.process_time()
written = page(report)
print(json.dumps([time.process_time() - began, len(written)]))
"""
    done = measured([sys.executable, "-c", code], cwd=ROOT, timeout_s=600)
    assert done.code == 0, str(done)
    seconds, size_bytes = json.loads(done.output)
    assert seconds < 5
    assert done.peak_bytes < 2**30, str(done)
    assert size_bytes < 10e6
